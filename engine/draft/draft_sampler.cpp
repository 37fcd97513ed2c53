#include "engine/draft/draft_sampler.hpp"

#include <algorithm>
#include <deque>

namespace longhaul::engine {

std::vector<Distribution> DraftSampler::distributions(Logits& logits, std::span<const DraftRow> rows) {
    std::vector<Distribution> all = draw_on_device(logits, rows);
    const auto drawn = [](const Distribution& one) { return !one.ids.empty(); };
    if (std::none_of(all.begin(), all.end(), drawn)) static_cast<void>(logits.all());  // all rows in one transfer
    for (std::size_t r = 0; r < rows.size(); ++r) {
        if (drawn(all[r])) continue;
        pipeline_.set_params(rows[r].sampling);
        const std::span<const float> row = logits.row(static_cast<std::int64_t>(r));
        all[r] = pipeline_.apply(row.first(static_cast<std::size_t>(vocab_size_)), rows[r].context, rows[r].with_q);
    }
    return all;
}

/// Returns an empty distribution for each row that the host has to compute.
std::vector<Distribution> DraftSampler::draw_on_device(Logits& logits, std::span<const DraftRow> rows) {
    std::vector<Distribution> distributions(rows.size());
    if (!logits.can_choose()) return distributions;
    std::int64_t count = 0;
    for (const DraftRow& row : rows) {
        const bool greedy = row.sampling.temperature == 0;
        const auto& [sequence, path] = row.context;
        if (row.num_draws < 1 || greedy ||
            !LogitsPipeline::fits_device(row.sampling, std::ssize(sequence), std::ssize(path)))
            return distributions;
        count = std::max(count, row.num_draws);
    }
    if (count < 1 || count > kernels::max_draws) return distributions;
    std::vector<std::vector<kernels::Drawn>> drawn(rows.size());
    std::vector<std::size_t> lanes_done(rows.size(), 0);
    for (bool left = true; left;) {
        left = false;
        std::vector<kernels::Choice> choices;
        std::deque<std::vector<std::int32_t>> penalised;  // `choices` point into it
        for (std::size_t r = 0; r < rows.size(); ++r) {
            const DraftRow& row = rows[r];
            pipeline_.set_params(row.sampling);
            while (lanes_done[r] < row.lanes.size()) {
                const NoiseRow noise = row.noise.row(row.position, row.lanes[lanes_done[r]++], row.node);
                kernels::Choice choice = pipeline_.choice(row.context, noise, penalised.emplace_back());
                choice.row = static_cast<std::int64_t>(r);
                if (row.noise.is_own() && distributions[r].kept == nullptr)
                    distributions[r].kept = choice.keep = kept_slot();
                choices.push_back(choice);
                if (!choice.penalised.empty()) break;  // penalties modify the row: one choice per row and call
            }
            left = left || lanes_done[r] < row.lanes.size();
        }
        const std::vector<kernels::Drawn> all = logits.draw(choices, count, vocab_size_);
        for (std::size_t i = 0; i < choices.size(); ++i) {
            const auto first = all.begin() + static_cast<std::ptrdiff_t>(i) * (1 + count);
            auto& of_row = drawn[choices[i].row];
            of_row.insert(of_row.end(), first, first + 1 + count);
        }
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const bool known = !drawn[r].empty() && drawn[r].front().token >= 0;
        const std::byte* const kept = distributions[r].kept;
        distributions[r] = known ? distribution_of(drawn[r]) : Distribution{};
        if (known) distributions[r].kept = kept;
    }
    return distributions;
}

/// Device memory for one distribution that the verifier may fetch later.
std::byte* DraftSampler::kept_slot() {
    const std::size_t num_bytes = kernels::KeptDistribution::num_bytes(vocab_size_);
    const auto slots_per_slab = static_cast<std::size_t>(kept_per_slab);
    const std::size_t slot = num_kept_++;
    if (slot == kept_.size() * slots_per_slab) kept_.emplace_back(device_, slots_per_slab * num_bytes);
    return kept_[slot / slots_per_slab].data() + slot % slots_per_slab * num_bytes;
}

}  // namespace longhaul::engine
