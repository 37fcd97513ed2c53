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
constexpr std::size_t stack_bytes = 64 << 10;
constexpr std::size_t guard_bytes = 256;  // guard after the block's shared memory; must stay unchanged
constexpr std::byte untouched{0xff};
constexpr std::size_t exchange_bytes = 64;  // max per lane

/// Exchange of values between the lanes of a warp. Two alternating tables: a lane may be at the next exchange while
/// others still read this one, but never two ahead.
struct Warp {
    int num_lanes = 0;
    int num_waiting = 0;
    std::int64_t generation = 0;  ///< of the warp's barrier
    bool exchanges = false;       ///< the waiting lanes exchange values
    alignas(16) std::byte table[2][warp_lanes][exchange_bytes]{};
};

struct PendingCopy {
    void* to;
    const void* from;
    std::size_t num_bytes;
    int group;
};

enum class State { ready, at_warp_barrier, at_block_barrier, done };

/// One CUDA thread: a fiber that runs the body once per block.
struct Lane {
    boost::context::fiber fiber;
    boost::context::fiber scheduler;
    State state = State::done;
    std::int64_t awaited = 0;  ///< barrier generation that ends its wait
    uint3 index{};
    int group = 0;  ///< current group of asynchronous copies
    std::vector<PendingCopy> copies;
};

/// Runs blocks on one host thread.
class Processor {
  public:
    void run_block(dim3 block, uint3 index, std::size_t shared_bytes, const std::function<void()>& body);

    void wait_in_warp() { arrive(warp(), State::at_warp_barrier); }
    void wait_in_block() { arrive(block_, State::at_block_barrier); }
    [[nodiscard]] Warp& warp() { return warps_[static_cast<std::size_t>(current_ / warp_lanes)]; }
    [[nodiscard]] Lane& lane() { return *lanes_[static_cast<std::size_t>(current_)]; }
    [[nodiscard]] int lane_of_warp() const { return current_ % warp_lanes; }
    [[nodiscard]] std::byte* shared() { return shared_.get(); }
    /// Throws std::logic_error unless these 16 bytes are aligned and within the block's shared memory.
    void check_piece(const char* operation, const void* data) const;

  private:
    void begin_block(dim3 block, std::size_t shared_bytes);
    void resume(int index);
    bool may_run(Lane& lane, int index);
    void arrive(Warp& barrier, State state);
    void leave();
    void open(Warp& barrier) {
        barrier.num_waiting = 0;
        barrier.exchanges = false;
        ++barrier.generation;
    }
    void make_lanes(std::size_t count);

    std::vector<std::unique_ptr<Lane>> lanes_;
    std::vector<Warp> warps_;
    Warp block_;  ///< the block's own barrier
    int current_ = 0;
    int num_threads_ = 0;
    std::size_t shared_bytes_ = 0;
    const std::function<void()>* body_ = nullptr;
    std::exception_ptr failure_;
    struct Free {
        void operator()(std::byte* data) const { std::free(data); }
    };
    std::unique_ptr<std::byte, Free> shared_{
        static_cast<std::byte*>(std::aligned_alloc(256, block_shared_bytes + (1 << 10)))};
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
        lane->fiber = boost::context::fiber(std::allocator_arg, stack, [this, lane](boost::context::fiber&& scheduler) {
            lane->scheduler = std::move(scheduler);
            for (;;) {
                try {
                    (*body_)();
                } catch (const boost::context::detail::forced_unwind&) {
                    throw;
                } catch (...) {
                    failure_ = std::current_exception();
                }
                leave();
                lane->scheduler = std::move(lane->scheduler).resume();
            }
            return std::move(lane->scheduler);
        });
    }
}

void Processor::begin_block(dim3 block, std::size_t shared_bytes) {
    num_threads_ = static_cast<int>(block.x * block.y * block.z);
    make_lanes(static_cast<std::size_t>(num_threads_));
    warps_.assign(static_cast<std::size_t>((num_threads_ + warp_lanes - 1) / warp_lanes), Warp{});
    block_ = Warp{};
    block_.num_lanes = num_threads_;
    shared_bytes_ = shared_bytes;
    std::fill_n(shared_.get(), shared_bytes + guard_bytes, untouched);
    for (int i = 0; i < num_threads_; ++i) {
        Lane& lane = *lanes_[static_cast<std::size_t>(i)];
        const auto flat = static_cast<unsigned>(i);
        lane.index = {flat % block.x, flat / block.x % block.y, flat / block.x / block.y};
        lane.state = State::ready;
        lane.group = 0;
        lane.copies.clear();
        ++warps_[static_cast<std::size_t>(i / warp_lanes)].num_lanes;
    }
}

