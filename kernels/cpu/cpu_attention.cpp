// Attention of CpuDevice: splits a call into units (attention.hpp) and distributes them over threads.
//
// The chunks of all units form one list of tasks, unit by unit. Each thread has a part of the list: the same heads in
// each layer, so that its data stays close to its core. A part is split into pieces, longer ones first, so that other
// threads can help. A thread processes a piece in order, so it knows what it reads next, and merges the chunks of units
// that begin there. If a piece begins inside a unit, the results of the unit's chunks are stored; they are merged with
// those before them when all pieces are done (deferred). Chunks are independent and are merged left to right, so the
// cuts do not change any bit.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/kv_pages.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {

/// Work of a call and its distribution, the same in all layers of a group.
struct AttentionPlan {
    /// One chunk of one unit.
    struct Task {
        const AttentionUnit* unit;
        std::int64_t chunk;
        bool last;     ///< the last one of its unit
        bool is_rest;  ///< a short last chunk that stays with the one before; that of a tree often is short
        std::int64_t num_pages;
        std::int64_t prefetched_bytes = 0;  ///< bytes of its pages that earlier tasks prefetch
        const Task* next = nullptr;         ///< the task whose pages this one prefetches
    };
    /// Consecutive tasks of one thread. The first `num_deferred` belong to a unit that begins in an earlier piece.
    struct Piece {
        std::int64_t first;
        std::int64_t end;
        std::int64_t num_deferred;
        std::int64_t first_deferred;  ///< index of their first result among those of all pieces
    };

    DType dtype = DType::bf16;  ///< key of the plan, as are the next four
    std::int64_t num_kv_heads = 0, head_dim = 0, group_heads = 0, window = 0;
    std::vector<UnitRow> rows;
    std::vector<AttentionUnit> units;
    std::vector<Task> tasks;
    std::vector<std::int64_t> work_before;  ///< per task: approximate multiply-adds of the tasks before it
    std::vector<Piece> pieces;
    std::vector<std::int64_t> first_pieces;  ///< first piece of each thread's part, and the end
    std::int64_t tile_rows = 0;              ///< of the largest unit
    std::int64_t work = 0;                   ///< of all tasks
    std::int64_t num_deferred = 0;
    int team = 1;
};

namespace {

// A piece that another thread takes over starts without prefetched memory, so there are few pieces, and none is too
// short.
constexpr std::int64_t pieces_of_part = 4;           // fewer than 8, or the queue hands out two at a time
constexpr std::int64_t work_of_piece = 1 << 20;      ///< minimum multiply-adds: 20 microseconds or more
constexpr std::int64_t tokens_of_task = 64;          ///< fixed cost of a chunk, as a number of tokens
constexpr std::int64_t work_per_thread = 128 << 10;  ///< multiply-adds that justify calling a thread

using Plan = AttentionPlan;
using Task = AttentionPlan::Task;
using Piece = AttentionPlan::Piece;

void add_tasks(Plan& plan, const AttentionUnit& unit, std::int64_t num_tokens, std::int64_t work_of_token) {
    const std::int64_t num_chunks = (num_tokens + chunk_tokens - 1) / chunk_tokens;
    for (std::int64_t chunk = unit.first_chunk(); chunk < num_chunks; ++chunk) {
        const bool last = chunk + 1 == num_chunks;
        plan.work_before.push_back(plan.work);
        const std::int64_t skipped = unit.skipped_pages(chunk);
        const std::int64_t tokens =
            std::min<std::int64_t>(num_tokens - chunk * chunk_tokens, chunk_tokens) - skipped * page_tokens;
        const std::int64_t paged = std::clamp<std::int64_t>(
            unit.rows[unit.num_rows - 1].in_pages - chunk * chunk_tokens, 0, std::int64_t{chunk_tokens});
        plan.tasks.push_back(
            {.unit = &unit,
             .chunk = chunk,
             .last = last,
             .is_rest = last && chunk > unit.first_chunk() && tokens <= tokens_of_task,
             .num_pages = std::max<std::int64_t>((paged + page_tokens - 1) / page_tokens - skipped, 0)});
        plan.work += (tokens + tokens_of_task) * work_of_token;
    }
}

/// Adds a piece: the tasks from `first` to where the accumulated work reaches `until`. Returns the end of the piece.
std::int64_t add_piece(Plan& plan, std::int64_t first, std::int64_t until) {
    const auto at = std::lower_bound(plan.work_before.begin() + first, plan.work_before.end(), until);
    Piece piece{first, at - plan.work_before.begin(), 0, plan.num_deferred};
    if (at != plan.work_before.end() && plan.tasks[piece.end].is_rest) {
        ++piece.end;
    }
    if (first == piece.end) return first;
    const AttentionUnit* unit = plan.tasks[first].unit;
    const bool begins_inside = plan.tasks[first].chunk > unit->first_chunk();
    for (std::int64_t t = first; begins_inside && t < piece.end; ++t) {
        if (plan.tasks[t].unit == unit) ++piece.num_deferred;
    }
    plan.num_deferred += piece.num_deferred;
    plan.pieces.push_back(piece);
    return piece.end;
}

bool same_pages(const Task& a, const Task& b) {
    return a.unit->pages == b.unit->pages && a.unit->kv_head == b.unit->kv_head && a.chunk == b.chunk;
}

/// Within the tasks of one thread, each task that reads pages prefetches those of the next one, unless they are the
/// same pages. (If another thread takes the next task, the prefetch is wasted.)
void plan_prefetches(std::span<Task> tasks) {
    Task* before = nullptr;
    for (Task& task : tasks) {
        if (task.num_pages == 0) continue;
        if (before != nullptr && same_pages(*before, task)) {
            task.prefetched_bytes = everything;
        } else if (before != nullptr) {
            before->next = &task;
            task.prefetched_bytes = before->unit->next_prefetch_bytes;
        }
        before = &task;
    }
}

/// Splits the tasks into one part per thread, and each part into pieces of half of what is left, so that all threads
/// end together even if one was delayed.
void cut(Plan& plan, std::int64_t team) {
    std::int64_t first = 0, done = 0;
    plan.first_pieces.push_back(0);
    for (std::int64_t t = 1; t <= team; ++t) {
        const std::int64_t end = plan.work * t / team, first_of_part = first;
        for (std::int64_t piece = 1; done < end; ++piece) {
            const std::int64_t left = end - done;
            const bool last = team == 1 || piece == pieces_of_part || left < 2 * work_of_piece;
            done += last ? left : left / 2;
            first = add_piece(plan, first, done);
        }
        plan.first_pieces.push_back(plan.pieces.size());
        plan_prefetches(std::span(plan.tasks).subspan(first_of_part, first - first_of_part));
    }
}

/// The order of rows in a plan: rows of one sequence together, ascending by the number of positions they read from
/// pages (tiles rely on it).
std::vector<std::int64_t> order_of(std::span<const AttentionRow> rows) {
    std::vector<std::int64_t> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        const AttentionRow& left = rows[a];
        const AttentionRow& right = rows[b];
        return std::tie(left.sequence, left.in_pages, left.position) <
               std::tie(right.sequence, right.in_pages, right.position);
    });
    return order;
}

