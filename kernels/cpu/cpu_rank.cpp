// CpuDevice::rank_positions: scores of all positions, then a selection for each KV head.
#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/kv_pages.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/rank_key.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {
namespace {

/// Pages that a thread scores at a time: a run of keys that the hardware prefetcher can follow.
constexpr std::int64_t pages_of_task = chunk_tokens / page_tokens;

/// The sum of each KV head's queries, of the query type [kv_heads, head_dim].
void add_queries(const KvLayout& layout, const std::byte* q, std::int64_t group_heads, std::byte* to) {
    const DType type = layout.query_type();
    const std::int64_t head_dim = layout.head_dim;
    for (std::int64_t i = 0; i < layout.num_kv_heads * head_dim; ++i) {
        const std::int64_t first = i / head_dim * group_heads * head_dim + i % head_dim;
        float sum = 0.0F;
        for (std::int64_t g = 0; g < group_heads; ++g) sum += load_as_f32(q, type, first + g * head_dim);
        store_rounded(to, type, i, sum);
    }
}

/// A key that most probably is not above that of the last of the `count` best: a little lower than the one of that rank
/// in a sample.
std::uint32_t likely_floor(std::span<const std::uint32_t> keys, std::int64_t count,
                           std::vector<std::uint32_t>& sample) {
    constexpr std::int64_t stride = 16;
    const std::int64_t rank = count / stride * 5 / 4 + 8;
    sample.clear();
    for (std::int64_t i = 0; i < std::ssize(keys); i += stride) sample.push_back(keys[i]);
    if (rank >= std::ssize(sample)) return 0;
    std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<>());
    return sample[rank];
}

/// Chooses positions by their keys; `keys` begins with that of position `first`.
class Chooser {
  public:
    void choose(std::span<const std::uint32_t> keys, std::int64_t first, std::span<std::int32_t> positions) {
        const std::int64_t count = std::ssize(positions);
        collect(keys, likely_floor(keys, count, sample_));
        if (std::ssize(candidates_) < count) collect(keys, 0);
        ranked_ = candidates_;
        std::nth_element(ranked_.begin(), ranked_.begin() + (count - 1), ranked_.end(), std::greater<>());
        const std::uint64_t last = ranked_[count - 1];
        auto* chosen = positions.data();
        for (const std::uint64_t candidate : candidates_) {
            if (candidate >= last) *chosen++ = static_cast<std::int32_t>(first + index_of(candidate));
        }
    }

  private:
    /// Unique, and greater for the lower of two positions with one key.
    static std::uint64_t candidate_of(std::uint32_t key, std::int64_t index) {
        return std::uint64_t{key} << 32 | (UINT32_MAX - static_cast<std::uint32_t>(index));
    }
    static std::int64_t index_of(std::uint64_t candidate) { return UINT32_MAX - static_cast<std::uint32_t>(candidate); }

    void collect(std::span<const std::uint32_t> keys, std::uint32_t floor) {
        candidates_.clear();
        for (std::int64_t i = 0; i < std::ssize(keys); ++i) {
            if (keys[i] >= floor) candidates_.push_back(candidate_of(keys[i], i));
        }
    }

    std::vector<std::uint32_t> sample_;
    std::vector<std::uint64_t> candidates_, ranked_;
};

}  // namespace

void CpuDevice::rank_positions(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                               const PositionRange& range, std::int32_t* positions) {
    check_layout(layout, layer, q_heads, kv_pages_together(layout) > 1);
    check_range(range);
    const std::int64_t heads = layout.num_kv_heads, head_dim = layout.head_dim;
    const std::int64_t first_page = range.first / page_tokens;
    const std::int64_t num_pages = (range.end + page_tokens - 1) / page_tokens - first_page;
    const std::int64_t tasks_of_head = (num_pages + pages_of_task - 1) / pages_of_task;
    const int team = threads_for(heads * num_pages * page_tokens * head_dim, elements_per_thread);

    auto* const keys = attention_.get<std::uint32_t>(heads * num_pages * page_tokens + heads * head_dim +
                                                     team * padded_query(head_dim));
    auto* const words = keys + heads * num_pages * page_tokens;
    auto* const queries = reinterpret_cast<std::byte*>(words + team * padded_query(head_dim));
    AttentionJob job = attention_job(layout, layer, heads);
    job.q = queries;
    const UnitRow row{
        .index = 0, .position = range.end - 1, .in_pages = range.end, .path = nullptr, .first_visible = 0};
    Team::mine().run(team, [&](Member& member) {
        const FlushDenormals flush;
        if (member.index() == 0) add_queries(layout, q, q_heads / heads, queries);
        member.barrier();
        float q_scale = 0;
        float scores[pages_of_task * page_tokens];
        AttentionScratch scratch{};
        scratch.q_words = words + member.index() * padded_query(head_dim);
        scratch.q_scales = &q_scale;
        AttentionUnit unit{&row, 1, -1, range.pages.data(), nullptr, 0, everything};
        const auto [first, end] = member.share_of(heads * tasks_of_head);
        for (std::int64_t task = first; task < end; ++task) {
            if (unit.kv_head != task / tasks_of_head) {
                unit.kv_head = task / tasks_of_head;
                table_.attention_begin(job, unit, scratch);
            }
            const std::int64_t page = task % tasks_of_head * pages_of_task;
            const std::int64_t pages = std::min(pages_of_task, num_pages - page);
            table_.rank_scores(job, unit, first_page + page, pages, scratch, scores);
            std::uint32_t* to = keys + (unit.kv_head * num_pages + page) * page_tokens;
            std::transform(scores, scores + pages * page_tokens, to, rank_key);
        }
        member.barrier();
        Chooser chooser;
        const auto [first_head, end_head] = member.share_of(heads);
        for (std::int64_t h = first_head; h < end_head; ++h) {
            chooser.choose({keys + h * num_pages * page_tokens + range.first % page_tokens,
                            static_cast<std::size_t>(range.end - range.first)},
                           range.first, {positions + h * range.count, static_cast<std::size_t>(range.count)});
        }
    });
}

}  // namespace longhaul::kernels::cpu
