#!/usr/bin/env python3
"""The include graph of the product: no include points to a higher layer, and the rooms of a layer form no cycle.

usage: include_graph_test.py ROOT [LAYER ...]   # cycles are checked in these layers

Layers are the folders kernels < engine < runner. A room is a folder one level down, or the files of one stem directly
in the layer; headers count like any other file. If a layer's CMakeLists.txt states the order of its rooms (a comment
line "host <- job <- data"; a comma between rooms that do not include each other), includes must follow it. First checks
in a temporary folder that planted faults are found.
"""

import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

LAYERS = ["kernels", "engine", "runner", "tests"]  # the product must not include tests
PRODUCT = LAYERS[:3]
SOURCE = re.compile(r".*\.(c|h|cc|cpp|hpp|cu|cuh|inl|ipp)(\.in)?$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.M)
ORDER = re.compile(r"^#\s+(\w+(?:(?: <- |, )\w+)* <- \w+(?:(?: <- |, )\w+)*)$", re.M)


def room_of(file):
    """The room of a file: "runner/job" for runner/job/value_text.hpp, "kernels/device" for kernels/device.hpp."""
    parts = Path(file).parts
    return "/".join(parts[:2]) if len(parts) > 2 else f"{parts[0]}/{parts[1].split('.')[0]}"


def arrows_of(root):
    """(file, included file) of all includes between files of the layers, as paths relative to `root`."""
    arrows = []
    for layer in PRODUCT:
        for path in sorted((root / layer).rglob("*")):
            if not SOURCE.match(path.name) or not path.is_file():
                continue
            for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                for place in (root, path.parent):
                    target = (place / name).resolve()
                    if target.is_file() and target.is_relative_to(root):
                        arrows.append((path.relative_to(root).as_posix(), target.relative_to(root).as_posix()))
                        break
    return [(a, b) for a, b in arrows if b.split("/")[0] in LAYERS]


def upward(arrows):
    level = {layer: i for i, layer in enumerate(LAYERS)}
    return [f"upward: {a} includes {b}" for a, b in arrows if level[b.split("/")[0]] > level[a.split("/")[0]]]


def reachable(graph, start):
    seen, todo = set(), [start]
    while todo:
        for room in graph[todo.pop()]:
            if room not in seen:
                seen.add(room)
                todo.append(room)
    return seen


def circles(arrows, layer):
    """For each cycle of rooms, a line with its rooms and lines with the includes that form it."""
    files = defaultdict(lambda: defaultdict(list))
    for a, b in arrows:
        if a.split("/")[0] == b.split("/")[0] == layer and room_of(a) != room_of(b):
            files[room_of(a)][room_of(b)].append(f"{a} includes {b}")
    reach = {room: reachable(files, room) for room in list(files)}
    lines = []
    for room in sorted(reach):
        members = [other for other in sorted(reach[room]) if room in reach.get(other, ())]
        if members and room == members[0]:
            lines.append("include cycle: " + " ".join(members))
            lines += [f"  {line}" for a in members for b in members for line in files[a].get(b, [])]
    return lines


def against_order(arrows, layer, cmake):
    """Includes of `layer` that violate the order stated in `cmake`, and rooms that it does not name."""
    stated = ORDER.search(cmake)
    if stated is None:
        return []
    steps = [step.split(", ") for step in stated[1].split(" <- ")]
    rank = {f"{layer}/{room}": i for i, step in enumerate(steps) for room in step}
    lines = []
    for a, b in arrows:
        one, other = room_of(a), room_of(b)
        if one == other or a.split("/")[0] != layer or b.split("/")[0] != layer:
            continue
        if one not in rank or other not in rank:
            lines.append(f"not in the order of {layer}/CMakeLists.txt: {one if one not in rank else other}")
        elif rank[other] >= rank[one]:
            lines.append(f"against the order of {layer}/CMakeLists.txt: {a} includes {b}")
    return sorted(set(lines))


def faults(root, layers):
    root = root.resolve()
    arrows = arrows_of(root)
    lines = upward(arrows)
    for layer in layers:
        cmake = root / layer / "CMakeLists.txt"
        lines += circles(arrows, layer)
        lines += against_order(arrows, layer, cmake.read_text(encoding="utf-8") if cmake.exists() else "")
    return lines


def check_itself():
    """Tests this script: plants one fault after another in a small tree."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        def write(name, text):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")

        def expect(*wanted):
            got = faults(root, PRODUCT)
            assert got == list(wanted), f"expected {wanted}, got {got}"

        write("kernels/device.hpp", "")
        write("engine/model/model.hpp", '#include "kernels/device.hpp"\n#include <vector>\n')
        write("engine/model/model.cpp", '#include "engine/model/model.hpp"\n#include "engine/step.hpp"\n')
        write("engine/step.hpp", "// #include \"engine/model/model.hpp\"\n")
        write("runner/job/job.cpp", '#include "engine/step.hpp"\n')
        write("runner/run/lease.hpp", '  #  include "../job/job.hpp"\n')
        write("runner/job/job.hpp", "")
        write("runner/CMakeLists.txt", "# Rooms:\n#   job <- run\n")
        expect()
        # A cycle over three rooms, two of its includes by headers.
        write("engine/step.hpp", '#include "engine/draft/drafter.hpp"\n')
        write("engine/draft/drafter.hpp", '#include "engine/model/model.hpp"\n')
        expect("include cycle: engine/draft engine/model engine/step",
               "  engine/draft/drafter.hpp includes engine/model/model.hpp",
               "  engine/model/model.cpp includes engine/step.hpp",
               "  engine/step.hpp includes engine/draft/drafter.hpp")
        write("engine/draft/drafter.hpp", "")
        expect()
        # Upward includes: from a flat file of the lowest layer, and into the tests.
        write("kernels/device.hpp", '#include "engine/step.hpp"\n')
        expect("upward: kernels/device.hpp includes engine/step.hpp")
        write("tests/engine/harness.hpp", "")
        write("kernels/device.hpp", '#include "tests/engine/harness.hpp"\n')
        expect("upward: kernels/device.hpp includes tests/engine/harness.hpp")
        write("kernels/device.hpp", "")
        # A wrong order, and a room that the order does not name.
        write("runner/CMakeLists.txt", "#   run <- job\n")
        expect("against the order of runner/CMakeLists.txt: runner/run/lease.hpp includes runner/job/job.hpp")
        write("runner/CMakeLists.txt", "#   job <- run\n")
        write("runner/main.cpp", '#include "runner/run/lease.hpp"\n')
        expect("not in the order of runner/CMakeLists.txt: runner/main")


def main():
    root, layers = Path(sys.argv[1]), sys.argv[2:] or PRODUCT
    check_itself()
    arrows = arrows_of(root.resolve())
    assert len(arrows) > 500, f"{root}: {len(arrows)} includes: is it the checkout?"
    found = faults(root, layers)
    print("\n".join(found) or f"{len(arrows)} includes, no circle in {', '.join(layers)}, no arrow up")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