/// Rows of one sequence that share every key and value that is loaded.
struct RowBlock {
    std::int64_t first, end;  ///< range in the plan's rows
    std::int64_t num_tokens;  ///< the last position that one of the rows sees, + 1
    std::int64_t first_visible;
};

/// Splits rows first..end, which belong to one sequence, into blocks.
std::vector<RowBlock> blocks_of_rows(const std::vector<UnitRow>& rows, std::int64_t first, std::int64_t end,
                                     std::int64_t rows_of_block) {
    std::vector<RowBlock> blocks;
    for (std::int64_t at = first; at < end; at += rows_of_block) {
        RowBlock block{at, std::min(at + rows_of_block, end), 0, rows[at].first_visible};
        for (std::int64_t r = block.first; r < block.end; ++r) {
            block.num_tokens = std::max(block.num_tokens, rows[r].position + 1);
            block.first_visible = std::min(block.first_visible, rows[r].first_visible);
        }
        blocks.push_back(block);
    }
    return blocks;
}

/// AttentionUnit::next_prefetch_bytes of a unit that streams. Data prefetched at a short distance stays in L1 and does
/// not go through L2, as a whole chunk does (100K positions on cores with memory of their own, Zen 5: 6 to 16 % less
/// time). Blocks of a page are read two at a time, so larger ones need a longer distance; so does a longer softmax.
std::int64_t prefetch_distance(std::int64_t tile_rows, std::int64_t part_bytes) {
    return (6 + tile_rows) * 1024 + part_bytes / 4;
}

/// Maximum tile rows of units that stream. From 11 rows on, arithmetic takes as long as memory. int8 KV does not
/// stream: it has two softmax passes, and its scales are stored behind the data (4 heads of 64 dimensions took a fifth
/// longer).
std::int64_t rows_that_stream(const KernelTable& table, DType dtype) {
    if (!table.streams_kv || dtype == DType::int8) return 0;
    return std::min<std::int64_t>(10, dtype == DType::bf16 ? table.max_tile_bf16 : table.max_tile_f32);
}

