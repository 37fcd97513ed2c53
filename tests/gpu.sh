#!/usr/bin/env bash
# Tests and measures everything that needs an NVIDIA GPU, in under ten minutes, the most valuable steps first.
# tests/gpu/README.md explains the results.
#
#   tests/gpu.sh pack [ARCHITECTURE]   builds, and packs the programs with the libraries that a bare machine lacks, into
#                                      build-gpu/programs.tar.xz. Needs nvcc but no GPU. ARCHITECTURE: 90a-real (default)
#                                      for H100 and H200, 80-real, 100-real, …
#   tests/gpu.sh                       runs the packed programs. The machine needs only a GPU and its driver; CUDA's
#                                      tools, NCCL, cuBLASLt and PyTorch are used where they are. Without the archive it
#                                      builds and runs gpu_bench alone, which needs nvcc and CMake.
#
# Environment: RESULTS, the folder for summary.txt and the logs (build-gpu/results); DEADLINE, seconds that all steps
# together may take (540); STEP_LIMIT, seconds that no step may exceed (none).
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/gpu/archive.sh
. tests/gpu/steps.sh
. tests/gpu/phases.sh

if [ "${1:-}" = pack ]; then
  pack "${2:-90a-real}"
  exit
elif [ $# -gt 0 ]; then
  echo "error: tests/gpu.sh: expected pack or nothing, got '$1'" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run_phases "$work" "${RESULTS:-build-gpu/results}" "${DEADLINE:-540}"
