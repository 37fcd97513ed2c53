#include "engine/draft/layer_drafter.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

namespace longhaul::engine {

std::vector<std::int32_t> row_range(std::int64_t first, std::int64_t end) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(end - first));
    std::iota(all.begin(), all.end(), static_cast<std::int32_t>(first));
    return all;
}

std::int64_t LayerSequence::missing_states(std::span<const std::int32_t> context) const {
    const std::int64_t states = std::ssize(context) - 1;
    if (is_ready(context)) return 0;
    const std::int64_t missing = states - std::min(states, first_lost());
    return one_text_ ? missing : std::min(missing, max_catching_up);
}

bool LayerSequence::restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> /*context*/) {
    return std::all_of(deltas.begin(), deltas.end(),
                       [&](const DrafterState& delta) { return delta.kind == kind_ && delta.rows.empty(); });
}

KvSequence* LayerSequence::restore_layer_kv(std::int64_t first, std::int64_t end) {
    if (one_text_ && first > 0) return nullptr;
    restart(first);
    reserve(end - first, 0);
    return kv_.get();
}

/// The last of `count` tokens belongs to a pair with a state behind them, which is another one in the other text.
std::int64_t LayerSequence::prefix_for_others(std::int64_t count) const {
    const KvSequence* const pairs = beginning();
    return pairs != nullptr && pairs->keeps_all() ? std::min(count - 1, pairs->committed()) : 0;
}

void LayerSequence::copy_prefix(const SequenceDrafter& source, std::span<const std::int32_t> /*context*/,
                                std::int64_t count) {
    if (origin_ != 0) restart(0);
    pending_.clear();
    first_row_ = num_pending_ = 0;
    if (count <= kv_->committed()) return kv_->set_committed(count);
    reserve(count - kv_->committed(), 0);
    kv_->copy_positions(*static_cast<const LayerSequence&>(source).beginning(), count, count);
}

bool LayerSequence::keep_prefix(std::int64_t count) {
    pending_.clear();
    first_row_ = num_pending_ = 0;
    if (prefix_for_others(count) < count - 1) return false;
    if (origin_ != 0) kv_ = std::move(beginning_);
    origin_ = 0;
    if (kv_.use_count() != 1) return true;
    std::atomic_thread_fence(std::memory_order_acquire);  // pages that a checkpoint writer has read are used again
    kv_->trim(count - 1);
    return true;
}

/// Row 0 of `states`, `count` times.
static HiddenStates repeated(kernels::Device& device, const HiddenStates& states, std::int64_t count) {
    HiddenStates rows = states.another(count, states.width());
    device.gather(states.data(), std::vector<std::int32_t>(static_cast<std::size_t>(count), 0), states.width(),
                  rows.data());
    return rows;
}

bool LayerSequence::is_small_gap(std::int64_t first) const {
    constexpr std::int64_t max_gap = 64;
    return !one_text_ && kv_->committed() > 0 && first > known() && first - known() <= max_gap;
}

void LayerSequence::keep(std::int64_t first, HiddenStates states) {
    if (num_pending_ == 0 && first >= origin_ && first <= known()) {
        kv_->set_committed(first - origin_);
    } else if (is_small_gap(first)) {
        keep(known(), repeated(pool_.device(), states, first - known()));
    } else if (first != known()) {
        restart(first);
    }
    num_pending_ += states.num_rows();
    pending_.push_back(std::move(states));
    if (one_text_ || num_pending_ <= max_catching_up) return;
    // Whole pieces are forgotten: a prompt's chunk is one, and is read at once.
    std::int64_t skipped = 0;
    std::deque<HiddenStates> last;
    while (!pending_.empty() && num_pending_ - skipped > max_catching_up && pending_.size() > 1) {
        skipped += pending_.front().num_rows() - std::exchange(first_row_, 0);
        pending_.pop_front();
    }
    if (skipped == 0) return;
    const std::int64_t origin = first_pending() + skipped, left = num_pending_ - skipped;
    last.swap(pending_);
    restart(origin);
    pending_ = std::move(last);
    num_pending_ = left;
}

