# Decides whether and how the kernels for NVIDIA GPUs are built. Sets LONGHAUL_WITH_CUDA for the folders below, enables
# the language CUDA, and adds the flags for CUDA code to longhaul_flags.
#
# LONGHAUL_CUDA: AUTO builds them if nvcc and a GPU are present; ON if nvcc is present (to build for another machine);
# OFF never.
set(LONGHAUL_CUDA AUTO CACHE STRING "kernels for NVIDIA GPUs: AUTO (where nvcc and a GPU are there), ON, OFF")
set_property(CACHE LONGHAUL_CUDA PROPERTY STRINGS AUTO ON OFF)

if(CMAKE_CUDA_COMPILER)
  set(LONGHAUL_NVCC ${CMAKE_CUDA_COMPILER})
endif()
find_program(LONGHAUL_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
set(LONGHAUL_WITH_CUDA OFF)
if(LONGHAUL_CUDA STREQUAL "AUTO")
  file(GLOB gpus /dev/nvidia[0-9]*)
  if(LONGHAUL_NVCC AND gpus)
    set(LONGHAUL_WITH_CUDA ON)
  endif()
elseif(LONGHAUL_CUDA)
  if(NOT LONGHAUL_NVCC)
    message(FATAL_ERROR "LONGHAUL_CUDA: expected CUDA's compiler, got none in PATH nor /usr/local/cuda/bin; "
                        "install the CUDA toolkit, or configure with -DCMAKE_CUDA_COMPILER=…/nvcc or -DLONGHAUL_CUDA=OFF")
  endif()
  set(LONGHAUL_WITH_CUDA ON)
endif()
if(NOT LONGHAUL_WITH_CUDA)
  return()
endif()

set(CMAKE_CUDA_COMPILER ${LONGHAUL_NVCC})
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)  # A100 and other sm_80; H100 and H200; later GPUs through PTX
endif()
if(LONGHAUL_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${LONGHAUL_CCACHE})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
find_path(LONGHAUL_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(LONGHAUL_CUBLAS_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})

# Flags that change arithmetic, as on the CPU: no contraction of a*b+c, divisions and roots rounded to nearest,
# denormals flushed as the contract requires.
# --expt-relaxed-constexpr: kernels call constexpr functions of std (bit_cast).
# -std: CMake 3.25 does not know that nvcc supports C++20.
set(cuda_flags -std=c++20 -ftz=true -fmad=false -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr -lineinfo
  -Xcompiler=-Wall,-Wextra)
if(LONGHAUL_WERROR)
  list(APPEND cuda_flags -Werror=all-warnings -Xcompiler=-Werror)
endif()
target_compile_options(longhaul_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
