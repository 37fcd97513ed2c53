#include "kernels/delta_rule.hpp"

#include <algorithm>
#include <stdexcept>

#include "kernels/delta_gates.hpp"

namespace longhaul::kernels {
namespace {

constexpr std::int64_t page_tokens = KvLayout::page_tokens;

float* floats_of(std::byte* page) {
    return reinterpret_cast<float*>(page);
}

float* slot_of(const KvLayout& layout, std::span<std::byte* const> pages, std::int64_t slot, std::int64_t layer,
               std::int64_t head) {
    return floats_of(pages[static_cast<std::size_t>(slot / page_tokens)]) +
           layout.delta.slot_offset(layout.num_layers, slot % page_tokens, layer, head);
}

/// Decay and step of one value head, and the update that holds them.
struct UpdateView {
    UpdateView(const DeltaShape& shape, float* update)
        : key(update),
          values(key + shape.key_dim),
          decays(values + shape.values_width()),
          steps(decays + shape.values_per_key) {}

    float* key;
    float* values;
    float* decays;
    float* steps;
};

/// What a row gives beside its change of the states.
struct RowOutput {
    const float* query = nullptr;  ///< nullptr: nothing is wanted
    const float* skip = nullptr;   ///< DeltaWeights::skip of the key head
    float* out = nullptr;
};

/// Changes the states of a key head, [values_per_key, key_dim, value_dim], by one row.
void fold_all(const DeltaKernels& kernels, const DeltaShape& shape, const float* from, float* to, float* update,
              const RowOutput& output) {
    const UpdateView view(shape, update);
    const std::int64_t size = shape.key_dim * shape.value_dim;
    for (std::int64_t i = 0; i < shape.values_per_key; ++i) {
        kernels.fold({.from = from + i * size,
                      .to = to + i * size,
                      .key = view.key,
                      .value = view.values + i * shape.value_dim,
                      .decay = view.decays[i],
                      .step = view.steps[i],
                      .rule = shape.rule,
                      .skip = output.skip == nullptr ? 0.0F : output.skip[i],
                      .query = output.query,
                      .out = output.out + i * shape.value_dim,
                      .key_dim = shape.key_dim,
                      .value_dim = shape.value_dim});
    }
}

/// One key head of one sequence in a pass.
class HeadPass {
  public:
    HeadPass(const DeltaKernels& kernels, const DeltaCall& call, const GroupRows& rows, const DeltaSequence& sequence,
             std::int64_t head, DeltaScratch& scratch)
        : kernels_(kernels),
          call_(call),
          shape_(call.layout.delta),
          rows_(rows),
          sequence_(sequence),
          head_(head),
          scratch_(scratch),
          pages_(rows.sequences[static_cast<std::size_t>(sequence.sequence)]),
          state_(floats_of(pages_.pages.front()) + shape_.head_offset(call.layer, head)),
          last_(state_ + shape_.state_floats()) {
        scratch_.prepare(shape_, sequence.max_depth);
        for (std::int64_t t = 0; t + 1 < shape_.taps; ++t) window_.push_back(last_ + t * shape_.channels());
    }

    void run() {
        if (!sequence_.text.empty() && row_of(sequence_.text.front()).position == 0)
            std::fill_n(state_, shape_.head_floats(), 0.0F);
        for (const std::int32_t row : sequence_.text) {
            window_.push_back(input(row));
            update_of(row, std::span(window_).last(static_cast<std::size_t>(shape_.taps)), scratch_.update());
            fold_all(kernels_, shape_, state_, state_, scratch_.update(), output(row));
        }
        for (const DeltaNode& node : sequence_.nodes) run_node(node);
        keep_last();
    }

  private:
    [[nodiscard]] const AttentionRow& row_of(std::int32_t row) const {
        return rows_.rows[static_cast<std::size_t>(row)];
    }
    [[nodiscard]] const float* input(std::int32_t row) const {
        return call_.inputs + row * call_.inputs_stride + head_ * shape_.channels();
    }
    [[nodiscard]] RowOutput output(std::int32_t row) const {
        const float* const skip = call_.weights.skip;
        return {.query = scratch_.query(),
                .skip = skip == nullptr ? nullptr : skip + head_ * shape_.values_per_key,
                .out = call_.out + (row * shape_.num_key_heads + head_) * shape_.values_width()};
    }
    [[nodiscard]] float* slot(std::int32_t number) const {
        return slot_of(call_.layout, pages_.scratch_pages, number, call_.layer, head_);
    }

    /// The query, and the update of one row, from its inputs and those before it.
    void update_of(std::int32_t row, std::span<const float* const> inputs, float* update) {
        const std::int64_t first = head_ * shape_.values_per_key, heads = shape_.num_value_heads();
        const float* const bias = call_.weights.filter_bias;
        kernels_.convolve({.rows = inputs.data(),
                           .filter = call_.weights.filter + head_ * shape_.taps * shape_.channels(),
                           .bias = bias == nullptr ? nullptr : bias + head_ * shape_.channels(),
                           .rule = shape_.rule,
                           .taps = shape_.taps,
                           .key_dim = shape_.key_dim,
                           .values_width = shape_.values_width(),
                           .query = scratch_.query(),
                           .update = update});
        const UpdateView view(shape_, update);
        const float* const gates = call_.gates + row * shape_.gates_width();
        for (std::int64_t i = 0; i < shape_.values_per_key; ++i) {
            const std::int64_t h = first + i;
            const float rate = gates[h] + call_.weights.step_bias[h];
            view.decays[i] = decay_of(call_.weights.log_rate[h], rate);
            view.steps[i] = shape_.rule == StateRule::sum ? step_of_rate(rate) : step_of(gates[heads + h]);
        }
    }

