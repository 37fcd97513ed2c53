// CpuDevice::rank_positions: scores of all positions, then a selection for each KV head.
#include <algorithm>
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

/// The best positions seen so far, at most twice as many as wanted: what is not above the worst of a full set cannot be
/// among them, so most positions take one comparison.
class Best {
  public:
    explicit Best(std::int64_t count) : count_(count) { kept_.reserve(2 * count); }

    /// Positions must ascend.
    void add(std::int64_t first, const float* scores, std::int64_t num_scores) {
        for (std::int64_t i = 0; i < num_scores; ++i) {
            const std::uint32_t key = rank_key(scores[i]);
            if (key <= worst_) continue;
            // Unique, and greater for the lower of two positions with one score.
            kept_.push_back(std::uint64_t{key} << 32 | (UINT32_MAX - static_cast<std::uint32_t>(first + i)));
            if (std::ssize(kept_) == 2 * count_) drop();
        }
    }
    void write_ascending(std::int32_t* positions) {
        if (std::ssize(kept_) > count_) drop();
        std::transform(kept_.begin(), kept_.end(), positions, [](std::uint64_t entry) {
            return static_cast<std::int32_t>(UINT32_MAX - static_cast<std::uint32_t>(entry));
        });
        std::sort(positions, positions + count_);
    }

  private:
    void drop() {
        std::nth_element(kept_.begin(), kept_.begin() + (count_ - 1), kept_.end(), std::greater<>());
        kept_.resize(count_);
        worst_ = static_cast<std::uint32_t>(kept_.back() >> 32);
    }

    std::int64_t count_;
    std::uint32_t worst_ = 0;  ///< key of the last position of a full set; no score has key 0
    std::vector<std::uint64_t> kept_;
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

    float* const scores = attention_.get<float>(heads * num_pages * page_tokens + (heads + team) * head_dim);
    auto* const queries = reinterpret_cast<std::byte*>(scores + heads * num_pages * page_tokens);
    auto* const words = reinterpret_cast<std::uint32_t*>(queries) + heads * head_dim;
    AttentionJob job = attention_job(layout, layer, heads);
    job.q = queries;
    const UnitRow row{.index = 0, .position = range.end - 1, .in_pages = range.end, .path = nullptr};
    Team::mine().run(team, [&](Member& member) {
        const FlushDenormals flush;
        if (member.index() == 0) add_queries(layout, q, q_heads / heads, queries);
        member.barrier();
        float q_scale = 0;
        AttentionScratch scratch{};
        scratch.q_words = words + member.index() * head_dim;
        scratch.q_scales = &q_scale;
        AttentionUnit unit{&row, 1, -1, range.pages.data(), nullptr, everything};
        const auto [first, end] = member.share_of(heads * tasks_of_head);
        for (std::int64_t task = first; task < end; ++task) {
            if (unit.kv_head != task / tasks_of_head) {
                unit.kv_head = task / tasks_of_head;
                table_.attention_begin(job, unit, scratch);
            }
            const std::int64_t page = task % tasks_of_head * pages_of_task;
            table_.rank_scores(job, unit, first_page + page, std::min(pages_of_task, num_pages - page), scratch,
                               scores + (unit.kv_head * num_pages + page) * page_tokens);
        }
        member.barrier();
        const auto [first_head, end_head] = member.share_of(heads);
        for (std::int64_t h = first_head; h < end_head; ++h) {
            Best best(range.count);
            best.add(range.first, scores + h * num_pages * page_tokens + range.first % page_tokens,
                     range.end - range.first);
            best.write_ascending(positions + h * range.count);
        }
    });
}

}  // namespace longhaul::kernels::cpu