void Processor::run_block(dim3 block, uint3 index, std::size_t shared_bytes, const std::function<void()>& body) {
    body_ = &body;
    failure_ = nullptr;
    blockIdx = index;
    begin_block(block, shared_bytes);
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < num_threads_; ++i) {
            const int which = reversed() ? num_threads_ - 1 - i : i;
            if (!may_run(*lanes_[static_cast<std::size_t>(which)], which)) continue;
            resume(which);
            moved = true;
        }
    }
    for (int i = 0; i < num_threads_; ++i) {
        const State state = lanes_[static_cast<std::size_t>(i)]->state;
        if (state == State::done || failure_ != nullptr) continue;
        lanes_.clear();  // their fibers are suspended within the kernel
        throw std::logic_error(std::string("emulated kernel: thread ") + std::to_string(i) + " waits at a " +
                               (state == State::at_block_barrier ? "block" : "warp") +
                               " barrier that others never reach");
    }
    if (failure_ != nullptr) {
        lanes_.clear();
        std::rethrow_exception(failure_);
    }
    const std::byte* const behind = shared_.get() + shared_bytes;
    if (std::any_of(behind, behind + guard_bytes, [](std::byte byte) { return byte != untouched; })) {
        throw std::logic_error("emulated kernel: wrote behind its " + std::to_string(shared_bytes) +
                               " bytes of shared memory");
    }
}

void Processor::check_piece(const char* operation, const void* data) const {
    const auto at = reinterpret_cast<std::uintptr_t>(data), begin = reinterpret_cast<std::uintptr_t>(shared_.get());
    if (at % 16 != 0) throw std::logic_error(std::string(operation) + ": not a multiple of 16 bytes");
    if (at < begin || at + 16 > begin + shared_bytes_) {
        throw std::logic_error(std::string(operation) + ": outside of the block's shared memory");
    }
}

void Processor::resume(int index) {
    current_ = index;
    Lane& lane = *lanes_[static_cast<std::size_t>(index)];
    threadIdx = lane.index;
    lane.fiber = std::move(lane.fiber).resume();
}

bool Processor::may_run(Lane& lane, int index) {
    switch (lane.state) {
        case State::ready:
            return true;
        case State::at_warp_barrier:
            return warps_[static_cast<std::size_t>(index / warp_lanes)].generation >= lane.awaited;
        case State::at_block_barrier:
            return block_.generation >= lane.awaited;
        case State::done:
            break;
    }
    return false;
}

void Processor::arrive(Warp& barrier, State state) {
    Lane& mine = lane();
    mine.awaited = barrier.generation + 1;
    mine.state = state;
    if (++barrier.num_waiting == barrier.num_lanes) open(barrier);
    mine.scheduler = std::move(mine.scheduler).resume();
    mine.state = State::ready;
}

/// Ends the current thread. Barriers no longer wait for it.
void Processor::leave() {
    lane().state = State::done;
    if (warp().exchanges && failure_ == nullptr) {
        failure_ =
            std::make_exception_ptr(std::logic_error("emulated warp: a lane ended while others exchange values"));
    }
    for (Warp* const barrier : {&warp(), &block_}) {
        if (--barrier->num_lanes > 0 && barrier->num_waiting == barrier->num_lanes) open(*barrier);
    }
}

Processor& here() {
    if (processor == nullptr) throw std::logic_error("emulated device code outside of a kernel");
    return *processor;
}

}  // namespace

void run(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
    const auto width = static_cast<std::int64_t>(grid.x), height = static_cast<std::int64_t>(grid.y);
    const std::int64_t num_blocks = width * height * static_cast<std::int64_t>(grid.z);
    thread_local Processor mine;
    const auto flush = keeps_denormals() ? std::nullopt : std::optional<FlushDenormals>(std::in_place);
    const struct Running {
        explicit Running(Processor& one) { processor = &one; }
        ~Running() { processor = nullptr; }
    } running(mine);
    blockDim = block;
    gridDim = grid;
    for (std::int64_t b = 0; b < num_blocks; ++b) {
        mine.run_block(block,
                       {static_cast<unsigned>(b % width), static_cast<unsigned>(b / width % height),
                        static_cast<unsigned>(b / width / height)},
                       shared_bytes, body);
    }
}

void exchange(const void* mine, std::size_t num_bytes, void* all) {
    Processor& p = here();
    Warp& warp = p.warp();
    if (num_bytes > exchange_bytes) throw std::logic_error("emulated warp: more bytes than lanes exchange");
    if (warp.num_lanes != warp_lanes) throw std::logic_error("emulated warp: lacks lanes that exchange values");
    warp.exchanges = true;
    auto& table = warp.table[warp.generation % 2];
    std::memcpy(table[p.lane_of_warp()], mine, num_bytes);
    p.wait_in_warp();
    for (int i = 0; i < warp_lanes; ++i) {
        std::memcpy(static_cast<std::byte*>(all) + static_cast<std::size_t>(i) * num_bytes, table[i], num_bytes);
    }
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
    return here().lane_of_warp();
}

