#!/usr/bin/env bash
# Compiles the kernels for NVIDIA GPUs and their tests, for every configured architecture and with warnings as errors.
# Needs nvcc but no GPU; runs nothing. Takes minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build-cuda
cmake --preset cuda >build-cuda/configure.log 2>&1 || {
  cat build-cuda/configure.log >&2
  exit 1
}
cmake --build build-cuda --target gpu_test gpu_engine_test gpu_bench longhaul
