// Linear attention on the GPU (delta.cu): what the host prepares once for all layers of a pass, and the memory in which
// the kernels of a layer pass results on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/pass.hpp"
#include "kernels/cuda/staging.hpp"
#include "kernels/host_device.hpp"

namespace longhaul::kernels::cuda {

/// Where a layer finds the convolution's input of a position.
struct DeltaPlace {
    std::byte* page = nullptr;  ///< of scratch slots, or of a sequence; nullptr: this pass
    std::int64_t index = 0;     ///< slot in the page, or row of this pass; see also below

    static DeltaPlace row(std::int64_t row) { return {nullptr, row}; }
    static DeltaPlace slot(std::byte* page, std::int64_t slot) { return {page, slot}; }
    /// Of the last inputs in the page of a sequence.
    static DeltaPlace last(std::byte* page, std::int64_t at) { return {page, -1 - at}; }
    static DeltaPlace before_the_text() { return {nullptr, -1}; }

    [[nodiscard]] LONGHAUL_HOST_DEVICE bool is_zero() const { return page == nullptr && index < 0; }
};

/// Rows that change the state of a sequence, first..first + count - 1 of a list.
struct DeltaText {
    std::byte* page = nullptr;
    std::int32_t first = 0, count = 0;
    std::int64_t begins = 0;  ///< 1: the first row is at position 0, so that the state before it is zero
};

/// A draft node whose change of the state is computed in this pass: because its row is in it, or because it is above
/// one.
struct DeltaStep {
    float* slot = nullptr;              ///< where it begins, with layer 0
    std::int32_t row = 0;               ///< -1: of an earlier pass, no output is wanted
    std::int32_t first = 0, above = 0;  ///< nodes above it, from the text on: indices of steps, in the list of them
    std::int32_t unused = 0;
};

/// The steps of a sequence, those of one depth together.
struct DeltaTree {
    std::byte* page = nullptr;
    std::int32_t first_level = 0, num_levels = 0;  ///< level l has steps levels[l]..levels[l + 1] - 1
};

/// In device memory.
struct DeltaTables {
    const DeltaPlace* rows = nullptr;    ///< [rows], where each is stored: a row of the text in the pass, or a slot
    const DeltaPlace* before = nullptr;  ///< [rows, taps - 1], from the oldest on
    const DeltaText* texts = nullptr;
    const DeltaPlace* of_texts = nullptr;
    const DeltaTree* trees = nullptr;
    const std::int32_t* levels = nullptr;
    const DeltaStep* steps = nullptr;
    const std::int32_t* above = nullptr;
    std::int64_t num_rows = 0, num_texts = 0, num_trees = 0, num_steps = 0;
};

class DeltaPart {
  public:
    /// Upper bound in bytes of a pass whose rows have no ancestors in earlier passes; each of these adds the deltas
    /// of a row.
    static std::int64_t bytes(const DeltaShape& shape, std::int64_t rows);

    /// Sends the tables of the layout's group, unless that was done in this pass.
    const DeltaTables& prepare(const Stream& stream, PinnedRing& ring, const CurrentPass& pass, const KvLayout& layout);

    Workspace queries;  ///< [rows, key heads, key_dim]
    Workspace updates;  ///< [rows, key heads, update_floats], of rows of the text
    Workspace deltas;   ///< [steps, value heads, value_dim]

  private:
    struct GroupTables {
        std::uint64_t prepared = 0;  ///< number of the pass
        DeltaTables tables;
        Workspace memory;
    };
    Parcel parcel_;
    std::deque<GroupTables> groups_;
};

}  // namespace longhaul::kernels::cuda