    /// States that lie between the text and a node are computed again unless they are those of the node before.
    void run_node(const DeltaNode& node) {
        const auto depth = static_cast<std::int64_t>(node.path.size());
        const auto shared = std::mismatch(node.path.begin(), node.path.end() - 1, known_.begin(), known_.end()).first -
                            node.path.begin();
        known_.assign(node.path.begin(), node.path.end());
        for (std::int64_t d = shared + 1; d < depth; ++d)
            fold_all(kernels_, shape_, behind(d - 1), scratch_.level(d), slot(node.path[d - 1]) + shape_.channels(),
                     {});
        std::vector<const float*> inputs = window_;
        for (std::int64_t d = 0; d + 1 < depth; ++d) inputs.push_back(slot(node.path[d]));
        inputs.push_back(input(node.row));
        float* const own = slot(node.path.back());
        update_of(node.row, std::span(inputs).last(static_cast<std::size_t>(shape_.taps)), own + shape_.channels());
        std::copy_n(input(node.row), shape_.channels(), own);
        fold_all(kernels_, shape_, behind(depth - 1), scratch_.level(depth), own + shape_.channels(), output(node.row));
    }
    [[nodiscard]] const float* behind(std::int64_t depth) const { return depth == 0 ? state_ : scratch_.level(depth); }

    /// Oldest first, so none is overwritten before it has moved.
    void keep_last() {
        const auto* const last = window_.data() + window_.size() - (shape_.taps - 1);
        for (std::int64_t t = 0; t + 1 < shape_.taps; ++t)
            if (last[t] != last_ + t * shape_.channels())
                std::copy_n(last[t], shape_.channels(), last_ + t * shape_.channels());
    }

    const DeltaKernels& kernels_;
    const DeltaCall& call_;
    const DeltaShape& shape_;
    const GroupRows& rows_;
    const DeltaSequence& sequence_;
    std::int64_t head_;
    DeltaScratch& scratch_;
    const AttentionSequence& pages_;
    float* state_;
    float* last_;                       ///< inputs of the convolution at the last taps - 1 positions
    std::vector<const float*> window_;  ///< these, then those of this pass's text
    std::vector<std::int32_t> known_;   ///< path of the node whose states the levels hold
};

}  // namespace

std::vector<DeltaSequence> delta_sequences(const GroupRows& rows) {
    std::vector<DeltaSequence> sequences(rows.sequences.size());
    for (std::size_t r = 0; r < rows.rows.size(); ++r) {
        const AttentionRow& row = rows.rows[r];
        DeltaSequence& of = sequences[static_cast<std::size_t>(row.sequence)];
        of.sequence = row.sequence;
        const std::int64_t depth = row.position + 1 - row.in_pages;
        if (depth == 0) {
            of.text.push_back(static_cast<std::int32_t>(r));
            continue;
        }
        of.nodes.push_back({static_cast<std::int32_t>(r), {row.path, static_cast<std::size_t>(depth)}});
        of.max_depth = std::max(of.max_depth, depth);
    }
    for (DeltaSequence& of : sequences)
        std::sort(of.nodes.begin(), of.nodes.end(), [](const DeltaNode& a, const DeltaNode& b) {
            return std::lexicographical_compare(a.path.begin(), a.path.end(), b.path.begin(), b.path.end());
        });
    std::erase_if(sequences, [](const DeltaSequence& of) { return of.text.empty() && of.nodes.empty(); });
    return sequences;
}

void DeltaScratch::prepare(const DeltaShape& shape, std::int64_t max_depth) {
    update_ = shape.key_dim;
    levels_ = update_ + (shape.update_floats() + 15) / 16 * 16;
    of_level_ = shape.state_floats();
    const auto wanted = static_cast<std::size_t>(levels_ + max_depth * of_level_);
    if (memory_.size() < wanted) memory_.resize(wanted);
}

void mix_head(const DeltaKernels& kernels, const DeltaCall& call, const GroupRows& rows, const DeltaSequence& sequence,
              std::int64_t head, DeltaScratch& scratch) {
    HeadPass(kernels, call, rows, sequence, head, scratch).run();
}

void accept_head(const DeltaKernels& kernels, const KvLayout& layout, std::int64_t layer, std::int64_t head,
                 std::byte* state, std::span<std::byte* const> scratch_pages, std::span<const std::int32_t> slots) {
    const DeltaShape& shape = layout.delta;
    float* const states = floats_of(state) + shape.head_offset(layer, head);
    float* const last = states + shape.state_floats();
    const std::int64_t width = shape.channels(), kept = shape.taps - 1;
    for (const std::int32_t number : slots) {
        float* const slot = slot_of(layout, scratch_pages, number, layer, head);
        fold_all(kernels, shape, states, states, slot + width, {});
        std::copy(last + width, last + kept * width, last);
        std::copy_n(slot, width, last + (kept - 1) * width);
    }
}

void check_delta(const KvLayout& layout, std::int64_t layer, const GroupRows& rows, std::int64_t inputs_stride) {
    const DeltaShape& shape = layout.delta;
    if (shape.num_key_heads < 1 || shape.values_per_key < 1 || shape.taps < 2 || shape.key_dim % 16 != 0 ||
        shape.value_dim % 16 != 0 || layer < 0 || layer >= layout.num_layers ||
        inputs_stride < shape.num_key_heads * shape.channels())
        throw std::logic_error("delta rule: shapes that do not fit together");
    for (std::size_t r = 0; r < rows.rows.size(); ++r) {
        if (rows.slots[r].page == nullptr) throw std::logic_error("delta rule: a row that is stored nowhere");
    }
}

}  // namespace longhaul::kernels
