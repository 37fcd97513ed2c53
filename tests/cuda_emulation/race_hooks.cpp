// What -fsanitize=thread calls at each access to memory, instead of that sanitizer's library (race_check.hpp).
#include "tests/cuda_emulation/cuda_emulation.hpp"

using longhaul::kernels::cuda::emulation::Access;
using longhaul::kernels::cuda::emulation::note_access;

// NOLINTBEGIN: names and signatures are the compiler's
extern "C" {

#define LONGHAUL_ACCESS(name, access, size)                         \
    void __tsan_##name##size(void* at) {                            \
        note_access(at, size, access, __builtin_return_address(0)); \
    }
#define LONGHAUL_ACCESSES(size)                          \
    LONGHAUL_ACCESS(read, Access::read, size)            \
    LONGHAUL_ACCESS(write, Access::write, size)          \
    LONGHAUL_ACCESS(volatile_read, Access::read, size)   \
    LONGHAUL_ACCESS(volatile_write, Access::write, size) \
    LONGHAUL_ACCESS(unaligned_read, Access::read, size)  \
    LONGHAUL_ACCESS(unaligned_write, Access::write, size)
LONGHAUL_ACCESSES(1)
LONGHAUL_ACCESSES(2)
LONGHAUL_ACCESSES(4)
LONGHAUL_ACCESSES(8)
LONGHAUL_ACCESSES(16)

void __tsan_read_range(void* at, unsigned long size) {
    note_access(at, size, Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* at, unsigned long size) {
    note_access(at, size, Access::write, __builtin_return_address(0));
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Atomics are on global memory and in the code that launches kernels: done, not noted.
#define LONGHAUL_ATOMIC(bits, T)                                                                        \
    T __tsan_atomic##bits##_load(const volatile T* at, int) {                                           \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                   \
    void __tsan_atomic##bits##_store(volatile T* at, T value, int) {                                    \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                   \
    T __tsan_atomic##bits##_exchange(volatile T* at, T value, int) {                                    \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                        \
    }                                                                                                   \
    T __tsan_atomic##bits##_fetch_add(volatile T* at, T value, int) {                                   \
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                         \
    }                                                                                                   \
    T __tsan_atomic##bits##_fetch_sub(volatile T* at, T value, int) {                                   \
        return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                         \
    }                                                                                                   \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T* at, T* expected, T value, int, int) { \
        return __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }                                                                                                   \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T* at, T* expected, T value, int, int) {   \
        return __atomic_compare_exchange_n(at, expected, value, 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }                                                                                                   \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T* at, T expected, T value, int, int) {       \
        __atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
        return expected;                                                                                \
    }
LONGHAUL_ATOMIC(8, unsigned char)
LONGHAUL_ATOMIC(16, unsigned short)
LONGHAUL_ATOMIC(32, unsigned)
LONGHAUL_ATOMIC(64, unsigned long)
void __tsan_atomic_thread_fence(int) {}

}  // extern "C"
// NOLINTEND
