// Attention of CpuDevice: cuts a call into units (attention.hpp) and deals them out.
//
// Many units (prefill, trees, batches): a thread takes a unit and walks through its chunks. Few units (one row at a
// long context): chunks are dealt out too, in waves, and merged after each wave. Chunks are independent and merge left
// to right either way, so both give the same bits.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/kv_pages.hpp"
#include "kernels/cpu/share.hpp"
#include "kernels/flush_denormals.hpp"

namespace longhaul::kernels::cpu {
namespace {

constexpr std::int64_t units_per_thread = 8;         ///< from here on threads walk whole units
constexpr std::int64_t chunks_per_thread = 16;       ///< of a wave: an uneven end costs a sixteenth
constexpr std::int64_t work_per_thread = 128 << 10;  ///< multiply-adds worth a fork

/// A unit and the wave's bookkeeping.
struct PlannedUnit {
    AttentionUnit unit;
    std::int64_t num_chunks;
    std::int64_t first_task;  ///< of its chunks, in the list of all
};

struct Plan {
    std::vector<UnitRow> rows;
    std::vector<PlannedUnit> units;
    std::int64_t num_tasks = 0;
    std::int64_t tile_rows = 0;  ///< of the largest unit
    std::int64_t work = 0;       ///< multiply-adds, roughly
};

/// Rows of one sequence stand together, in ascending order of what they read from pages (tiles rely on it).
Plan plan_of(const KvLayout& layout, std::span<const AttentionSequence> sequences, std::span<const AttentionRow> rows,
             std::int64_t group_heads) {
    std::vector<std::int64_t> order(rows.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    const auto row_at = [&](std::int64_t index) -> const AttentionRow& {
        return rows[static_cast<std::size_t>(index)];
    };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        const AttentionRow& left = row_at(a);
        const AttentionRow& right = row_at(b);
        if (left.sequence != right.sequence) return left.sequence < right.sequence;
        if (left.in_pages != right.in_pages) return left.in_pages < right.in_pages;
        return left.position < right.position;
    });
    Plan plan;
    plan.rows.reserve(rows.size());
    for (const std::int64_t index : order) {
        const AttentionRow& row = row_at(index);
        plan.rows.push_back({index, row.position, row.in_pages, row.path});
    }
    const std::int64_t rows_of_unit = std::max<std::int64_t>(1, block_rows / group_heads);
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    for (std::int64_t first = 0, end = 0; first < num_rows; first = end) {
        const std::int32_t sequence = row_at(order[static_cast<std::size_t>(first)]).sequence;
        std::int64_t last_position = 0;
        for (end = first; end < num_rows && end - first < rows_of_unit; ++end) {
            const AttentionRow& row = row_at(order[static_cast<std::size_t>(end)]);
            if (row.sequence != sequence) break;
            last_position = std::max(last_position, row.position);
        }
        const std::int64_t num_chunks = last_position / chunk_tokens + 1;
        const std::int64_t tile_rows = (end - first) * group_heads;
        plan.tile_rows = std::max(plan.tile_rows, tile_rows);
        for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
            const AttentionSequence& memory = sequences[static_cast<std::size_t>(sequence)];
            const AttentionUnit unit{.rows = plan.rows.data() + first,
                                     .num_rows = end - first,
                                     .kv_head = head,
                                     .pages = memory.pages.data(),
                                     .scratch_pages = memory.scratch_pages.data()};
            plan.units.push_back({unit, num_chunks, plan.num_tasks});
            plan.num_tasks += num_chunks;
            plan.work += 2 * std::max<std::int64_t>(4, tile_rows) * (last_position + 1) * layout.head_dim;
        }
    }
    return plan;
}

std::int64_t round_up(std::int64_t value) {
    return (value + lanes - 1) / lanes * lanes;
}

/// Sizes, in floats, of what a unit of `tile_rows` rows needs.
struct Sizes {
    std::int64_t tile_rows;
    std::int64_t head_dim;
    std::int64_t padded_dim;

    [[nodiscard]] std::int64_t softmax() const { return 2 * round_up(tile_rows) + tile_rows * padded_dim; }
    [[nodiscard]] std::int64_t scratch() const {
        return round_up(tile_rows * head_dim) + tile_rows * (2 * chunk_tokens + page_tokens);
    }
    [[nodiscard]] Softmax softmax_at(float* memory) const {
        return {memory, memory + round_up(tile_rows), memory + 2 * round_up(tile_rows)};
    }
    [[nodiscard]] AttentionScratch scratch_at(float* memory) const {
        float* scores = memory + round_up(tile_rows * head_dim);
        float* p_words = scores + tile_rows * chunk_tokens;
        return {reinterpret_cast<std::uint32_t*>(memory), scores, reinterpret_cast<std::uint32_t*>(p_words),
                p_words + tile_rows * chunk_tokens};
    }
};

/// One call: what to compute and with what.
struct Call {
    const KernelTable& table;
    const AttentionJob& job;
    const Plan& plan;
    Sizes sizes;
    int team;
    Workspace& workspace;

