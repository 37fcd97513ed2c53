#!/usr/bin/env bash
# Compiles the kernels for NVIDIA GPUs and what only a machine with one runs, for every configured architecture and with
# warnings as errors. Fails if a hot kernel spills registers or needs a stack. Needs nvcc but no GPU; runs nothing. Takes
# minutes the first time. Sources of the engine and of tests are the same without CUDA, and not compiled again.
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
# Of gpu_test and gpu_engine_test what other programs do not have; links_test.cpp only where NCCL's header was found.
mapfile -t objects < <(ninja -C build-cuda -t targets all | grep -oE '^tests/\S*/(real_gpus|links_test)\.cpp\.o')
[ "${#objects[@]}" -ge 2 ] || { echo "error: tests/compile_cuda.sh: expected real_gpus.cpp of two programs in build-cuda, got ${#objects[@]} objects" >&2; exit 1; }
cmake --build build-cuda --target gpu_bench "${objects[@]}"
