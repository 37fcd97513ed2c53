// Software prefetch for attention: the keys and values that a thread needs next, a few cache lines per iteration of the
// inner loops (attention_tile.hpp). attention.hpp decides what is prefetched.
#pragma once

#include "kernels/cpu/kernel_table.hpp"

namespace longhaul::kernels::cpu {

/// A part of the memory that a chunk reads: bytes `from`..`until` of the keys of all its pages, followed by their
/// values.
struct KvRange {
    KvPrefetch memory;
    std::int64_t from = 0;
    std::int64_t until = 0;  ///< may be beyond the end

    [[nodiscard]] [[gnu::always_inline]] std::int64_t num_bytes(std::int64_t part_bytes) const {
        const std::int64_t all = 2 * memory.num_pages * part_bytes;
        const std::int64_t end = until < all ? until : all;
        return from < end ? end - from : 0;
    }
};

/// Prefetches in memory order, so that the hardware prefetcher follows the same stream (Zen 5 at 100K positions; four
/// pages at a time gave 5 to 20 % less).
template <class Isa>
class Prefetcher {
  public:
    /// Prefetches two ranges, one after the other, spread over `num_turns` iterations of the inner loops. A loop that
    /// prefetches requests `lines` cache lines per iteration and advances by at least half of them, because lines
    /// should not be requested again and again while they are in flight; to keep pace with a smaller rate, some loops
    /// prefetch nothing. (The last step of a run counts in full even if the run ends inside it, so the same number of
    /// bytes may be missing at the end.)
    Prefetcher(const AttentionJob& job, const KvRange& first, const KvRange& second, int lines, std::int64_t num_turns)
        : range_(first), then_(second), values_offset_(job.values_offset), part_bytes_(job.part_bytes) {
        const std::int64_t num_bytes = first.num_bytes(part_bytes_) + second.num_bytes(part_bytes_);
        const std::int64_t max_step = lines * line_bytes, min_step = max_step / 2;
        due_ = num_turns > 0 ? (num_bytes + num_turns - 1) / num_turns : max_step;
        step_ = due_ < min_step ? min_step : due_ < max_step ? due_ : max_step;
        begin_run();
    }
    /// Prefetches the first `num_bytes` at once. From then on, prefetching can keep a constant lead over reading.
    void prefetch_first(std::int64_t num_bytes) {
        const std::int64_t left = end_ - at_;
        const std::byte* until = at_ + (num_bytes < left ? num_bytes : left);
        for (; at_ < until; at_ += line_bytes) __builtin_prefetch(at_, 0, 3);
        if (at_ >= end_) begin_run();
    }
    /// The prefetches of one loop: some lines per iteration, advancing by `step` bytes; after `left` bytes it continues
    /// in the next run.
    struct Share {
        const std::byte* from;
        std::int64_t step;
        std::int64_t left = everything;
        const std::byte* next_run = nullptr;

        [[nodiscard]] [[gnu::always_inline]] bool is_active() const { return step != 0; }
        /// One iteration.
        template <int Lines>
        [[gnu::always_inline]] void prefetch() {
            // To L1; with AVX2 to L2, because on Zen 3 L1 is full of scores.
#pragma GCC unroll 8
            for (int line = 0; line < Lines; ++line)
                __builtin_prefetch(from + line * line_bytes, 0, Isa::width == 16 ? 3 : 2);
            from += step;
            left -= step;
            if (left <= 0) [[unlikely]] {
                from = next_run;
                left = everything;
            }
        }
    };
    /// `weight`: number of inner-loop iterations that one iteration of this loop counts as, in time and in prefetches.
    /// A loop must not prefetch more than one run holds.
    [[gnu::always_inline]] Share take(std::int64_t turns, const std::byte* harmless, int weight = 1) {
        const std::int64_t step = weight * step_, bytes = turns * step;
        saved_ += turns * weight * due_;
        if (at_ == end_ || saved_ <= 0) return {harmless, 0};
        saved_ -= bytes;
        Share share{at_, step};
        at_ += bytes;
        if (at_ >= end_) continue_in_next_run(share, harmless);
        return share;
    }

  private:
    static constexpr std::int64_t line_bytes = 64;

    [[gnu::noinline]] void continue_in_next_run(Share& share, const std::byte* harmless) {
        share.left = end_ - share.from;
        const std::int64_t in_run = (share.left + share.step - 1) / share.step * share.step;
        const std::int64_t beyond = at_ - share.from - in_run;
        begin_run();
        share.next_run = at_ != nullptr ? at_ : harmless;
        if (at_ == nullptr) return;
        at_ += beyond;
        if (at_ >= end_) begin_run();
    }
    /// Finds the next run: bytes that are contiguous in memory.
    void begin_run() {
        if (range_.num_bytes(part_bytes_) == 0) {
            range_ = then_;
            then_ = {};
        }
        at_ = end_ = nullptr;
        if (range_.num_bytes(part_bytes_) == 0) return;
        const std::int64_t part = range_.from / part_bytes_;
        const bool in_values = part >= range_.memory.num_pages;
        const std::int64_t offset = range_.memory.keys_offset + (in_values ? values_offset_ : 0);
        std::int64_t page = in_values ? part - range_.memory.num_pages : part;
        const std::byte* const begin = range_.memory.pages[page] + offset;
        end_ = begin;
        do {
            ++page;
            end_ += part_bytes_;
        } while (page < range_.memory.num_pages && range_.memory.pages[page] + offset == end_);
        at_ = begin + (range_.from - part * part_bytes_);
        const std::int64_t left = range_.num_bytes(part_bytes_);
        if (end_ - at_ > left) end_ = at_ + left;
        range_.from += end_ - at_;
    }

    KvRange range_, then_;
    std::int64_t values_offset_;
    std::int64_t part_bytes_;
    std::int64_t due_;        ///< bytes per iteration needed to finish in time
    std::int64_t step_;       ///< bytes per iteration of a loop that prefetches
    std::int64_t saved_ = 0;  ///< bytes due that were not prefetched
    const std::byte* at_ = nullptr;
    const std::byte* end_ = nullptr;
};

}  // namespace longhaul::kernels::cpu
