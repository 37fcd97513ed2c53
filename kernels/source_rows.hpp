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
/// every megabyte or so, so that what was read need not stay in memory until the whole matrix is packed.
class SourceStream {
  public:
    SourceStream(std::span<const SourceRow> rows, std::int64_t first) : rows_(rows), next_(first) {}
    SourceStream(const SourceStream&) = delete;
    SourceStream& operator=(const SourceStream&) = delete;
    ~SourceStream();

    /// All rows before `end` are packed.
    void packed(std::int64_t end);

  private:
    /// Rows that follow each other and were not told yet.
    struct Run {
        const WeightRows* part = nullptr;
        std::int64_t first = 0, end = 0;
        bool finite = true;

        void tell();
    };

    std::span<const SourceRow> rows_;
    std::int64_t next_;
    Run runs_[2];  ///< the last one to grow first: gates and ups are packed in turn
};

}  // namespace longhaul::kernels
