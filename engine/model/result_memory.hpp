// Pooled memory for results of forward passes (logits, hidden states). It returns to its pool when the result is
// destroyed, so a pass allocates nothing as long as no more results are alive than before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::engine {

/// `Memory`: kernels::Buffer or kernels::Staging. Not thread-safe.
template <typename Memory>
class MemoryPool {
  public:
    explicit MemoryPool(kernels::Device& device) : device_(device) {}

    /// Returns at least `num_bytes` with unspecified contents: the smallest free piece that is large enough, among
    /// equal ones the one returned last. If none is large enough, the largest free piece is released and a new one
    /// allocated, so that pieces grow instead of multiplying.
    Memory take(std::size_t num_bytes) {
        auto found = free_.end(), largest = free_.end();
        for (auto it = free_.begin(); it != free_.end(); ++it) {
            if (it->num_bytes() >= num_bytes && (found == free_.end() || it->num_bytes() <= found->num_bytes()))
                found = it;
            if (largest == free_.end() || it->num_bytes() > largest->num_bytes()) largest = it;
        }
        Memory memory;
        if (found != free_.end()) {
            memory = std::move(*found);
            free_.erase(found);
        } else {
            if (largest != free_.end()) free_.erase(largest);
            memory = Memory(device_, num_bytes);
        }
        free_.reserve(free_.size() + num_taken_ + 1);  // so that give_back cannot throw
        ++num_taken_;
        return memory;
    }
    void give_back(Memory memory) noexcept {
        --num_taken_;
        free_.push_back(std::move(memory));
    }

  private:
    kernels::Device& device_;
    std::vector<Memory> free_;
    std::size_t num_taken_ = 0;
};

/// Memory from a pool, with one owner. Keeps the pool alive: a result may outlive its model, but not the device.
template <typename Memory>
class Pooled {
  public:
    using Pool = std::shared_ptr<MemoryPool<Memory>>;

    Pooled() = default;
    Pooled(Pool pool, std::size_t num_bytes) : memory_(pool->take(num_bytes)), pool_(std::move(pool)) {}
    Pooled(Pooled&& other) noexcept = default;
    Pooled& operator=(Pooled&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(pool_, other.pool_);
        return *this;
    }
    ~Pooled() {
        if (pool_) pool_->give_back(std::move(memory_));
    }

    /// More memory of the same pool.
    [[nodiscard]] Pooled another(std::size_t num_bytes) const { return Pooled(pool_, num_bytes); }

    [[nodiscard]] std::byte* data() const { return memory_.data(); }
    [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(memory_.data()); }
    [[nodiscard]] std::size_t num_bytes() const { return memory_.num_bytes(); }

  private:
    Memory memory_;
    Pool pool_;
};

using PooledBuffer = Pooled<kernels::Buffer>;
using PooledStaging = Pooled<kernels::Staging>;

/// Hidden states of some rows in device memory: f32 [num_rows, width]. Same contents on every rank.
class HiddenStates {
  public:
    HiddenStates() = default;
    HiddenStates(const PooledBuffer::Pool& pool, std::int64_t num_rows, std::int64_t width)
        : num_rows_(num_rows), width_(width) {
        if (num_rows > 0) memory_ = PooledBuffer(pool, num_rows * width * sizeof(float));
    }

    /// Others of the same memory, with unspecified contents. These must have rows if the others have.
    [[nodiscard]] HiddenStates another(std::int64_t num_rows, std::int64_t width) const {
        HiddenStates states;
        states.num_rows_ = num_rows;
        states.width_ = width;
        if (num_rows > 0) states.memory_ = memory_.another(num_rows * width * sizeof(float));
        return states;
    }

    [[nodiscard]] float* data() const { return memory_.floats(); }
    [[nodiscard]] std::int64_t num_rows() const { return num_rows_; }
    [[nodiscard]] std::int64_t width() const { return width_; }

  private:
    PooledBuffer memory_;
    std::int64_t num_rows_ = 0, width_ = 0;
};

}  // namespace longhaul::engine