    void unit_by_unit() const {
        const std::int64_t per_thread = sizes.scratch() + 2 * sizes.softmax();
        auto* memory = workspace.get<float>(per_thread * team);
        const auto num_units = static_cast<std::int64_t>(plan.units.size());
#pragma omp parallel num_threads(team) if (team > 1)
        {
            const FlushDenormals flush;
            float* mine = memory + per_thread * omp_get_thread_num();
            const AttentionScratch scratch = sizes.scratch_at(mine);
            const Softmax result = sizes.softmax_at(mine + sizes.scratch());
            const Softmax state = sizes.softmax_at(mine + sizes.scratch() + sizes.softmax());
#pragma omp for schedule(dynamic)
            for (std::int64_t u = 0; u < num_units; ++u) {
                const PlannedUnit& planned = plan.units[static_cast<std::size_t>(u)];
                table.attention_begin(job, planned.unit, scratch);
                for (std::int64_t chunk = 0; chunk < planned.num_chunks; ++chunk) {
                    table.attention_chunk(job, planned.unit, chunk, scratch, result);
                    table.attention_merge(job, planned.unit, chunk, result, state);
                }
                table.attention_end(job, planned.unit, state);
            }
        }
    }

    void in_waves() const {
        const auto num_units = static_cast<std::int64_t>(plan.units.size());
        const std::int64_t wave = std::min(plan.num_tasks, chunks_per_thread * team);
        float* scratches = workspace.get<float>(sizes.scratch() * team + sizes.softmax() * (wave + num_units));
        float* results = scratches + sizes.scratch() * team;
        float* states = results + sizes.softmax() * wave;
#pragma omp parallel num_threads(team) if (team > 1)
        {
            const FlushDenormals flush;
            const AttentionScratch scratch = sizes.scratch_at(scratches + sizes.scratch() * omp_get_thread_num());
            const PlannedUnit* begun = nullptr;  // whose queries this thread's scratch holds
            for (std::int64_t first = 0; first < plan.num_tasks; first += wave) {
                const std::int64_t end = std::min(first + wave, plan.num_tasks);
#pragma omp for schedule(dynamic)
                for (std::int64_t task = first; task < end; ++task) {
                    const PlannedUnit& planned = unit_of(task);
                    if (begun != &planned) table.attention_begin(job, planned.unit, scratch);
                    begun = &planned;
                    table.attention_chunk(job, planned.unit, task - planned.first_task, scratch,
                                          sizes.softmax_at(results + sizes.softmax() * (task - first)));
                }
#pragma omp for schedule(static)
                for (std::int64_t u = 0; u < num_units; ++u) {
                    merge_wave(plan.units[static_cast<std::size_t>(u)], first, end, results,
                               sizes.softmax_at(states + sizes.softmax() * u));
                }
            }
        }
    }

  private:
    [[nodiscard]] const PlannedUnit& unit_of(std::int64_t task) const {
        const auto after =
            std::upper_bound(plan.units.begin(), plan.units.end(), task,
                             [](std::int64_t t, const PlannedUnit& unit) { return t < unit.first_task; });
        return *(after - 1);
    }

    /// Merges the unit's chunks among tasks first..end; behind the last one the unit is done.
    void merge_wave(const PlannedUnit& planned, std::int64_t first, std::int64_t end, float* results,
                    const Softmax& state) const {
        const std::int64_t behind = planned.first_task + planned.num_chunks;
        for (std::int64_t task = std::max(first, planned.first_task); task < std::min(end, behind); ++task) {
            const std::int64_t chunk = task - planned.first_task;
            table.attention_merge(job, planned.unit, chunk,
                                  sizes.softmax_at(results + sizes.softmax() * (task - first)), state);
            if (task + 1 == behind) table.attention_end(job, planned.unit, state);
        }
    }
};

}  // namespace

void CpuDevice::attention(const KvLayout& layout, std::int64_t layer, std::span<const AttentionSequence> sequences,
                          std::span<const AttentionRow> rows, const std::byte* q, std::int64_t q_heads, DType act,
                          std::byte* out, std::int64_t out_stride) {
    check_layout(layout, layer, q_heads);
    check_attention(sequences, rows);
    const std::int64_t width = q_heads * layout.head_dim;
    check_act_rows("attention", act, static_cast<std::int64_t>(rows.size()), width, out_stride);
    const KvPages pages(layout);
    const auto element = static_cast<std::int64_t>(bytes_of(layout.dtype));
    const std::int64_t group_heads = q_heads / layout.num_kv_heads;
    const AttentionJob job{.bf16 = layout.dtype == DType::bf16,
                           .head_dim = layout.head_dim,
                           .padded_dim = pages.padded_dim(),
                           .group_heads = group_heads,
                           .q_heads = q_heads,
                           .keys_offset = pages.head(layer, 0) * element,
                           .head_bytes = pages.head_elements() * element,
                           .values_offset = pages.keys_elements() * element,
                           .scale = 1.0F / std::sqrt(static_cast<float>(layout.head_dim)),
                           .q = q,
                           .act_bf16 = act == DType::bf16,
                           .out = out,
                           .out_stride = out_stride};
    const Plan plan = plan_of(layout, sequences, rows, group_heads);
    const int team = threads_for(plan.work, work_per_thread);
    const Call call{table_, job, plan, {plan.tile_rows, layout.head_dim, pages.padded_dim()}, team, attention_};
    const bool many = static_cast<std::int64_t>(plan.units.size()) >= units_per_thread * team;
    if (team == 1 || many) {
        call.unit_by_unit();
    } else {
        call.in_waves();
    }
    const auto act_bytes = static_cast<std::int64_t>(bytes_of(act));
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(rows.size()); ++r) {
        std::fill_n(out + (r * out_stride + width) * act_bytes, (out_stride - width) * act_bytes, std::byte{0});
    }
}

}  // namespace longhaul::kernels::cpu
