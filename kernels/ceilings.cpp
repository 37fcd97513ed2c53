#include "kernels/ceilings.hpp"

#include <emmintrin.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu/variants.hpp"
#include "kernels/host_memory.hpp"
#include "kernels/quantized.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Reads num_bytes as `streams` equal streams, alternating between them by cache line.
template <int streams>
std::int64_t read_streams(const std::byte* from, std::int64_t num_bytes) {
    const std::int64_t each = num_bytes / streams / 64 * 64;
    __m128i sum[4] = {};
    for (std::int64_t at = 0; at < each; at += 64) {
        for (int s = 0; s < streams; ++s) {
            const std::byte* line = from + s * each + at;
            _mm_prefetch(reinterpret_cast<const char*>(line + 2048), _MM_HINT_T0);
            for (int i = 0; i < 4; ++i) {
                sum[i] = _mm_xor_si128(sum[i], _mm_load_si128(reinterpret_cast<const __m128i*>(line) + i));
            }
        }
    }
    return _mm_cvtsi128_si64(_mm_xor_si128(_mm_xor_si128(sum[0], sum[1]), _mm_xor_si128(sum[2], sum[3])));
}

/// Seconds of one pass of all threads over their parts of `data`.
template <int streams>
double timed_pass(const std::byte* data, std::int64_t num_bytes, int threads, std::vector<std::int64_t>& sinks) {
    Clock::time_point start;
    Team::mine().run(threads, [&](Member& member) {
        const auto [first, end] = member.share_of(num_bytes / 64);
        member.barrier();
        if (member.index() == 0) start = Clock::now();
        sinks[member.index()] = read_streams<streams>(data + first * 64, (end - first) * 64);
    });
    return seconds_since(start);
}

}  // namespace

ReadBandwidth::ReadBandwidth(int threads, std::int64_t max_bytes) : threads_(threads) {
    const std::int64_t cache = std::max<std::int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
    num_bytes_ = std::min(std::max<std::int64_t>(std::int64_t{256} << 20, 5 * cache), max_bytes);
    data_ = allocate_host(num_bytes_);
    // Written by the threads that will read it. Untouched pages would all map to the same page of zeros.
    Team::mine().run(threads_, [&](Member& member) {
        const auto [first, end] = member.share_of(num_bytes_ / 64);
        std::fill(data_ + first * 64, data_ + end * 64, std::byte{1});
    });
}

ReadBandwidth::~ReadBandwidth() {
    release_host(data_, num_bytes_);
}

double ReadBandwidth::measure() {
    std::vector<std::int64_t> sinks(threads_);
    // A server's last-level cache may have hundreds of megabytes: one pass over so much takes as long as several.
    constexpr std::int64_t bytes_per_pattern = std::int64_t{6} * 256 << 20;
    const std::int64_t passes = std::max<std::int64_t>(bytes_per_pattern / num_bytes_, 1);
    double one = 0, four = 0;  // seconds
    for (std::int64_t pass = 0; pass < passes; ++pass) {
        one += timed_pass<1>(data_, num_bytes_, threads_, sinks);
        four += timed_pass<4>(data_, num_bytes_, threads_, sinks);
    }
    // Without a use of the sums the compiler would remove the reads.
    volatile std::int64_t sink = 0;
    for (const std::int64_t sum : sinks) sink = sink + sum;
    return static_cast<double>(num_bytes_ * passes) / std::min(one, four);
}

double measure_peak_flops(CpuVariant variant, int threads, DType weights) {
    const cpu::KernelTable* const table = cpu::table_of(variant);
    if (table == nullptr) {
        throw std::invalid_argument("no peak to measure for kernels " + std::string(variant_name(variant)));
    }
    const auto peak_loop = is_quantized(weights)   ? table->peak_int8
                           : weights == DType::f32 ? table->peak_f32
                                                   : table->peak_bf16;
    constexpr std::int64_t iterations = 1'000'000;  // 3 to 20 ms per pass
    double best = 0.0;
    for (int pass = 0; pass < 8; ++pass) {
        Clock::time_point start;
        std::vector<double> operations(threads);
        Team::mine().run(threads, [&](Member& member) {
            float sink = 0.0F;
            member.barrier();
            if (member.index() == 0) start = Clock::now();
            operations[member.index()] = peak_loop(iterations, &sink);
        });
        best = std::max(best, std::accumulate(operations.begin(), operations.end(), 0.0) / seconds_since(start));
    }
    return best;
}

}  // namespace longhaul::kernels
