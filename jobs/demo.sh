#!/usr/bin/env bash
# Installs missing packages, builds, and continues the openings of five novels on two MPI ranks, with speculative decoding
# and without; then one of them by 12,000 tokens, where drafts gain more. Stop it with Ctrl-C at any moment and start it
# again: it resumes where it was. Options are passed on to the job of five novels, the only one then, for example
#
#   jobs/demo.sh --output=runs/other --seed=7 --max-tokens=200
#
# RANKS=4 jobs/demo.sh uses another number of ranks. Takes about a minute on two cores once it is built.
set -euo pipefail
for option in "$@"; do
  case $option in
    -h | --help)
      echo "jobs/demo.sh [--KEY=VALUE ...]: builds longhaul, continues five novels on two ranks; keys change jobs/demo/demo.cfg"
      echo "RANKS=4 jobs/demo.sh uses another number of ranks; \`longhaul help KEY\` explains a key"
      exit 0
      ;;
  esac
done
cd "$(dirname "$0")/.."

tests/install_packages.sh
mkdir -p build
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGHAUL_UNITY=ON >build/configure.log 2>&1 || {
  cat build/configure.log >&2
  exit 1
}
cmake --build build --target longhaul

# Without these options mpirun refuses to run as root, or with more ranks than cores.
launcher=(mpirun -q --oversubscribe -n "${RANKS:-2}")
if [ "$(id -u)" -eq 0 ]; then launcher+=(--allow-run-as-root); fi
if [ -t 2 ]; then export LONGHAUL_PROGRESS=live; fi

code=0
"${launcher[@]}" build/runner/longhaul run jobs/demo/demo.cfg "$@" || code=$?
if [ "$code" -eq 0 ] && [ $# -eq 0 ]; then  # options may be meant for the first job alone
  build/runner/longhaul run jobs/demo/long.cfg || code=$?
fi
case "$code" in
  0 | 3) ;;
  2) ;;
  *) echo "Stopped. Run the same command again: it resumes from the last checkpoint, and the text will be the same." >&2 ;;
esac
exit "$code"