void LayerSequence::copy_pending(kernels::Device& device, std::int64_t count, float* to) const {
    std::int64_t first = first_row_;
    for (auto piece = pending_.begin(); count > 0; ++piece, first = 0) {
        const std::int64_t rows = std::min(count, piece->num_rows() - first);
        device.gather(piece->data(), row_range(first, first + rows), piece->width(), to);
        to += rows * piece->width();
        count -= rows;
    }
}

void LayerSequence::add_pending(std::span<const std::int32_t> context, std::int64_t count, std::int32_t index,
                                std::vector<ForwardRow>& rows) const {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t slot = kv_->committed() + i;
        ForwardRow row = text_row(context[origin_ + slot + 1], slot, index);
        row.position = origin_ + slot;
        rows.push_back(std::move(row));
    }
}

void LayerSequence::commit_pending(std::int64_t count) {
    kv_->set_committed(kv_->committed() + count);
    num_pending_ -= count;
    first_row_ += count;
    while (!pending_.empty() && first_row_ >= pending_.front().num_rows()) {
        first_row_ -= pending_.front().num_rows();
        pending_.pop_front();
    }
}

void LayerSequence::reserve(std::int64_t more, std::int64_t scratch) {
    if (!kv_->reserve(kv_->committed() + more) || !kv_->reserve_scratch(scratch)) throw std::bad_alloc();
}

void LayerSequence::restart(std::int64_t origin) {
    if (origin == 0) beginning_.reset();
    if (origin > 0 && origin_ == 0 && kv_ != nullptr && kv_->committed() > 0) beginning_ = std::move(kv_);
    kv_ = std::make_shared<KvSequence>(pool_);
    origin_ = origin;
    pending_.clear();
    first_row_ = num_pending_ = 0;
}

LayerDrafter::LayerDrafter(const DraftContext& context)
    : target_(*context.target),
      layer_(*context.options.layer),
      one_text_(context.options.decides_text),
      adapts_(context.options.adapts_tree()),
      kind_(context.options.method->name + "/" + std::to_string(layer_.fingerprint())),
      pool_(target_.device(), layer_.kv_layout(), std::numeric_limits<std::int64_t>::max()),
      sampler_(target_.device(), target_.config().vocab_size) {}

std::optional<DraftLayerKvKind> LayerDrafter::layer_kv_kind() const {
    const Split& split = layer_.split();
    const ModelConfig& shape = layer_.config().layer;
    const HeadShape heads = shape.heads(shape.layers.front());
    return DraftLayerKvKind{.kind = kind_,
                            .num_kv_heads = heads.num_kv_heads,
                            .head_dim = heads.dim,
                            .first_kv_head = split.first_kv_head_of(heads),
                            .num_kv_heads_here = split.kv_heads(heads),
                            .writes_kv = layer_.writes_kv()};
}

HiddenStates LayerDrafter::gathered(const HiddenStates& from, std::span<const std::int32_t> rows) const {
    HiddenStates states = target_.hidden_states(std::ssize(rows));
    if (!rows.empty()) target_.device().gather(from.data(), rows, from.width(), states.data());
    return states;
}

void LayerDrafter::copy_rows(const HiddenStates& from, std::int64_t first, std::int64_t count, const HiddenStates& to,
                             std::int64_t to_row) const {
    if (count == 0) return;
    target_.device().gather(from.data(), row_range(first, first + count), to.width(), to.data() + to_row * to.width());
}

HiddenStates LayerDrafter::compute(std::span<const PendingPairs> pairs) {
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<std::int32_t> last;
    for (const PendingPairs& some : pairs) {
        some.sequence->reserve(some.count, 0);
        some.sequence->add_pending(some.context, some.count, static_cast<std::int32_t>(views.size()), rows);
        views.push_back(some.sequence->kv().view());
        last.push_back(static_cast<std::int32_t>(rows.size()) - 1);
    }
    HiddenStates states = target_.hidden_states(std::ssize(rows));
    std::int64_t row = 0;
    for (const PendingPairs& some : pairs) {
        some.sequence->copy_pending(target_.device(), some.count, states.data() + row * states.width());
        row += some.count;
    }
    const HiddenStates out = layer_.forward(rows, views, states);
    for (const PendingPairs& some : pairs) some.sequence->commit_pending(some.count);
    return gathered(out, last);
}

