#!/usr/bin/env bash
# Compiles the kernels for NVIDIA GPUs and their tests, for every architecture we name and with warnings as errors. Needs
# nvcc and no GPU; runs nothing. Minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build-cuda
cmake --preset cuda >build-cuda/configure.log 2>&1 || {
  cat build-cuda/configure.log >&2
  exit 1
}
cmake --build build-cuda --target gpu_test gpu_engine_test gpu_bench longhaul
