// Libraries that are loaded on first use and never unloaded, so that a program starts without those it does not use.
#pragma once

#include <initializer_list>
#include <string>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

class SharedLibrary {
  public:
    /// Loads the first of `files` that exists. Throws CudaError, whose message starts with `name`.
    SharedLibrary(std::string name, std::initializer_list<const char*> files);

    /// Sets `function` to the library's `symbol`. Throws CudaError if the library does not have it.
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
