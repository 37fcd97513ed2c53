// Emulates thread blocks, warps and tensor core instructions on the host (cuda_emulation.hpp).
#include "tests/cuda_emulation/cuda_emulation.hpp"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/flush_denormals.hpp"

namespace longhaul::kernels::cuda {

thread_local uint3 threadIdx{};
thread_local uint3 blockIdx{};
thread_local dim3 blockDim{};
thread_local dim3 gridDim{};

namespace emulation {
namespace {

constexpr int warp_lanes = 32;
/// Of a lane. Not a power of two: stacks follow each other, and the same lines of 32 stacks, which are used in turn,
/// would fall into the same set of a cache.
constexpr std::size_t stack_bytes = (64 << 10) + 1088;
constexpr std::size_t guard_bytes = 256;  // guard after the block's shared memory; must stay unchanged
constexpr std::byte untouched{0xff};

/// Exchange of values between the lanes of a warp. Two alternating tables: a lane may be at the next exchange while
/// others still read this one, but never two ahead.
struct Warp {
    int num_lanes = 0;
    int num_waiting = 0;
    std::int64_t generation = 0;  ///< of the warp's barrier
    bool exchanges = false;       ///< the waiting lanes exchange values
    std::uint32_t synced = 0;     ///< barriers that were no exchange: a GPU orders accesses by these alone
    alignas(16) std::byte table[2][warp_lanes][exchange_bytes]{};
};

struct PendingCopy {
    void* to;
    const void* from;
    std::size_t num_bytes;
    int group;
};

/// Begins the next phase if this one has ended.
void end_phase(Mbarrier& barrier) {
    if (barrier.pending != 0 || barrier.missing_bytes != 0) return;
    barrier.phase ^= 1U;
    barrier.pending = barrier.count;
}

/// A bulk copy to one block.
struct BulkCopy {
    std::byte* to;
    const void* from;
    std::size_t num_bytes;
    Mbarrier* barrier;
};

enum class State { ready, at_warp_barrier, at_block_barrier, at_cluster_barrier, at_mbarrier, done };

const char* name_of(State state) {
    switch (state) {
        case State::at_block_barrier:
            return "a block barrier";
        case State::at_cluster_barrier:
            return "a cluster barrier";
        case State::at_mbarrier:
            return "an mbarrier";
        default:
            return "a warp barrier";
    }
}

struct Block;

/// One CUDA thread: a fiber that runs the body once per block.
struct Lane {
    boost::context::fiber fiber;  ///< while it does not run
    Warp* warp = nullptr;
    Block* block = nullptr;
    int thread = 0;  ///< within the block
    int number = 0;  ///< within the warp
    State state = State::done;
    std::int64_t awaited = 0;  ///< barrier generation that ends its wait
    Mbarrier* mbarrier = nullptr;
    unsigned parity = 0;  ///< of the phase of `mbarrier` that it waits for
    uint3 index{};
    int group = 0;  ///< current group of asynchronous copies
    std::vector<PendingCopy> copies;
};

struct Free {
    void operator()(std::byte* data) const { std::free(data); }
};

struct Block {
    uint3 index{};
    Warp barrier;
    int num_running = 0;
    SharedShadow shadow;
    std::unique_ptr<std::byte, Free> shared{
        static_cast<std::byte*>(std::aligned_alloc(1024, cluster_shared_bytes + (1 << 10)))};
};

/// Runs the blocks of a cluster on one host thread. Lanes are numbered through all of its blocks.
class Processor {
  public:
    void run_cluster(dim3 block, const std::vector<uint3>& indices, std::size_t shared_bytes,
                     const std::function<void()>& body);

    void wait_in_warp() { arrive(warp(), State::at_warp_barrier); }
    void wait_in_block() { arrive(block().barrier, State::at_block_barrier); }
    void wait_in_cluster() { arrive(cluster_, State::at_cluster_barrier); }
    void wait_for_phase(Mbarrier* barrier, unsigned parity);
    [[nodiscard]] Lane& lane() { return *current_; }
    [[nodiscard]] Warp& warp() { return *current_->warp; }
    [[nodiscard]] Block& block() { return *current_->block; }
    [[nodiscard]] unsigned block_of_cluster() { return static_cast<unsigned>(&block() - blocks_.data()); }
    [[nodiscard]] std::byte* shared() { return block().shared.get(); }
    /// The same place in the shared memory of another block of the cluster, which must still run.
    template <typename T>
    T* in_block(T* mine, unsigned which);
    /// Throws std::logic_error unless these bytes are a multiple of 16 and within the block's shared memory.
    void check_piece(const char* operation, const void* data, std::size_t num_bytes = 16, std::size_t unit = 16);
    void copy_later(const BulkCopy& copy);
    void note_access(const void* at, std::size_t num_bytes, Access access, const void* place);

