// The rows that `Device::pack` reads: stacked parts of tensors, one by one, and word to those who wait for their
// memory.
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

/// Whether no value of the row that is packed is NaN or infinite.
bool all_finite(const SourceRow& source);

/// One thread's way through its rows: looks for NaN while a row is still in the cache, and tells the parts' listeners
/// every few megabytes, so that what was read need not stay in memory until the whole matrix is packed.
class SourceStream {
  public:
    SourceStream(std::span<const SourceRow> rows, std::int64_t first) : rows_(rows), next_(first) {}
    SourceStream(const SourceStream&) = delete;
    SourceStream& operator=(const SourceStream&) = delete;
    ~SourceStream() { tell(); }

    /// All rows before `end` are packed.
    void packed(std::int64_t end);

  private:
    void tell();

    std::span<const SourceRow> rows_;
    std::int64_t next_;
    const WeightRows* part_ = nullptr;  ///< of the rows not told yet: first_row_..end_row_
    std::int64_t first_row_ = 0, end_row_ = 0;
    bool finite_ = true;
};

}  // namespace longhaul::kernels
