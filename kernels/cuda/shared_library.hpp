// Libraries that are loaded when they are first needed, and stay: a program starts without those that it does not use.
#pragma once

#include <initializer_list>
#include <string>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

class SharedLibrary {
  public:
    /// Loads the first of `files` that is there. Throws CudaError, which begins with `name`.
    SharedLibrary(std::string name, std::initializer_list<const char*> files);

    /// Throws CudaError where the library does not have it.
    template <typename Function>
    void find(Function*& function, const char* symbol) const {
        function = reinterpret_cast<Function*>(address(symbol));
    }

  private:
    [[nodiscard]] void* address(const char* symbol) const;

    std::string name_, file_;
    void* handle_ = nullptr;
};

}  // namespace longhaul::kernels::cuda
