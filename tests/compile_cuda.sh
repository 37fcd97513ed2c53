#!/usr/bin/env bash
# Compiles the kernels for NVIDIA GPUs and their tests, for every configured architecture and with warnings as errors.
# Fails if a hot kernel spills registers or needs a stack. Needs nvcc but no GPU; runs nothing. Takes minutes the first
# time. Without precompiled headers and unity files, so that each source of the product must compile by itself.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build-cuda
cmake --preset cuda >build-cuda/configure.log 2>&1 || {
  cat build-cuda/configure.log >&2
  exit 1
}
# ptxas reports only what it compiles; ccache repeats its report.
rm -f build-cuda/kernels/CMakeFiles/longhaul_kernels.dir/cuda/*.cu.o
cmake --build build-cuda --target longhaul_kernels >build-cuda/kernels.log 2>&1 || {
  cat build-cuda/kernels.log >&2
  exit 1
}
python3 tests/tools/check_kernel_resources.py build-cuda/kernels.log sm_80 sm_90a
cmake --build build-cuda --target gpu_test gpu_engine_test gpu_bench longhaul
