// Shared by the attention kernels: iterates over the pages of a unit, and loads the keys or values of 64 positions into
// shared memory, whether they are stored in a page of the sequence or on a row's own path.
#pragma once

#include "kernels/cuda/attention_plan.hpp"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/host_pages.hpp"
#include "kernels/cuda/kv_shape.hpp"
#include "kernels/device.hpp"

namespace longhaul::kernels::cuda {

constexpr int tile_tokens = static_cast<int>(KvLayout::page_tokens);
constexpr int attention_threads = 128;  ///< per block

/// Pointers to device memory.
struct AttentionArgs {
    KvShape shape;
    std::int64_t first_block;  ///< byte offset in a page: keys of the layer's first KV head
    const PlanUnit* units;     ///< units of this launch
    const PlanRow* rows;
    const std::int32_t* paths;
    const PageEntry* pages;
    const std::byte* host_window;  ///< this layer of the pages in host memory
    const std::byte* q;            ///< query_type [rows of the pass, q_heads, head_dim]
    int q_heads;
    int group_heads;
    float scale;       ///< 1 / sqrt(head_dim)
    float log2_scale;  ///< scale * log2 e
    float score_cap;   ///< KvLayout::score_cap
    float* outputs;    ///< [entries, q_heads, head_dim]
    float2* softmax;   ///< [entries, q_heads]: maximum, sum

    /// The part of a page that belongs to this layer.
    [[nodiscard]] __device__ const std::byte* page(std::int64_t number) const {
        return pages[number].layer(first_block, host_window, shape.block(1, 0, false));
    }
    /// Byte offset within that part.
    [[nodiscard]] __device__ std::int64_t block(int kv_head, bool values) const {
        return shape.block(0, kv_head, values);
    }
};

/// A query of a unit: a row of the plan and a query head.
struct Query {
    int plan_row = -1;  ///< -1: beyond the queries of the tile
    int head = 0;
};
__device__ __forceinline__ Query query_of(const AttentionArgs& args, const PlanUnit& unit, int i, int kv_head) {
    if (i >= unit.num_queries) return {};
    const int query = unit.first_query + i;
    return {unit.first_row + query / args.group_heads, kv_head * args.group_heads + query % args.group_heads};
}
/// Rows of the plan that have queries in the unit: [first, end).
__device__ __forceinline__ int first_row_of(const AttentionArgs& args, const PlanUnit& unit) {
    return unit.first_row + unit.first_query / args.group_heads;
}
__device__ __forceinline__ int end_row_of(const AttentionArgs& args, const PlanUnit& unit) {
    return unit.first_row + (unit.first_query + unit.num_queries - 1) / args.group_heads + 1;
}

/// A page of 64 positions that a unit processes.
struct Tile {
    int page;  ///< index in the sequence
    int row;   ///< row of the plan that owns the page; -1: common page
    bool is_there;
};

/// Iterates over the tiles of a unit: its common pages, then the own pages of each of its rows. `has_own`: false if the
/// unit is known to have none.
class TileWalk {
  public:
    __device__ TileWalk(const AttentionArgs& args, const PlanUnit& unit, int chunk_pages, bool has_own = true)
        : rows_(args.rows),
          end_row_(has_own && unit.has_own != 0 ? end_row_of(args, unit) : 0),
          next_row_(end_row_ > 0 ? first_row_of(args, unit) : 0),
          unit_end_page_(unit.chunk_end * chunk_pages),
          first_own_page_(unit.common_end > unit.first_page ? unit.common_end : unit.first_page),
          page_(unit.first_page),
          end_page_(unit.common_end < unit_end_page_ ? unit.common_end : unit_end_page_) {
        find();
    }

    [[nodiscard]] __device__ Tile tile() const { return {page_, row_, page_ < end_page_}; }
    __device__ void advance() {
        ++page_;
        find();
    }

  private:
    __device__ void find() {
        while (page_ >= end_page_ && next_row_ < end_row_) {
            row_ = next_row_++;
            page_ = first_own_page_;
            const int pages = static_cast<int>(rows_[row_].position / tile_tokens) + 1;
            end_page_ = pages < unit_end_page_ ? pages : unit_end_page_;
        }
    }

    const PlanRow* rows_;
    int end_row_;
    int next_row_;
    int row_ = -1;
    int unit_end_page_;
    int first_own_page_;
    int page_;
    int end_page_;
};

/// Location of one position: its page's part of the layer, and the slot in it.
struct TokenPlace {
    const std::byte* page;
    int slot;
};

__device__ __forceinline__ TokenPlace place_of(const AttentionArgs& args, const PlanRow& row, std::int64_t position) {
    if (position < row.in_pages) {
        return {args.page(row.pages + position / tile_tokens), static_cast<int>(position % tile_tokens)};
    }
    const int slot = args.paths[row.first_path + (position - row.in_pages)];
    return {args.page(row.scratch + slot / tile_tokens), slot % tile_tokens};
}

/// Starts asynchronous copies of a tile's rows: slot s to shared + s * stride, in pieces of 16 bytes. A row in shared
/// memory has 2^row_pieces_log2 pieces; only those that exist in the page are written. Slots from `end_slot` on are
/// visible to no query; they are zeroed if `zeros` is set.
__device__ __forceinline__ void load_tile(const AttentionArgs& args, const Tile& tile, const PlanRow& row,
                                          std::int64_t block, int end_slot, bool zeros, int row_pieces_log2,
                                          std::byte* shared, int stride) {
    const int pieces = args.shape.row_bytes / 16;
    const int row_pieces = 1 << row_pieces_log2;
    const std::byte* common = tile.row < 0 ? args.page(row.pages + tile.page) + block : nullptr;
    for (int i = static_cast<int>(threadIdx.x); i < tile_tokens << row_pieces_log2; i += attention_threads) {
        const int slot = i >> row_pieces_log2;
        const int piece = i & (row_pieces - 1);
        if (piece >= pieces) continue;
        std::byte* to = shared + slot * stride + piece * 16;
        if (slot >= end_slot) {
            if (zeros) *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
            continue;
        }
        if (common != nullptr) {
            copy_async_16(to, common + slot * args.shape.row_bytes + piece * 16);
        } else {
            const TokenPlace place = place_of(args, row, std::int64_t{tile.page} * tile_tokens + slot);
            copy_async_16(to, place.page + block + place.slot * args.shape.row_bytes + piece * 16);
        }
    }
}

}  // namespace longhaul::kernels::cuda
