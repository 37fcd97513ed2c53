// What the host prepares for linear attention on the GPU, once for all layers of a pass (delta_part.hpp).
#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "kernels/cuda/delta_part.hpp"
#include "kernels/delta_rule.hpp"

namespace longhaul::kernels::cuda {
namespace {

struct HostTables {
    std::vector<DeltaPlace> rows, before, of_texts;
    std::vector<DeltaText> texts;
    std::vector<DeltaTree> trees;
    std::vector<std::int32_t> levels, above;
    std::vector<DeltaStep> steps;
};

/// Adds what the rows of a sequence need.
class SequenceTables {
  public:
    SequenceTables(const GroupRows& rows, const DeltaSequence& sequence, const KvLayout& layout, HostTables& to)
        : of_(sequence),
          kept_(layout.delta.taps - 1),
          slot_floats_(layout.delta.slot_offset(layout.num_layers, 1, 0, 0)),
          pages_(rows.sequences[static_cast<std::size_t>(sequence.sequence)]),
          page_(pages_.pages.front()),
          to_(to) {
        const auto begins = [&](std::int32_t row) { return rows.rows[static_cast<std::size_t>(row)].position == 0; };
        const bool from_zero = !of_.text.empty() && begins(of_.text.front());
        for (std::int64_t t = 0; t < kept_; ++t)
            window_.push_back(from_zero ? DeltaPlace::before_the_text() : DeltaPlace::last(page_, t));
        add_text(from_zero);
        for (const DeltaNode& node : of_.nodes) row_of_[node.path.back()] = node.row;
        for (const DeltaNode& node : of_.nodes) add_node(node);
        add_tree();
    }

  private:
    [[nodiscard]] DeltaPlace slot(std::int32_t number) const {
        constexpr std::int32_t page_tokens = KvLayout::page_tokens;
        return DeltaPlace::slot(pages_.scratch_pages[static_cast<std::size_t>(number / page_tokens)],
                                number % page_tokens);
    }
    void set_before(std::int32_t row, const std::vector<DeltaPlace>& window) {
        std::copy(window.end() - kept_, window.end(), to_.before.begin() + row * kept_);
    }

    void add_text(bool from_zero) {
        if (of_.text.empty()) return;
        to_.texts.push_back({page_, static_cast<std::int32_t>(to_.of_texts.size()),
                             static_cast<std::int32_t>(of_.text.size()), from_zero ? 1 : 0});
        for (const std::int32_t row : of_.text) {
            set_before(row, window_);
            window_.push_back(DeltaPlace::row(row));
            to_.rows[static_cast<std::size_t>(row)] = window_.back();
            to_.of_texts.push_back(window_.back());
        }
    }

    void add_node(const DeltaNode& node) {
        std::vector<DeltaPlace> window(window_.end() - kept_, window_.end());
        for (std::size_t d = 0; d < node.path.size(); ++d) {
            const std::int32_t number = node.path[d];
            const auto found = row_of_.find(number);
            const std::int32_t row = found == row_of_.end() ? -1 : found->second;
            if (d + 1 < node.path.size()) window.push_back(row < 0 ? slot(number) : DeltaPlace::row(row));
            if (depths_.size() <= d) depths_.resize(d + 1);
            depths_[d].try_emplace(number, Step{row, node.path.first(d)});
        }
        set_before(node.row, window);
        to_.rows[static_cast<std::size_t>(node.row)] = slot(node.path.back());
    }

    void add_tree() {
        if (depths_.empty()) return;
        to_.trees.push_back(
            {page_, static_cast<std::int32_t>(to_.levels.size()), static_cast<std::int32_t>(depths_.size())});
        std::map<std::int32_t, std::int32_t> step_of;  // by slot
        for (const auto& depth : depths_) {
            to_.levels.push_back(static_cast<std::int32_t>(to_.steps.size()));
            for (const auto& [number, step] : depth) {
                step_of[number] = static_cast<std::int32_t>(to_.steps.size());
                const DeltaPlace at = slot(number);
                to_.steps.push_back({reinterpret_cast<float*>(at.page) + at.index * slot_floats_, step.row,
                                     static_cast<std::int32_t>(to_.above.size()),
                                     static_cast<std::int32_t>(step.above.size()), 0});
                for (const std::int32_t above : step.above) to_.above.push_back(step_of.at(above));
            }
        }
        to_.levels.push_back(static_cast<std::int32_t>(to_.steps.size()));
    }

    struct Step {
        std::int32_t row;
        std::span<const std::int32_t> above;  ///< slots
    };
    const DeltaSequence& of_;
    std::int64_t kept_, slot_floats_;  ///< of all layers
    const AttentionSequence& pages_;
    std::byte* page_;
    HostTables& to_;
    std::vector<DeltaPlace> window_;                    ///< last inputs, then those of this pass's text
    std::map<std::int32_t, std::int32_t> row_of_;       ///< by slot, of nodes in this pass
    std::vector<std::map<std::int32_t, Step>> depths_;  ///< steps by slot
};

HostTables host_tables(const GroupRows& rows, const KvLayout& layout) {
    HostTables tables;
    tables.rows.resize(rows.rows.size());
    tables.before.resize(rows.rows.size() * static_cast<std::size_t>(layout.delta.taps - 1));
    for (const DeltaSequence& sequence : delta_sequences(rows)) SequenceTables(rows, sequence, layout, tables);
    return tables;
}

}  // namespace

std::int64_t DeltaPart::bytes(const DeltaShape& shape, std::int64_t rows) {
    const std::int64_t floats = shape.num_key_heads * (shape.key_dim + shape.update_floats() + shape.values_width());
    return rows * floats * std::int64_t{sizeof(float)};
}

const DeltaTables& DeltaPart::prepare(const Stream& stream, PinnedRing& ring, const CurrentPass& pass,
                                      const KvLayout& layout) {
    while (std::ssize(groups_) <= layout.group) groups_.emplace_back();
    GroupTables& of = groups_[static_cast<std::size_t>(layout.group)];
    if (of.prepared == pass.number()) return of.tables;
    const HostTables host = host_tables(pass.on_host().group(layout.group), layout);
    parcel_.clear();
    const auto add = [&](const auto& list) { return parcel_.add(std::span(list)); };
    const std::size_t rows = add(host.rows), before = add(host.before), texts = add(host.texts),
                      of_texts = add(host.of_texts), trees = add(host.trees), levels = add(host.levels),
                      steps = add(host.steps), above = add(host.above);
    const std::span<const std::byte> bytes = parcel_.bytes();
    auto* const at = of.memory.get<std::byte>(stream, std::ssize(bytes));
    ring.send(at, bytes.data(), bytes.size());
    of.tables = {reinterpret_cast<const DeltaPlace*>(at + rows),
                 reinterpret_cast<const DeltaPlace*>(at + before),
                 reinterpret_cast<const DeltaText*>(at + texts),
                 reinterpret_cast<const DeltaPlace*>(at + of_texts),
                 reinterpret_cast<const DeltaTree*>(at + trees),
                 reinterpret_cast<const std::int32_t*>(at + levels),
                 reinterpret_cast<const DeltaStep*>(at + steps),
                 reinterpret_cast<const std::int32_t*>(at + above),
                 std::ssize(host.rows),
                 std::ssize(host.texts),
                 std::ssize(host.trees),
                 std::ssize(host.steps)};
    of.prepared = pass.number();
    return of.tables;
}

}  // namespace longhaul::kernels::cuda
