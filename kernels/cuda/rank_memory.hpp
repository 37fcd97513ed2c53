// Workspaces of rank_positions and gather_positions, kept between calls (rank.cu).
#pragma once

#include <span>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/staging.hpp"

namespace longhaul::kernels::cuda {

/// A list of pages in device memory.
class PageList {
  public:
    std::byte* const* send(const Stream& stream, PinnedRing& ring, std::span<std::byte* const> pages) {
        auto** list = memory_.get<std::byte*>(stream, std::ssize(pages));
        ring.send(reinterpret_cast<std::byte*>(list), pages.data(), pages.size_bytes());
        return list;
    }

  private:
    Workspace memory_;
};

struct RankMemory {
    /// Upper bound in bytes for sequences of `positions` positions.
    static std::int64_t bytes(const KvLayout& layout, std::int64_t positions) {
        const std::int64_t pages = (positions + KvLayout::page_tokens - 1) / KvLayout::page_tokens;
        return layout.num_kv_heads * positions * std::int64_t{sizeof(std::uint32_t)} +
               2 * pages * std::int64_t{sizeof(std::byte*)};
    }

    Workspace keys;  ///< of the scores
    PageList from, to;
};

}  // namespace longhaul::kernels::cuda