  private:
    void begin(dim3 block, const std::vector<uint3>& indices, std::size_t shared_bytes);
    /// Runs the warps of a block one after another, each as far as it can; false if none could.
    bool run_block(int block);
    /// Runs the lanes of a warp that may run, each up to its next barrier; false if there were none.
    bool run_warp(int first, int count);
    /// Goes on with the next lane of the warp that may run, or else with the caller of run_warp().
    void go_on(boost::context::fiber& mine);
    void switch_to(boost::context::fiber& other, boost::context::fiber& mine);
    void check_end();
    bool may_run(Lane& lane);
    void suspend(Lane& mine, State state);
    void arrive(Warp& barrier, State state);
    void leave();
    void deliver(const Mbarrier* barrier);
    void open(Warp& barrier) {
        barrier.num_waiting = 0;
        if (!barrier.exchanges) ++barrier.synced;
        barrier.exchanges = false;
        ++barrier.generation;
    }
    void make_lanes(std::size_t count);

    std::vector<std::unique_ptr<Lane>> lanes_;
    std::vector<Warp> warps_;
    std::vector<Block> blocks_;  ///< at least those of the cluster
    Warp cluster_;               ///< the cluster's own barrier
    std::vector<BulkCopy> bulk_copies_;
    boost::context::fiber scheduler_;          ///< while a lane runs: the caller of run_warp()
    boost::context::fiber* before_ = nullptr;  ///< where the one that ran before is kept
    int first_of_warp_ = 0, end_of_warp_ = 0, next_of_warp_ = 0;
    Lane* current_ = nullptr;  ///< that runs, or ran last; nullptr: none yet of this warp
    int num_threads_ = 1;      ///< of a block
    int num_lanes_ = 0;        ///< of the cluster
    std::size_t shared_bytes_ = 0;
    const std::function<void()>* body_ = nullptr;
    std::exception_ptr failure_;
};

thread_local Processor* processor = nullptr;

}  // namespace

/// A GPU flushes only f32, but here the flag applies to f64 as well. Without it, f64 behaves as on a GPU.
static bool keeps_denormals() {
    static const bool keeps = std::getenv("LONGHAUL_EMULATION_DENORMALS") != nullptr;
    return keeps;
}

bool reversed() {
    static const bool set = [] {
        const char* order = std::getenv("LONGHAUL_EMULATION_ORDER");
        return order != nullptr && std::string(order) == "reverse";
    }();
    return set;
}

namespace {

void Processor::make_lanes(std::size_t count) {
    while (lanes_.size() < count) {
        lanes_.push_back(std::make_unique<Lane>());
        Lane* const lane = lanes_.back().get();
        boost::context::fixedsize_stack stack(stack_bytes);
        lane->fiber = boost::context::fiber(std::allocator_arg, stack, [this, lane](boost::context::fiber&& before) {
            *before_ = std::move(before);
            for (;;) {
                try {
                    (*body_)();
                } catch (const boost::context::detail::forced_unwind&) {
                    throw;
                } catch (...) {
                    failure_ = std::current_exception();
                }
                leave();
                go_on(lane->fiber);
            }
            return std::move(scheduler_);
        });
    }
}

void Processor::begin(dim3 block, const std::vector<uint3>& indices, std::size_t shared_bytes) {
    num_threads_ = static_cast<int>(block.x * block.y * block.z);
    num_lanes_ = num_threads_ * static_cast<int>(indices.size());
    make_lanes(static_cast<std::size_t>(num_lanes_));
    while (blocks_.size() < indices.size()) blocks_.emplace_back();
    const int warps_per_block = (num_threads_ + warp_lanes - 1) / warp_lanes;
    warps_.assign(indices.size() * static_cast<std::size_t>(warps_per_block), Warp{});
    cluster_ = Warp{};
    cluster_.num_lanes = num_lanes_;
    bulk_copies_.clear();
    shared_bytes_ = shared_bytes;
    for (std::size_t b = 0; b < indices.size(); ++b) {
        blocks_[b].index = indices[b];
        blocks_[b].shadow.begin_block();
        blocks_[b].barrier = Warp{};
        blocks_[b].barrier.num_lanes = blocks_[b].num_running = num_threads_;
        std::fill_n(blocks_[b].shared.get(), shared_bytes + guard_bytes, untouched);
    }
    for (int i = 0; i < num_lanes_; ++i) {
        Lane& lane = *lanes_[static_cast<std::size_t>(i)];
        const int block_number = i / num_threads_, thread = i % num_threads_;
        const auto flat = static_cast<unsigned>(thread);
        lane.block = &blocks_[static_cast<std::size_t>(block_number)];
        lane.warp = &warps_[static_cast<std::size_t>(block_number * warps_per_block + thread / warp_lanes)];
        lane.thread = thread;
        lane.number = thread % warp_lanes;
        lane.index = {flat % block.x, flat / block.x % block.y, flat / block.x / block.y};
        lane.state = State::ready;
        lane.group = 0;
        lane.copies.clear();
        ++lane.warp->num_lanes;
    }
}

void Processor::run_cluster(dim3 block, const std::vector<uint3>& indices, std::size_t shared_bytes,
                            const std::function<void()>& body) {
    body_ = &body;
    failure_ = nullptr;
    begin(block, indices, shared_bytes);
    // The first block runs as far as it can while the others stand still, then the next one until the first can go on:
    // so a block that does not wait for another shows.
    const int blocks = static_cast<int>(indices.size());
    for (int b = 0; b < blocks; ++b) {
        if (run_block(reversed() ? blocks - 1 - b : b)) b = -1;
    }
    check_end();
}

bool Processor::run_block(int block) {
    const int num_warps = (num_threads_ + warp_lanes - 1) / warp_lanes;
    bool moved = false;
    for (int w = 0; w < num_warps; ++w) {
        const int first = (reversed() ? num_warps - 1 - w : w) * warp_lanes;
        while (run_warp(block * num_threads_ + first, std::min(warp_lanes, num_threads_ - first))) moved = true;
    }
    return moved;
}

bool Processor::run_warp(int first, int count) {
    first_of_warp_ = first;
    end_of_warp_ = first + count;
    next_of_warp_ = 0;
    current_ = nullptr;
    go_on(scheduler_);
    return current_ != nullptr;
}

void Processor::go_on(boost::context::fiber& mine) {
    const int count = end_of_warp_ - first_of_warp_;
    while (next_of_warp_ < count) {
        const int i = next_of_warp_++, which = reversed() ? end_of_warp_ - 1 - i : first_of_warp_ + i;
        Lane& lane = *lanes_[static_cast<std::size_t>(which)];
        if (!may_run(lane)) continue;
        current_ = &lane;
        threadIdx = lane.index;
        blockIdx = block().index;
        return switch_to(lane.fiber, mine);
    }
    if (&mine != &scheduler_) switch_to(scheduler_, mine);
}

/// Directly from one lane to the next, because switching takes most of the time of emulated kernels.
void Processor::switch_to(boost::context::fiber& other, boost::context::fiber& mine) {
    before_ = &mine;
    boost::context::fiber before = std::move(other).resume();
    *before_ = std::move(before);
}

void Processor::check_end() {
    for (int i = 0; i < num_lanes_; ++i) {
        const State state = lanes_[static_cast<std::size_t>(i)]->state;
        if (state == State::done || failure_ != nullptr) continue;
        lanes_.clear();  // their fibers are suspended within the kernel
        throw std::logic_error(std::string("emulated kernel: thread ") + std::to_string(i) + " waits at " +
                               name_of(state) + " that others never reach");
    }
    if (failure_ != nullptr) {
        lanes_.clear();
        std::rethrow_exception(failure_);
    }
    if (!bulk_copies_.empty()) throw std::logic_error("emulated kernel: ended before a bulk copy arrived");
    for (int b = 0; b < num_lanes_ / num_threads_; ++b) {
        const std::byte* const behind = blocks_[static_cast<std::size_t>(b)].shared.get() + shared_bytes_;
        if (std::any_of(behind, behind + guard_bytes, [](std::byte byte) { return byte != untouched; })) {
            throw std::logic_error("emulated kernel: wrote behind its " + std::to_string(shared_bytes_) +
                                   " bytes of shared memory");
        }
    }
}

void Processor::check_piece(const char* operation, const void* data, std::size_t num_bytes, std::size_t unit) {
    const auto at = reinterpret_cast<std::uintptr_t>(data), begin = reinterpret_cast<std::uintptr_t>(shared());
    if (at % unit != 0 || num_bytes % unit != 0)
        throw std::logic_error(std::string(operation) + ": not a multiple of " + std::to_string(unit) + " bytes");
    if (at < begin || at + num_bytes > begin + shared_bytes_) {
        throw std::logic_error(std::string(operation) + ": outside of the block's shared memory");
    }
}

template <typename T>
T* Processor::in_block(T* mine, unsigned which) {
    if (which >= static_cast<unsigned>(num_lanes_ / num_threads_)) throw std::logic_error("cluster: no such block");
    Block& other = blocks_[which];
    if (other.num_running == 0) throw std::logic_error("cluster: access to a block that has ended");
    return reinterpret_cast<T*>(other.shared.get() + (reinterpret_cast<const std::byte*>(mine) - shared()));
}

bool Processor::may_run(Lane& lane) {
    switch (lane.state) {
        case State::ready:
            return true;
        case State::at_warp_barrier:
            return lane.warp->generation >= lane.awaited;
        case State::at_block_barrier:
            return lane.block->barrier.generation >= lane.awaited;
        case State::at_cluster_barrier:
            return cluster_.generation >= lane.awaited;
        case State::at_mbarrier:
            deliver(lane.mbarrier);
            return lane.mbarrier->phase != lane.parity;
        case State::done:
            break;
    }
    return false;
}

void Processor::suspend(Lane& mine, State state) {
    mine.state = state;
    go_on(mine.fiber);
    mine.state = State::ready;
}

void Processor::arrive(Warp& barrier, State state) {
    Lane& mine = lane();
    mine.awaited = barrier.generation + 1;
    if (++barrier.num_waiting == barrier.num_lanes) open(barrier);
    suspend(mine, state);
}

void Processor::wait_for_phase(Mbarrier* barrier, unsigned parity) {
    Lane& mine = lane();
    mine.mbarrier = barrier;
    mine.parity = parity;
    suspend(mine, State::at_mbarrier);
}

void Processor::copy_later(const BulkCopy& copy) {
    std::memset(copy.to, 0xff, copy.num_bytes);  // the old contents are undefined from now on
    bulk_copies_.push_back(copy);
    if (reversed()) deliver(copy.barrier);
}

/// Bulk copies arrive when somebody waits for them; in reverse order, at once.
void Processor::deliver(const Mbarrier* barrier) {
    const auto arrives = [&](const BulkCopy& copy) { return copy.barrier == barrier; };
    for (const BulkCopy& copy : bulk_copies_) {
        if (!arrives(copy)) continue;
        std::memcpy(copy.to, copy.from, copy.num_bytes);
        copy.barrier->missing_bytes -= static_cast<std::int32_t>(copy.num_bytes);
        end_phase(*copy.barrier);
    }
    std::erase_if(bulk_copies_, arrives);
}

/// Ends the current thread. Barriers no longer wait for it.
void Processor::leave() {
    lane().state = State::done;
    --block().num_running;
    if (warp().exchanges && failure_ == nullptr) {
        failure_ =
            std::make_exception_ptr(std::logic_error("emulated warp: a lane ended while others exchange values"));
    }
    for (Warp* const barrier : {&warp(), &block().barrier, &cluster_}) {
        if (--barrier->num_lanes > 0 && barrier->num_waiting == barrier->num_lanes) open(*barrier);
    }
}

/// A race is reported at the end of the kernel: nothing may be thrown from within an instruction.
void Processor::note_access(const void* at, std::size_t num_bytes, Access access, const void* place) {
    if (current_ == nullptr || failure_ != nullptr) return;
    Block& mine = block();
    const auto first = reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(mine.shared.get());
    if (first >= shared_bytes_) return;
    const Moment now{.thread = static_cast<std::uint32_t>(lane().thread),
                     .block_barriers = static_cast<std::uint32_t>(mine.barrier.generation + cluster_.generation),
                     .warp_barriers = warp().synced};
    const std::string race = mine.shadow.note(first, num_bytes, access, now, place);
    if (race.empty()) return;
    failure_ = std::make_exception_ptr(std::logic_error("emulated kernel: " + race));
}

Processor& here() {
    if (processor == nullptr) throw std::logic_error("emulated device code outside of a kernel");
    return *processor;
}

}  // namespace

void run(dim3 grid, dim3 block, dim3 cluster, std::size_t shared_bytes, const std::function<void()>& body) {
    if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || cluster.z != 1)
        throw std::logic_error("emulated kernel: a grid of clusters that are not whole");
    thread_local Processor mine;
    const auto flush = keeps_denormals() ? std::nullopt : std::optional<FlushDenormals>(std::in_place);
    const struct Running {
        explicit Running(Processor& one) { processor = &one; }
        ~Running() { processor = nullptr; }
    } running(mine);
    blockDim = block;
    gridDim = grid;
    std::vector<uint3> indices(std::size_t{cluster.x} * cluster.y);
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; y += cluster.y) {
            for (unsigned x = 0; x < grid.x; x += cluster.x) {
                for (unsigned b = 0; b < indices.size(); ++b) indices[b] = {x + b % cluster.x, y + b / cluster.x, z};
                mine.run_cluster(block, indices, shared_bytes, body);
            }
        }
    }
}

