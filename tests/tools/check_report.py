#!/usr/bin/env python3
"""Checks a report of ctest (--output-junit): exit code 1 if a test failed, or was skipped without a valid reason.

    check_report.py REPORT [--flags "avx2 fma …"]

There is one valid reason: a test of a kernel variant prints "VARIANT needs processor flags FLAGS" (the kernels'
variant_flags), and the processor lacks one of them. `--flags` replaces the flags of /proc/cpuinfo.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def flags_of_processor():
    words = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(words.group(1).split()) if words else set()


def name_of(test):
    """The name without the parameter that GoogleTest appends: "Devices/KvTest.Moves/avx2  # GetParam() = avx2"."""
    return test.get("name").partition("  # ")[0]


def objection(test, flags):
    """Why this test must not be skipped; None if it may be."""
    skipped = test.find("skipped")
    if test.get("status") != "notrun" or skipped is None:
        return f"expected to run, got {test.get('status')}"
    needs = re.search(r"^(\S+) needs processor flags (.+)$", test.findtext("system-out") or "", re.MULTILINE)
    if not needs or needs.group(1) != name_of(test).rpartition("/")[2]:
        return f"skipped without a valid reason ({skipped.get('message')})"
    if set(needs.group(2).split()) <= flags:
        return f"skipped, but this processor has {needs.group(2)}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--flags", help="flags of the processor; by default those of this one")
    arguments = parser.parse_args()
    try:
        tests = list(ElementTree.parse(arguments.report).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        print(f"{arguments.report}: expected a report of ctest, got {error}", file=sys.stderr)
        return 1
    flags = flags_of_processor() if arguments.flags is None else set(arguments.flags.split())

    failed = [name_of(test) for test in tests if test.get("status") == "fail"]
    left_out = [test for test in tests if test.get("status") not in ("run", "fail")]
    objections = [f"{name_of(test)}: {why}" for test in left_out if (why := objection(test, flags))]
    for line in [*(f"{name}: failed" for name in failed), *objections]:
        print(line, file=sys.stderr)
    print(f"{len(tests)} tests, {len(failed)} failed, {len(left_out)} skipped ({len(objections)} of them unexpected)")
    return 1 if failed or objections or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
