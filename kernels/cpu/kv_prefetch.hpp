// What attention asks memory for, and when: the keys and values that a thread needs next, a few lines in each turn of
// its inner loops.
#pragma once

#include "kernels/cpu/kernel_table.hpp"

namespace longhaul::kernels::cpu {

/// Some of what a chunk reads: bytes `from`..`until` of the keys of all its pages, then of their values.
struct KvRange {
    KvPrefetch memory;
    std::int64_t from = 0;
    std::int64_t until = 0;  ///< or beyond all of them

    [[nodiscard]] [[gnu::always_inline]] std::int64_t num_bytes(std::int64_t part_bytes) const {
        const std::int64_t all = 2 * memory.num_pages * part_bytes;
        const std::int64_t end = until < all ? until : all;
        return from < end ? end - from : 0;
    }
};

/// Asks in the order in which bytes stand in memory: processors read such a stream ahead by themselves as well (Zen 5
/// at 100K positions; four pages at a time gave 5 to 20 % less).
template <class Isa>
class Prefetcher {
  public:
    /// Of two ranges, one behind the other. `num_turns`: turns of the inner loops to spread over; each asks for `lines`
    /// lines. None is asked for again and again while it is under way: rather do some loops ask for nothing. (The last
    /// step of a run is cut short; at the end as much may be missing.)
    Prefetcher(const AttentionJob& job, const KvRange& first, const KvRange& second, int lines, std::int64_t num_turns)
        : range_(first), then_(second), values_offset_(job.values_offset), part_bytes_(job.part_bytes) {
        const std::int64_t num_bytes = first.num_bytes(part_bytes_) + second.num_bytes(part_bytes_);
        const std::int64_t most = lines * line_bytes, least = most / 2;
        due_ = num_turns > 0 ? (num_bytes + num_turns - 1) / num_turns : most;
        step_ = due_ < least ? least : due_ < most ? due_ : most;
        begin_run();
    }
    /// Asks for what comes first, at once: from then on what is asked for and what is read may keep pace.
    void prefetch_first(std::int64_t num_bytes) {
        const std::int64_t left = end_ - at_;
        const std::byte* until = at_ + (num_bytes < left ? num_bytes : left);
        for (; at_ < until; at_ += line_bytes) __builtin_prefetch(at_, 0, 3);
        if (at_ >= end_) begin_run();
    }
    /// What a loop asks for: some lines a turn, `step` bytes further each time, until after `left` bytes another run
    /// begins.
    struct Share {
        const std::byte* from;
        std::int64_t step;
        std::int64_t left = everything;
        const std::byte* next_run = nullptr;

        [[nodiscard]] [[gnu::always_inline]] bool asks() const { return step != 0; }
        /// One turn.
        template <int Lines>
        [[gnu::always_inline]] void ask() {
            // Into the first cache; into the second, as in Zen 3 the first is full of scores.
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
    /// `weight`: turns that one of this loop counts for, and asks for. A loop asks for no more than a run has.
    [[gnu::always_inline]] Share take(std::int64_t turns, const std::byte* harmless, int weight = 1) {
        const std::int64_t step = weight * step_, bytes = turns * step;
        saved_ += turns * weight * due_;
        if (at_ == end_ || saved_ <= 0) return {harmless, 0};
        saved_ -= bytes;
        Share share{at_, step};
        at_ += bytes;
        if (at_ >= end_) go_on_in_next_run(share, harmless);
        return share;
    }

  private:
    static constexpr std::int64_t line_bytes = 64;

    [[gnu::noinline]] void go_on_in_next_run(Share& share, const std::byte* harmless) {
        share.left = end_ - share.from;
        const std::int64_t in_run = (share.left + share.step - 1) / share.step * share.step;
        const std::int64_t beyond = at_ - share.from - in_run;
        begin_run();
        share.next_run = at_ != nullptr ? at_ : harmless;
        if (at_ == nullptr) return;
        at_ += beyond;
        if (at_ >= end_) begin_run();
    }
    /// What comes next that stands one behind another.
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
    std::int64_t due_;        ///< bytes a turn, to be done in time
    std::int64_t step_;       ///< bytes a turn, where a loop asks at all
    std::int64_t saved_ = 0;  ///< bytes due that were not asked for
    const std::byte* at_ = nullptr;
    const std::byte* end_ = nullptr;
};

}  // namespace longhaul::kernels::cpu