const std::byte* exchange(const void* mine, std::size_t num_bytes) {
    Processor& p = here();
    Warp& warp = p.warp();
    if (warp.num_lanes != warp_lanes) throw std::logic_error("emulated warp: lacks lanes that exchange values");
    warp.exchanges = true;
    auto& table = warp.table[warp.generation % 2];
    std::memcpy(table[p.lane().number], mine, num_bytes);
    p.wait_in_warp();
    return table[0];
}

void block_barrier() {
    here().wait_in_block();
}
void warp_barrier() {
    here().wait_in_warp();
}
namespace {
thread_local std::int64_t num_waits = 0;
}
void waited_for_previous() {
    ++num_waits;
}
std::int64_t waits_for_previous() {
    return num_waits;
}
std::byte* shared_bytes() {
    return here().shared();
}
int lane() {
    return here().lane().number;
}

void cluster_barrier() {
    here().wait_in_cluster();
}
unsigned block_of_cluster() {
    return here().block_of_cluster();
}
const void* in_block(const void* mine, unsigned block) {
    here().check_piece("ld.shared::cluster", mine);
    return here().in_block(static_cast<const std::byte*>(mine), block);
}
void arrive(Mbarrier* mine, unsigned block, std::int32_t bytes) {
    Mbarrier& barrier = *here().in_block(mine, block);
    if (barrier.count == 0xffff) throw std::logic_error("mbarrier: not initialized");
    if (barrier.pending == 0) throw std::logic_error("mbarrier: more arrivals than it expects");
    barrier.missing_bytes += bytes;
    --barrier.pending;
    end_phase(barrier);
}
void wait_for_phase(Mbarrier* barrier, unsigned parity) {
    if (barrier->count == 0xffff) throw std::logic_error("mbarrier: not initialized");
    here().wait_for_phase(barrier, parity);
}
void copy_bulk(void* to, const void* from, std::size_t num_bytes, Mbarrier* barrier, unsigned blocks) {
    Processor& p = here();
    p.check_piece("cp.async.bulk", to, num_bytes);
    if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
        throw std::logic_error("cp.async.bulk: reads at no multiple of 16 bytes");
    for (unsigned b = 0; blocks >> b != 0; ++b) {
        if ((blocks >> b & 1U) == 0) continue;
        p.copy_later({p.in_block(static_cast<std::byte*>(to), b), from, num_bytes, p.in_block(barrier, b)});
    }
}

