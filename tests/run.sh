#!/usr/bin/env bash
# Installs missing packages, builds, and runs the whole test suite. Fails if a test fails, or if one was skipped for any
# reason other than missing processor features (tests/tools/check_report.py). Arguments are passed to ctest:
# tests/run.sh -R checkpoint
set -euo pipefail
cd "$(dirname "$0")/.."

tests/install_packages.sh
mkdir -p build
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGHAUL_UNITY=ON -DLONGHAUL_TESTS=ON -DLONGHAUL_WERROR="${LONGHAUL_WERROR:-OFF}" >build/configure.log 2>&1 || {
  cat build/configure.log >&2
  exit 1
}
cmake --build build

# Ranks of the tests may run as root and share cores. (The test scripts tell mpirun so themselves.)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# ctest -j: three slots per core and one more. A test takes two; one that mostly waits (for launchers to end, for
# watchdogs) takes one. So three run at once on two cores: tests of the whole program leave them idle for 40 % of the time
# otherwise. Up to 16 KiB of the output of passed tests is kept, because it holds the reason of a skip.
report=$PWD/build/tests.xml
rm -f "$report"
code=0
ctest --test-dir build --output-on-failure --test-output-size-passed 16384 --output-junit "$report" \
  -j "$((3 * $(nproc) + 1))" "$@" || code=$?
python3 tests/tools/check_report.py "$report" || exit 1
exit "$code"
