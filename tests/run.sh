#!/usr/bin/env bash
# Installs what is missing, builds, and runs the whole test suite. Fails when a test fails, and when one was skipped for
# another reason than that the processor lacks what it tests (tests/tools/check_report.py). Arguments are passed on to
# ctest: tests/run.sh -R checkpoint
set -euo pipefail
cd "$(dirname "$0")/.."

tests/install_packages.sh
mkdir -p build
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGHAUL_UNITY=ON -DLONGHAUL_TESTS=ON >build/configure.log 2>&1 || {
  cat build/configure.log >&2
  exit 1
}
cmake --build build

# Ranks of the tests share cores and may be root's; the scripts that start them say so to mpirun themselves.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Two places a core and one more, of which a test takes two, and one that mostly waits (for launchers that end, for
# watchdogs) takes one.
# Room for output: the reason of a skip stands in it.
report=$PWD/build/tests.xml
rm -f "$report"
code=0
ctest --test-dir build --output-on-failure --test-output-size-passed 16384 --output-junit "$report" \
  -j "$((2 * $(nproc) + 1))" "$@" || code=$?
python3 tests/tools/check_report.py "$report" || exit 1
exit "$code"