/// Units of a sequence are ordered by head, so that those that share keys and values follow each other.
Plan plan_of(const KvLayout& layout, std::span<const AttentionSequence> sequences, std::span<const AttentionRow> rows,
             const AttentionJob& job, std::int64_t rows_streamed) {
    Plan plan;
    const std::int64_t group_heads = job.group_heads;
    plan.dtype = layout.dtype;
    plan.num_kv_heads = layout.num_kv_heads;
    plan.head_dim = layout.head_dim;
    plan.group_heads = group_heads;
    plan.window = layout.window;
    std::vector<std::int32_t> sequence_of;
    for (const std::int64_t index : order_of(rows)) {
        const AttentionRow& row = rows[index];
        plan.rows.push_back({index, row.position, row.in_pages, row.path, row.first_visible(layout.window)});
        sequence_of.push_back(row.sequence);
    }
    const std::int64_t rows_of_block = std::max<std::int64_t>(1, block_rows / group_heads);
    std::vector<std::int64_t> tokens;  // per unit
    for (auto first = sequence_of.begin(); first != sequence_of.end();) {
        const auto end = std::upper_bound(first, sequence_of.end(), *first);
        const AttentionSequence& memory = sequences[*first];
        const std::vector<RowBlock> blocks =
            blocks_of_rows(plan.rows, first - sequence_of.begin(), end - sequence_of.begin(), rows_of_block);
        for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
            for (const RowBlock& block : blocks) {
                const std::int64_t tile_rows = (block.end - block.first) * group_heads;
                plan.units.push_back({.rows = plan.rows.data() + block.first,
                                      .num_rows = block.end - block.first,
                                      .kv_head = head,
                                      .pages = memory.pages.data(),
                                      .scratch_pages = memory.scratch_pages.data(),
                                      .first_visible = block.first_visible,
                                      .next_prefetch_bytes = tile_rows <= rows_streamed
                                                                 ? prefetch_distance(tile_rows, job.part_bytes)
                                                                 : everything});
                tokens.push_back(block.num_tokens);
            }
        }
        first = end;
    }
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
        const std::int64_t tile_rows = plan.units[u].num_rows * group_heads;
        plan.tile_rows = std::max(plan.tile_rows, tile_rows);
        add_tasks(plan, plan.units[u], tokens[u], 2 * std::max<std::int64_t>(4, tile_rows) * layout.head_dim);
    }
    return plan;
}

std::int64_t round_up(std::int64_t value) {
    return (value + lanes - 1) / lanes * lanes;
}

/// Sizes, in floats, of the memory for a unit of `tile_rows` rows.
struct Sizes {
    std::int64_t tile_rows;
    std::int64_t head_dim;
    std::int64_t padded_dim;

    [[nodiscard]] std::int64_t softmax() const { return 2 * round_up(tile_rows) + tile_rows * padded_dim; }
    [[nodiscard]] std::int64_t scratch() const {
        return tile_rows * padded_query(head_dim) + round_up(tile_rows) + chunk_tokens +
               max_tile_rows * (2 * score_stride + chunk_tokens);
    }
    [[nodiscard]] Softmax softmax_at(float* memory) const {
        return {memory, memory + round_up(tile_rows), memory + 2 * round_up(tile_rows)};
    }
    [[nodiscard]] AttentionScratch scratch_at(float* memory) const {
        float* scores = memory + tile_rows * padded_query(head_dim);
        float* tree_scores = scores + max_tile_rows * score_stride;
        float* q_scales = tree_scores + max_tile_rows * score_stride;
        float* value_scales = q_scales + round_up(tile_rows);
        return {reinterpret_cast<std::uint32_t*>(memory),
                scores,
                tree_scores,
                q_scales,
                value_scales,
                value_scales + chunk_tokens};
    }
};

/// One call: what to compute and with what.
struct Call {
    const KernelTable& table;
    const AttentionJob& job;
    const Plan& plan;
    Sizes sizes;
    Workspace& workspace;
    WorkQueue& queue;

    void run() const {
        const std::int64_t num_pieces = plan.pieces.size();
        const int team = plan.team;
        const std::int64_t per_thread = sizes.scratch() + sizes.softmax();
        float* memory = workspace.get<float>(per_thread * team + sizes.softmax() * (num_pieces + plan.num_deferred));
        float* states = memory + per_thread * team;
        float* deferred = states + sizes.softmax() * num_pieces;
        queue.fill_parts(team, 1, [&](int t) { return plan.first_pieces[t]; });
        std::atomic<std::int64_t> merged = 0;
        Team::mine().run(team, [&](Member& member) {
            const FlushDenormals flush;
            float* mine = memory + per_thread * member.index();
            queue.work(member.index(), [&](std::int64_t first, std::int64_t end, const WorkQueue::Share&) {
                for (std::int64_t i = first; i < end; ++i) {
                    run_piece(plan.pieces[i], sizes.scratch_at(mine), sizes.softmax_at(mine + sizes.scratch()),
                              sizes.softmax_at(states + sizes.softmax() * i), deferred);
                }
            });
            if (plan.num_deferred == 0) return;
            member.barrier();
            for (std::int64_t i = 0; (i = merged.fetch_add(1, std::memory_order_relaxed)) < num_pieces;) {
                merge_deferred(i, sizes.softmax_at(states + sizes.softmax() * i), deferred);
            }
        });
    }