void LayerDrafter::observe(std::span<const Observation> observations, std::span<const HiddenStates> taps) {
    std::vector<PendingPairs> chunks;
    for (const Observation& seen : observations) {
        std::vector<std::int32_t> rows;
        std::int64_t first = seen.first_position;
        if (first >= 0) {
            rows = row_range(seen.first_row, seen.first_row + seen.num_rows);
        } else {  // the root and the accepted nodes, each with the token that was emitted after it
            first = std::ssize(seen.context) - 1 - seen.num_new;
            rows.push_back(static_cast<std::int32_t>(seen.first_row));
            for (const std::int32_t node : seen.path) rows.push_back(rows.front() + node);
            rows.resize(static_cast<std::size_t>(seen.num_new));
        }
        if (rows.empty()) continue;
        auto& sequence = static_cast<LayerSequence&>(*seen.sequence);
        sequence.keep(first, layer_.states_of(taps, rows));
        // What is pending is computed by the first pass of the next draft: a few pairs, not a chunk of a prompt.
        const std::int64_t rest = sequence.is_ready(seen.context) ? 1 : 0;
        if (seen.first_position >= 0 && sequence.num_pending() > rest)
            chunks.push_back({&sequence, seen.context, sequence.num_pending() - rest});
    }
    if (!chunks.empty()) read(chunks);
}

namespace {

/// The draws of the nodes that the trees expand, in order. They point into `paths`.
std::vector<DraftRow> draws_of(std::span<const LayerTree> trees, std::deque<std::vector<std::int32_t>>& paths) {
    std::vector<DraftRow> draws;
    for (const LayerTree& tree : trees) {
        const Proposal& proposal = *tree.proposal;
        for (std::size_t i = 0; i < tree.growth->wanted().size(); ++i) {
            const std::int32_t node = tree.growth->wanted()[i].node;
            std::vector<std::int32_t>& path = paths.emplace_back(tree.tree->path_to(node));
            for (std::int32_t& at : path) at = tree.tree->token[at];
            DraftRow& row = draws.emplace_back(DraftRow{.context = {proposal.context, path},
                                                        .sampling = *proposal.sampling,
                                                        .noise = proposal.noise,
                                                        .position = std::ssize(proposal.context) + std::ssize(path),
                                                        .node = node,
                                                        .lanes = tree.growth->lanes_of(i),
                                                        .num_draws = tree.growth->num_draws()});
            if (row.sampling.temperature == 0) row.sampling.temperature = 1;
            if (row.noise.is_own()) row.noise.kind = Noise::Kind::silent;
        }
    }
    return draws;
}

}  // namespace

void LayerDrafter::grow(std::span<LayerTree> trees, Logits& logits) {
    std::deque<std::vector<std::int32_t>> paths;
    const std::vector<DraftRow> draws = draws_of(trees, paths);
    std::vector<Distribution> drafts = sampler_.distributions(logits, draws);
    std::int32_t row = 0;
    for (LayerTree& tree : trees) {
        const std::vector<TreeGrowth::Wanted> expanded(tree.growth->wanted().begin(), tree.growth->wanted().end());
        tree.growth->grow(std::span(drafts).subspan(row, expanded.size()));
        const TokenTree& nodes = *tree.tree;
        tree.from.resize(static_cast<std::size_t>(nodes.num_nodes()), -1);
        for (std::size_t i = 0; i < expanded.size(); ++i, ++row) {
            for (std::int32_t node = expanded[i].node + 1; node < nodes.num_nodes(); ++node) {
                if (nodes.parent[node] == expanded[i].node) tree.from[node] = row;
            }
        }
    }
}

}  // namespace longhaul::engine
