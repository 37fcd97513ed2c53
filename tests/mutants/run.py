#!/usr/bin/env python3
"""Applies mutants (mutants.py) to a copy of the sources, one after another, and prints which ones the tests kill.

run.py [NAME…]   all mutants, or those named. The copy and its build are kept in --work (build/mutants), so that only
                 what a mutant touches is built: minutes the first time, then about half a minute each.
run.py --check   builds nothing: every mutant's text must still be in the sources. Part of the suite.

Exit code 1 if a mutant is alive (no test fails) or cannot be judged.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


class Failure(Exception):
    """A mutant that cannot be judged."""


def apply(mutant, root):
    """The text of the mutant's file with and without it."""
    text = (root / mutant.file).read_text()
    found = text.count(mutant.old)
    if found != 1:
        raise Failure(f"{mutant.file}: expected its text once, found it {found} times: {mutant.old.strip()}")
    return text.replace(mutant.old, mutant.new), text


def check():
    for mutant in MUTANTS:
        apply(mutant, ROOT)
    names = {mutant.name for mutant in MUTANTS}
    if len(names) != len(MUTANTS):
        raise Failure("mutants.py: a name occurs twice")
    print(f"{len(MUTANTS)} mutants fit the sources")


def update_copy(copy):
    """Copies what git knows and does not ignore; files with the same content keep their time of modification."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                            capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, copy / name
        if not source.is_file():
            target.unlink(missing_ok=True)
            continue
        content = source.read_bytes()
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(source.stat().st_mode)


def build(copy, folder, targets):
    if not (folder / "build.ninja").exists():
        subprocess.run(["cmake", "-S", copy, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DLONGHAUL_TESTS=ON", "-DLONGHAUL_UNITY=ON"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["ninja", "-C", folder, *targets], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure("it does not compile:\n" + done.stdout[-2000:])


def first_failure(folder, tests):
    """The first test that fails; "" if all pass."""
    for program, tests_of_it in tests.items():
        done = subprocess.run([folder / "tests" / program, "--gtest_brief=1", "--gtest_fail_fast",
                               f"--gtest_filter={tests_of_it}"], capture_output=True, text=True, check=False)
        if re.search(r"^\[=+\] 0 tests", done.stdout, re.MULTILINE):
            raise Failure(f"{program} has no tests {tests_of_it}")
        if done.returncode != 0:
            failed = re.search(r"^\[ +FAILED +\] ([^ ,\n]+)", done.stdout, re.MULTILINE)
            return failed.group(1) if failed else f"{program} ended with {done.returncode}"
    return ""


def judge(mutant, copy, folder):
    """What kills the mutant; "" if nothing does."""
    mutated, original = apply(mutant, copy)
    (copy / mutant.file).write_text(mutated)
    try:
        build(copy, folder, mutant.tests)
        return first_failure(folder, mutant.tests)
    finally:
        (copy / mutant.file).write_text(original)


def run(names, work):
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    unknown = set(names) - {mutant.name for mutant in chosen}
    if unknown:
        raise Failure(f"no such mutant: {', '.join(sorted(unknown))}")
    copy, folder = work / "source", work / "source" / "build"
    os.environ["CCACHE_BASEDIR"] = str(copy)  # with ccache, the first build takes the objects of another one
    update_copy(copy)
    tests = sorted({test for mutant in chosen for test in mutant.tests.items()})
    build(copy, folder, {program for program, _ in tests})
    for program, tests_of_it in tests:
        failed = first_failure(folder, {program: tests_of_it})
        if failed:
            raise Failure(f"{failed} fails without any mutant")
    good = True
    for mutant in chosen:
        try:
            killed_by = judge(mutant, copy, folder)
            print(f"{'killed' if killed_by else 'ALIVE '} {mutant.name:36} {killed_by}", flush=True)
        except Failure as failure:
            killed_by = ""
            print(f"error  {mutant.name:36} {failure}", flush=True)
        good = good and bool(killed_by)
    build(copy, folder, {program for program, _ in tests})
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutants")
    options = parser.parse_args()
    try:
        if options.check:
            check()
            return 0
        return 0 if run(options.names, options.work.resolve()) else 1
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
