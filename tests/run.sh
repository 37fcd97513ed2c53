#!/usr/bin/env bash
# Installs what is missing, builds, and runs the whole test suite. Fails when a test fails, and when a test was skipped
# that tests/expected_skips.txt does not name. Arguments are passed on to ctest: tests/run.sh -R checkpoint
set -euo pipefail
cd "$(dirname "$0")/.."

tests/install_packages.sh
mkdir -p build
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGHAUL_TESTS=ON >build/configure.log 2>&1 || {
  cat build/configure.log >&2
  exit 1
}
cmake --build build

# Ranks of the tests share cores and may be root's; the scripts that start them say so to mpirun themselves.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# One more at a time than there are cores: some cases mostly wait, for launchers that end and for watchdogs.
log=build/tests.log
code=0
ctest --test-dir build --output-on-failure -j "$(($(nproc) + 1))" "$@" | tee "$log" || code=$?

unexpected=0
while read -r name; do
  if ! grep -qxF "$name" tests/expected_skips.txt; then
    echo "skipped, and not in tests/expected_skips.txt: $name" >&2
    unexpected=$((unexpected + 1))
  fi
done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: +([^ ]+) .*\*\*\*Skipped.*$/\1/p' "$log")

total=$(sed -nE 's/^.* tests? passed, .* out of ([0-9]+)$/\1/p; s/^.* tests passed out of ([0-9]+)$/\1/p' "$log" | tail -n 1)
failed=$(sed -nE 's/^.*, ([0-9]+) tests? failed out of [0-9]+$/\1/p' "$log" | tail -n 1)
skipped=$(grep -c '\*\*\*Skipped' "$log" || true)
echo "${total:-0} tests, ${failed:-?} failed, $skipped skipped ($unexpected of them unexpected)"
if [ "$unexpected" -gt 0 ] && [ "$code" -eq 0 ]; then code=1; fi
exit "$code"