  private:
    [[nodiscard]] const Task& task_at(std::int64_t t) const { return plan.tasks[t]; }
    [[nodiscard]] Softmax deferred_at(float* deferred, std::int64_t index) const {
        return sizes.softmax_at(deferred + sizes.softmax() * index);
    }

    /// Runs the tasks of a piece. If the last unit continues in the next piece, its chunks so far are left in `state`.
    void run_piece(const Piece& piece, const AttentionScratch& scratch, const Softmax& result, const Softmax& state,
                   float* deferred) const {
        const AttentionUnit* current = nullptr;
        for (std::int64_t t = piece.first; t < piece.end; ++t) {
            const Task& task = task_at(t);
            if (current != task.unit) table.attention_begin(job, *task.unit, scratch);
            current = task.unit;
            const ChunkPrefetch ahead{.own = memory_of(task),
                                      .own_prefetched = task.prefetched_bytes,
                                      .next = task.next != nullptr ? memory_of(*task.next) : KvPrefetch{}};
            if (t - piece.first < piece.num_deferred) {
                table.attention_chunk(job, *task.unit, task.chunk, ahead, scratch,
                                      deferred_at(deferred, piece.first_deferred + t - piece.first));
                continue;
            }
            table.attention_chunk(job, *task.unit, task.chunk, ahead, scratch, result);
            table.attention_merge(job, *task.unit, task.chunk, result, state);
            if (task.last) table.attention_end(job, *task.unit, state);
        }
    }

    /// The pages that the task reads.
    [[nodiscard]] KvPrefetch memory_of(const Task& task) const {
        if (task.num_pages == 0) return {};
        const AttentionUnit& unit = *task.unit;
        return {unit.pages + task.chunk * chunk_tokens / page_tokens + unit.skipped_pages(task.chunk), task.num_pages,
                job.keys_offset + unit.kv_head * job.head_stride};
    }

    /// Finishes the unit that begins in piece `i` and ends in a later one.
    void merge_deferred(std::int64_t i, const Softmax& state, float* deferred) const {
        const Piece& piece = plan.pieces[i];
        const Task& last = task_at(piece.end - 1);
        if (last.last || piece.num_deferred == piece.end - piece.first) return;
        // Deferred results are stored in task order, and the next ones belong to this unit.
        std::int64_t index = piece.first_deferred + piece.num_deferred;
        for (std::int64_t t = piece.end;; ++t, ++index) {
            const Task& task = task_at(t);
            table.attention_merge(job, *task.unit, task.chunk, deferred_at(deferred, index), state);
            if (!task.last) continue;
            table.attention_end(job, *task.unit, state);
            return;
        }
    }
};

}  // namespace

void CpuDevice::begin_pass(const PassRows& pass) {
    HostDevice::begin_pass(pass);
    plans_.assign(static_cast<std::size_t>(pass.num_groups()), nullptr);
}

void CpuDevice::attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                          const float* sinks, DType act, std::byte* out, std::int64_t out_stride) {
    check_layout(layout, layer, q_heads, kv_pages_together(layout) > 1);
    const GroupRows group = pass().group(layout.group);
    const std::span<const AttentionRow> rows = group.rows;
    const std::int64_t width = q_heads * layout.head_dim;
    check_act_rows("attention", act, rows.size(), width, out_stride);
    AttentionJob job = attention_job(layout, layer, q_heads);
    job.scale = 1.0F / std::sqrt(static_cast<float>(layout.head_dim));
    job.q = q;
    job.sinks = sinks;
    job.act_bf16 = act == DType::bf16;
    job.out = out;
    job.out_stride = out_stride;
    auto& plan = plans_.at(static_cast<std::size_t>(layout.group));
    if (plan == nullptr || plan->dtype != layout.dtype || plan->num_kv_heads != layout.num_kv_heads ||
        plan->head_dim != layout.head_dim || plan->group_heads != job.group_heads || plan->window != layout.window) {
        auto made =
            std::make_shared<Plan>(plan_of(layout, group.sequences, rows, job, rows_that_stream(table_, layout.dtype)));
        made->team = threads_for(made->work, work_per_thread);
        cut(*made, made->team);
        plan = std::move(made);
    }
    const Sizes sizes{plan->tile_rows, layout.head_dim, job.padded_dim};
    Call{table_, job, *plan, sizes, attention_, queue_}.run();
    const std::int64_t act_bytes = bytes_of(act);
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(rows.size()); ++r) {
        std::fill_n(out + (r * out_stride + width) * act_bytes, (out_stride - width) * act_bytes, std::byte{0});
    }
}

}  // namespace longhaul::kernels::cpu
