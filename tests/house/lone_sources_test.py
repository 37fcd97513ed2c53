#!/usr/bin/env python3
"""Sources of the product that a unity build compiles together must compile by themselves, too, as the default build does.

    lone_sources_test.py BUILD

BUILD: the folder of a finished build with LONGHAUL_UNITY.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def lone_compilations(build):
    """(source, command, folder of the command) of each source that others precede in a unity file; not of tests."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        unity = Path(entry["file"])
        if unity.parent.name != "Unity" or (build / "tests") in unity.parents:
            continue
        sources = re.findall(r'^#include "(.*\.cpp)"$', unity.read_text(), re.MULTILINE)
        for source in sources[1:]:  # nothing stands before the first one
            words = [source if word == entry["file"] else word for word in shlex.split(entry["command"])]
            output = words.index("-o")
            yield source, [*words[:output], *words[output + 2 :], "-fsyntax-only"], entry["directory"]


def complaints(compilation):
    """What the compiler says of a source; "" if it compiles without a warning."""
    source, command, folder = compilation
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0 and not done.stderr:
        return f"error: {source}: the compiler ended with {done.returncode}\n"
    return done.stderr


def main():
    build = Path(sys.argv[1]).resolve()
    compilations = list(lone_compilations(build))
    if not compilations:
        sys.exit(f"error: {build}/compile_commands.json: expected unity files, got none; configure with -DLONGHAUL_UNITY=ON")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = "".join(pool.map(complaints, compilations))
    sys.stderr.write(said)
    if said:
        sys.exit(1)
    print(f"{len(compilations)} sources of unity files compile by themselves")


if __name__ == "__main__":
    main()
