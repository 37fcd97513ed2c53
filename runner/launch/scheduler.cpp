#include "runner/launch/scheduler.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <tuple>

#include "engine/error.hpp"

namespace longhaul::runner {
namespace {

// Layout of the window in words, before the slots.
constexpr MPI_Aint counter_word = 0, stop_word = 1, failures_word = 2, first_slot_word = 8;
constexpr MPI_Aint owner_beat_word = first_slot_word;  // the first word of rank 0's slot is its beat
constexpr int slot_words = static_cast<int>(sizeof(ReplicaTotals) / sizeof(std::int64_t));

/// Each reason has 15 bits of the stop word, which count the ranks that requested it.
int reason_shift(StopReason reason) {
    return 15 * (static_cast<int>(reason) - 1);
}

std::int64_t load_word(const std::int64_t* word) {
    return std::atomic_ref<std::int64_t>(*const_cast<std::int64_t*>(word)).load(std::memory_order_relaxed);
}

}  // namespace

std::vector<std::int64_t> order_of_work(const WorkFacts& facts) {
    struct Item {
        std::int64_t number, kept, bytes;
    };
    std::vector<Item> items;
    for (std::int64_t index = 0; index < facts.num_inputs; ++index) {
        if (!facts.shard.has(index)) continue;
        for (std::int64_t sample = 0; sample < facts.samples; ++sample) {
            const ItemKey key{index, sample};
            if (facts.done(key)) continue;
            items.push_back({index * facts.samples + sample, facts.kept_tokens(key), facts.prompt_bytes(index)});
        }
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return std::pair(a.kept, a.bytes) > std::pair(b.kept, b.bytes);
    });
    std::vector<std::int64_t> order(items.size());
    std::transform(items.begin(), items.end(), order.begin(), [](const Item& item) { return item.number; });
    return order;
}

Board::Board(MPI_Comm world, double every_seconds) : every_(every_seconds) {
    MPI_Comm_dup(world, &world_);
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &size_);
    const MPI_Aint words = rank_ == 0 ? first_slot_word + static_cast<MPI_Aint>(size_) * slot_words : 0;
    constexpr int word_bytes = sizeof(std::int64_t);
    const int result =
        MPI_Win_allocate(words * word_bytes, word_bytes, MPI_INFO_NULL, world_, static_cast<void*>(&words_), &window_);
    if (result != MPI_SUCCESS) throw Error("MPI: expected MPI_Win_allocate to work, got an error");
    if (rank_ == 0) std::memset(words_, 0, words * word_bytes);
    MPI_Barrier(world_);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window_);
    last_look_ = last_probe_ = Clock::now();
}

Board::~Board() {
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
    MPI_Comm_free(&world_);
}

MPI_Aint Board::slot_offset() const {
    return first_slot_word + static_cast<MPI_Aint>(rank_) * slot_words;
}

std::int64_t Board::take_next() {
    const std::int64_t one = 1;
    std::int64_t number = 0;
    MPI_Fetch_and_op(&one, &number, MPI_INT64_T, 0, counter_word, MPI_SUM, window_);
    MPI_Win_flush(0, window_);
    return number;
}

std::int64_t Board::add_failures(std::int64_t count) {
    std::int64_t before = 0;
    MPI_Fetch_and_op(&count, &before, MPI_INT64_T, 0, failures_word, MPI_SUM, window_);
    MPI_Win_flush(0, window_);
    return before + count;
}

void Board::poke(const ReplicaTotals& totals) {
    const Clock::time_point now = Clock::now();
    if (now - last_probe_ < std::chrono::milliseconds(1)) return;
    owner_.pass(std::chrono::duration<double>(now.time_since_epoch()).count());
    last_probe_ = now;
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_, &flag, MPI_STATUS_IGNORE);
    if (looking_) {
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, MPI_STATUSES_IGNORE);
        if (flag == 0) return;
        looking_ = false;
        last_look_ = now;
        note_look();
    }
    if (now - last_look_ < every_) return;
    // Use accumulate operations, not put and get: rank 0 and others may access the same words at the same time.
    posted_ = totals;
    MPI_Raccumulate(&posted_, slot_words, MPI_INT64_T, 0, slot_offset(), slot_words, MPI_INT64_T, MPI_REPLACE, window_,
                    &requests_[0]);
    constexpr int count = static_cast<int>(owner_beat_word - stop_word + 1);
    static_assert(count == std::tuple_size_v<decltype(looked_)>);
    MPI_Rget_accumulate(unused_.data(), count, MPI_INT64_T, looked_.data(), count, MPI_INT64_T, 0, stop_word, count,
                        MPI_INT64_T, MPI_NO_OP, window_, &requests_[1]);
    looking_ = true;
    last_look_ = now;
}

void Board::post(const ReplicaTotals& totals) {
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    if (looking_) note_look();
    looking_ = false;
    posted_ = totals;
    MPI_Accumulate(&posted_, slot_words, MPI_INT64_T, 0, slot_offset(), slot_words, MPI_INT64_T, MPI_REPLACE, window_);
    MPI_Win_flush(0, window_);
}

void Board::request_stop(StopReason reason) {
    // One counter per reason in one word. Do not use compare-and-swap: Open MPI 4.1.4 crashes in it over shared memory.
    const std::int64_t count = std::int64_t{1} << reason_shift(reason);
    std::int64_t before = 0;
    MPI_Fetch_and_op(&count, &before, MPI_INT64_T, 0, stop_word, MPI_SUM, window_);
    MPI_Win_flush(0, window_);
    stop_seen_ = before + count;
}

StopReason Board::stop_reason() const {
    for (const StopReason reason :
         {StopReason::storage, StopReason::superseded, StopReason::failures, StopReason::request}) {
        if ((stop_seen_ >> reason_shift(reason) & 0x7fff) != 0) return reason;
    }
    return StopReason::none;
}

void Board::note_look() {
    stop_seen_ |= looked_.front();
    // Over shared memory the read completes without rank 0, so only a changed beat shows that rank 0 is alive.
    owner_.note(looked_.back());
}

std::vector<ReplicaTotals> Board::totals() const {
    std::vector<ReplicaTotals> all(size_);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::array<std::int64_t, slot_words> words{};
        for (std::size_t i = 0; i < words.size(); ++i) {
            words[i] = load_word(words_ + first_slot_word + rank * slot_words + i);
        }
        all[rank] = std::bit_cast<ReplicaTotals>(words);
    }
    return all;
}

}  // namespace longhaul::runner
