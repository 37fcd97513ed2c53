// BlockLibrary of builds without cuBLASLt: every function throws CudaError.
#include "kernels/cuda/block_library.hpp"

namespace longhaul::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
    throw CudaError("cuBLASLt: expected a program built with it, got one without; install cublasLt.h and rebuild");
}

}  // namespace

std::unique_ptr<BlockLibrary> make_block_library(const Stream& /*stream*/) {
    refuse();
}

std::string block_library_version() {
    refuse();
}

}  // namespace longhaul::kernels::cuda
