#include "kernels/source_rows.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace longhaul::kernels {
namespace {

/// The listener's system call costs less than a thousandth of handling this many bytes.
constexpr std::int64_t bytes_at_once = std::int64_t{2} << 20;

/// Whether the magnitudes of all numbers, as bits of type `Bits`, are below `exponent`.
template <typename Bits>
bool below(const std::byte* data, std::int64_t count, Bits magnitude, Bits exponent) {
    Bits largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        Bits bits;
        std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
        largest = std::max(largest, static_cast<Bits>(bits & magnitude));
    }
    return largest < exponent;
}

}  // namespace

std::vector<SourceRow> rows_of(std::span<const WeightRows> parts) {
    std::vector<SourceRow> rows;
    for (const WeightRows& part : parts) {
        for (std::int64_t row = 0; row < part.num_rows; ++row) rows.push_back({&part, row});
    }
    return rows;
}

bool all_finite(const SourceRow& source) {
    const WeightRows& part = *source.part;
    const std::byte* data = part.data + (source.row * part.row_stride + part.first_column) *
                                            static_cast<std::int64_t>(bytes_of(part.dtype));
    if (part.dtype == DType::f32) return below<std::int32_t>(data, part.num_columns, 0x7fffffff, 0x7f800000);
    return below<std::int16_t>(data, part.num_columns, 0x7fff, part.dtype == DType::bf16 ? 0x7f80 : 0x7c00);
}

SourceStream::~SourceStream() {
    for (Run& run : runs_) run.tell();
}

void SourceStream::packed(std::int64_t end) {
    for (; next_ < end; ++next_) {
        const SourceRow& source = rows_[next_];
        const WeightRows* part = source.part;
        if (source.is_zeros() || part->listener == nullptr) continue;
        const auto continues = [&](const Run& run) { return run.part == part && run.end == source.row; };
        if (!continues(runs_[0])) std::swap(runs_[0], runs_[1]);
        Run& run = runs_[0];
        if (!continues(run) || (run.end - run.first) * part->row_stride >= bytes_at_once / 2) {
            run.tell();
            run = {.part = part, .first = source.row, .end = source.row};
        }
        run.end = source.row + 1;
        run.finite = all_finite(source) && run.finite;
    }
}

void SourceStream::Run::tell() {
    if (part == nullptr) return;
    const std::int64_t row_bytes = part->row_stride * bytes_of(part->dtype);
    part->listener->packed(part->data + first * row_bytes, (end - first) * row_bytes, finite);
    part = nullptr;
}

}  // namespace longhaul::kernels
