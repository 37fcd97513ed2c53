#include "kernels/sum_ranks.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/flush_denormals.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 16;  // with fewer, starting a team costs more than it saves
constexpr std::int64_t line_elements = 16;             // one cache line: threads do not share any

int team_for(std::int64_t count, int threads) {
    return static_cast<int>(std::clamp<std::int64_t>(count / elements_per_thread, 1, threads));
}

/// Runs body(first, end) over [0, count), split over a team.
template <typename Body>
void in_shares(std::int64_t count, int threads, const Body& body) {
    Team::mine().run(team_for(count, threads), [&](Member& member) {
        const auto [first, end] = member.share_of((count + line_elements - 1) / line_elements);
        body(first * line_elements, std::min(end * line_elements, count));
    });
}

template <int num_parts>
float tree(const float* const* parts, std::int64_t i) {
    if constexpr (num_parts == 1) {
        return parts[0][i];
    } else {
        return tree<num_parts / 2>(parts, i) + tree<num_parts / 2>(parts + num_parts / 2, i);
    }
}

template <int num_parts>
void sum(float* out, std::span<const float* const> parts, std::int64_t first, std::int64_t end) {
    const FlushDenormals flush;
    const float* from[num_parts];  // a local copy that the loop can keep in registers
    std::copy_n(parts.begin(), num_parts, from);
#pragma GCC ivdep
    for (std::int64_t i = first; i < end; ++i) out[i] = tree<num_parts>(from, i);
}

}  // namespace

void sum_ranks(float* out, std::span<const float* const> parts, std::int64_t count, int threads) {
    if (!std::has_single_bit(parts.size()) || parts.size() > 8) {
        throw std::logic_error("sum_ranks of " + std::to_string(parts.size()) + " parts");
    }
    in_shares(count, threads, [&](std::int64_t first, std::int64_t end) {
        switch (parts.size()) {
            case 1:
                return sum<1>(out, parts, first, end);
            case 2:
                return sum<2>(out, parts, first, end);
            case 4:
                return sum<4>(out, parts, first, end);
            default:
                return sum<8>(out, parts, first, end);
        }
    });
}

void copy_floats(float* to, const float* from, std::int64_t count, int threads) {
    in_shares(count, threads, [&](std::int64_t first, std::int64_t end) {
        std::memcpy(to + first, from + first, static_cast<std::size_t>(end - first) * sizeof(float));
    });
}

}  // namespace longhaul::kernels
