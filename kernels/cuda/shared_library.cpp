// Loads shared libraries with dlopen (shared_library.hpp).
#include "kernels/cuda/shared_library.hpp"

#include <dlfcn.h>

#include <utility>

namespace longhaul::kernels::cuda {

SharedLibrary::SharedLibrary(std::string name, std::initializer_list<const char*> files) : name_(std::move(name)) {
    std::string why;
    for (const char* const file : files) {
        file_ = file;
        handle_ = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) return;
        if (why.empty()) why = ::dlerror();  // of the first file, which is the one to install
    }
    throw CudaError(name_ + ": expected the library " + *files.begin() + ", got '" + why +
                    "'; install it, or add its folder to LD_LIBRARY_PATH");
}

void* SharedLibrary::address(const char* symbol) const {
    void* const found = ::dlsym(handle_, symbol);
    if (found == nullptr) {
        throw CudaError(name_ + ": expected " + symbol + " in " + file_ +
                        ", got another version; install one that has it");
    }
    return found;
}

}  // namespace longhaul::kernels::cuda
