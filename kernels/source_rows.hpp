// The rows that the implementations of `Device::pack` read, one by one from stacked parts of tensors, and the calls to
// PackListener when they have been packed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::kernels {

struct SourceRow {
    const WeightRows* part;
    std::int64_t row;

    [[nodiscard]] bool is_zeros() const { return part->data == nullptr; }
};

/// The rows of stacked parts, one by one.
std::vector<SourceRow> rows_of(std::span<const WeightRows> parts);

/// Whether no packed value of the row is NaN or infinite.
bool all_finite(const SourceRow& source);

/// Tracks one thread's progress through its rows. Checks each row for NaN while it is still in cache, and calls the
/// parts' listeners every megabyte or so, so that source memory can be freed before the whole matrix is packed.
class SourceStream {
  public:
    SourceStream(std::span<const SourceRow> rows, std::int64_t first) : rows_(rows), next_(first) {}
    SourceStream(const SourceStream&) = delete;
    SourceStream& operator=(const SourceStream&) = delete;
    ~SourceStream();

    /// Reports that all rows before `end` are packed.
    void packed(std::int64_t end);

  private:
    /// Consecutive packed rows of one part that the listener has not been told about.
    struct Run {
        const WeightRows* part = nullptr;
        std::int64_t first = 0, end = 0;
        bool finite = true;

        void tell();
    };

    std::span<const SourceRow> rows_;
    std::int64_t next_;
    Run runs_[2];  ///< most recently extended first; two, because gate and up rows alternate
};

}  // namespace longhaul::kernels
