// How a parallel region deals out work: in equal, fixed parts.
#pragma once

#include <omp.h>

#include <cstdint>

namespace longhaul::kernels::cpu {

/// The part of [0, count) that belongs to this thread of the region.
struct Share {
    std::int64_t first;
    std::int64_t end;
    std::int64_t thread;

    static Share of(std::int64_t count) {
        const std::int64_t thread = omp_get_thread_num();
        const std::int64_t team = omp_get_num_threads();
        return {thread * count / team, (thread + 1) * count / team, thread};
    }
};

}  // namespace longhaul::kernels::cpu
