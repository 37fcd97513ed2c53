// Sets flush-to-zero and denormals-are-zero in the calling thread for the lifetime of a scope. vdpbf16ps always
// flushes, so every thread that adds or multiplies values covered by numerics.hpp must flush too, including the one
// that adds the partial sums of tensor-parallel ranks. Otherwise the bits would depend on the processor.
#pragma once

#include <xmmintrin.h>

namespace longhaul::kernels {

class FlushDenormals {
  public:
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | flush_to_zero | denormals_are_zero); }
    ~FlushDenormals() { _mm_setcsr(saved_); }
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

  private:
    static constexpr unsigned flush_to_zero = 0x8000;
    static constexpr unsigned denormals_are_zero = 0x0040;
    unsigned saved_;
};

}  // namespace longhaul::kernels