void check_matrix_row(const void* row) {
    here().check_piece("ldmatrix", row);
}

void copy_later(void* to, const void* from, std::size_t num_bytes) {
    here().check_piece("cp.async", to);
    if (reinterpret_cast<std::uintptr_t>(from) % num_bytes != 0) {
        throw std::logic_error("cp.async: reads at no multiple of 16 bytes");
    }
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
        if (arrives(copy)) std::memcpy(copy.to, copy.from, copy.num_bytes);
    }
    lane.copies.erase(std::remove_if(lane.copies.begin(), lane.copies.end(), arrives), lane.copies.end());
}

namespace {

/// A lane's operands of an mma.
struct MmaOperands {
    std::uint32_t a[4];
    std::uint32_t b[2];
};

float bf16_half(std::uint32_t word, int half) {
    return std::bit_cast<float>(half == 0 ? word << 16 : word & 0xffff0000U);
}

int byte_of(std::uint32_t word, int which) {
    return static_cast<std::int8_t>(word >> (8 * which));
}

/// Registers of `a` that hold row `row` (of 16), for the lower and the upper half of the inputs.
struct RowOfA {
    int lower, upper;
};
RowOfA row_of_a(int row) {
    return row < 8 ? RowOfA{0, 2} : RowOfA{1, 3};
}

/// sum over k of a[row, k] b[k, column], by ascending lanes of the inputs; `product` adds the products of two
/// registers.
template <class Sum, class Product>
Sum product_of(const MmaOperands (&all)[32], int row, int column, Sum sum, Product product) {
    const RowOfA regs = row_of_a(row);
    for (const bool upper : {false, true}) {
        for (int t = 0; t < 4; ++t) {
            const std::uint32_t a = all[row % 8 * 4 + t].a[upper ? regs.upper : regs.lower];
            const std::uint32_t b = all[column * 4 + t].b[upper ? 1 : 0];
            sum = product(sum, a, b);
        }
    }
    return sum;
}

}  // namespace
}  // namespace emulation

void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    using namespace emulation;
    MmaOperands mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    MmaOperands all[32];
    exchange(&mine, sizeof mine, all);
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
        const double sum =
            product_of(all, g + i / 2 * 8, 2 * t + i % 2, 0.0, [](double before, std::uint32_t x, std::uint32_t y) {
                for (const int half : {0, 1}) {
                    before += static_cast<double>(bf16_half(x, half)) * static_cast<double>(bf16_half(y, half));
                }
                return before;
            });
        d[i] = static_cast<float>(static_cast<double>(d[i]) + sum);
    }
}

void mma_int8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    using namespace emulation;
    MmaOperands mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    MmaOperands all[32];
    exchange(&mine, sizeof mine, all);
    const int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; ++i) {
        d[i] = product_of(all, g + i / 2 * 8, 2 * t + i % 2, d[i],
                          [](std::int32_t before, std::uint32_t x, std::uint32_t y) {
                              for (int k = 0; k < 4; ++k) before += byte_of(x, k) * byte_of(y, k);
                              return before;
                          });
    }
}

namespace {

/// The element (row, column) and its right neighbour; transposed: (column, row) and the element below it.
std::uint32_t matrix_pair(const void* const* rows, int row, int column, bool transposed) {
    const auto element = [&](int r, int c) {
        std::uint16_t bits;
        std::memcpy(&bits, static_cast<const std::byte*>(rows[r]) + c * 2, 2);
        return static_cast<std::uint32_t>(bits);
    };
    if (transposed) return element(column, row) | element(column + 1, row) << 16;
    return element(row, column) | element(row, column + 1) << 16;
}

template <int count>
void load_matrices(std::uint32_t (&to)[count], const void* row, bool transposed) {
    const void* all[32];
    emulation::exchange(&row, sizeof row, all);
    const int g = emulation::lane() / 4, t = emulation::lane() % 4;
    for (int i = 0; i < count; ++i) {
        emulation::check_matrix_row(all[8 * i + g]);
        to[i] = matrix_pair(all + std::ptrdiff_t{8} * i, g, 2 * t, transposed);
    }
}

}  // namespace

void load_matrix_x4(std::uint32_t (&to)[4], const void* row) {
    load_matrices(to, row, false);
}
void load_matrix_x4_transposed(std::uint32_t (&to)[4], const void* row) {
    load_matrices(to, row, true);
}
void load_matrix_x2(std::uint32_t (&to)[2], const void* row) {
    load_matrices(to, row, false);
}

}  // namespace longhaul::kernels::cuda