void note_access(const void* at, std::size_t num_bytes, Access access, const void* place) {
    if (processor != nullptr) processor->note_access(at, num_bytes, access, place);
}

void check_matrix_row(const void* row) {
    here().check_piece("ldmatrix", row);
    if (checks_races) note_access(row, 16, Access::read, __builtin_return_address(0));
}

void copy_later(void* to, const void* from, std::size_t num_bytes) {
    here().check_piece("cp.async", to, num_bytes, num_bytes);
    if (reinterpret_cast<std::uintptr_t>(from) % num_bytes != 0) {
        throw std::logic_error("cp.async: reads at no multiple of " + std::to_string(num_bytes) + " bytes");
    }
    if (checks_races) note_access(to, num_bytes, Access::copy_begins, __builtin_return_address(0));
    std::memset(to, 0xff, num_bytes);  // the old contents are undefined from now on
    Lane& lane = here().lane();
    lane.copies.push_back({to, from, num_bytes, lane.group});
}
void commit() {
    ++here().lane().group;
}
void wait(int pending) {
    Lane& lane = here().lane();
    const auto arrives = [&](const PendingCopy& copy) { return copy.group < lane.group - pending; };
    for (const PendingCopy& copy : lane.copies) {
        if (!arrives(copy)) continue;
        if (checks_races) note_access(copy.to, copy.num_bytes, Access::copy_arrives, __builtin_return_address(0));
        std::memcpy(copy.to, copy.from, copy.num_bytes);
    }
    lane.copies.erase(std::remove_if(lane.copies.begin(), lane.copies.end(), arrives), lane.copies.end());
}

}  // namespace emulation
}  // namespace longhaul::kernels::cuda
