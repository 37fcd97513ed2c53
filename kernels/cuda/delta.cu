// Linear attention of CudaDevice: the arithmetic that delta_rule.hpp states, with the bits of the CPU.
//
// A layer is up to three kernels. The first computes what a row adds to the states (its update) and its query, for all
// rows at once; a draft node's into its scratch slot. The second goes through the rows of the text, in which a column
// of a state depends on no other column: a thread has one in registers, and 32 of them are a block. Its time is that of
// the two sums over key_dim, whose order is fixed; the second of a row is computed along with the first of the next
// one.
//
// The third kernel computes draft nodes. It keeps no states: a node's follows from the one behind the text, and from
// key, decay and delta of each node above, element by element. So all nodes of one depth are computed at the same time,
// and the only things that have to be kept are their deltas.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/math.cuh"
#include "kernels/delta_gates.hpp"
#include "kernels/delta_rule.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr int warp_size = 32;
constexpr int convolve_threads = 128;
constexpr int columns = 32;  ///< of a state in a block: a warp
constexpr int step_warps = 8;
constexpr std::int64_t max_accepted = 32;  ///< nodes in one call

/// Common arguments; pointers to device memory.
struct DeltaArgs {
    DeltaShape shape;
    std::int64_t num_layers, layer;
    DeltaWeights weights;
    const float* inputs;  ///< as in DeltaRule::mix, and so are gates and out
    std::int64_t inputs_stride;
    const float* gates;
    float* out;
    float* queries;  ///< nullptr: no output is wanted
    float* updates;
    float* deltas;
    float query_factor;

    [[nodiscard]] __device__ float* head_state(std::byte* page, std::int64_t at_layer, std::int64_t head) const {
        return reinterpret_cast<float*>(page) + shape.head_offset(at_layer, head);
    }
    [[nodiscard]] __device__ float* slot(const DeltaPlace& place, std::int64_t at_layer, std::int64_t head) const {
        return reinterpret_cast<float*>(place.page) + shape.slot_offset(num_layers, place.index, at_layer, head);
    }
    /// The convolution's input of a key head. Not of a place before the text.
    [[nodiscard]] __device__ const float* input(const DeltaPlace& place, std::int64_t at_layer,
                                                std::int64_t head) const {
        if (place.page == nullptr) return inputs + place.index * inputs_stride + head * shape.channels();
        if (place.index >= 0) return slot(place, at_layer, head);
        return head_state(place.page, at_layer, head) + shape.state_floats() + (-1 - place.index) * shape.channels();
    }
    [[nodiscard]] __device__ float* update(const DeltaPlace& place, std::int64_t at_layer, std::int64_t head) const {
        if (place.page != nullptr) return slot(place, at_layer, head) + shape.channels();
        return updates + (place.index * shape.num_key_heads + head) * shape.update_floats();
    }
    [[nodiscard]] __device__ float* query(std::int64_t row, std::int64_t head) const {
        return queries + (row * shape.num_key_heads + head) * shape.key_dim;
    }
    [[nodiscard]] __device__ float* output(std::int64_t row, std::int64_t value_head) const {
        return out + (row * shape.num_value_heads() + value_head) * shape.value_dim;
    }
};

/// The part of a value head that a block or warp computes: a column of its state per thread.
struct ValueColumn {
    std::int64_t value_head, head, in_head;  ///< head: the key head, of which it is number in_head
    std::int64_t slice, num_slices;
    std::int64_t column;
    bool there;  ///< whether value_dim has this column

    /// `part`: from 0 to parts_of(shape) - 1.
    __device__ ValueColumn(const DeltaShape& shape, std::int64_t part) {
        num_slices = slices_of(shape);
        value_head = part / num_slices;
        slice = part % num_slices;
        head = value_head / shape.values_per_key;
        in_head = value_head % shape.values_per_key;
        column = slice * columns + threadIdx.x % columns;
        there = column < shape.value_dim;
    }
    static LONGHAUL_HOST_DEVICE std::int64_t slices_of(const DeltaShape& shape) {
        return (shape.value_dim + columns - 1) / columns;
    }
    static LONGHAUL_HOST_DEVICE std::int64_t parts_of(const DeltaShape& shape) {
        return shape.num_value_heads() * slices_of(shape);
    }
    /// The column in the page of a sequence; its elements are value_dim apart.
    [[nodiscard]] __device__ float* state(const DeltaArgs& args, std::byte* page, std::int64_t layer) const {
        const DeltaShape& shape = args.shape;
        return args.head_state(page, layer, head) + in_head * shape.key_dim * shape.value_dim + column;
    }
};

/// What the column of a row reads of its update, besides the key.
struct ColumnUpdate {
    float value = 0.0F, decay = 0.0F, step = 0.0F;

    ColumnUpdate() = default;
    __device__ ColumnUpdate(const DeltaShape& shape, const float* update, const ValueColumn& of) {
        const float* const values = update + shape.key_dim;
        const float* const decays = values + shape.values_width();
        value = of.there ? values[of.in_head * shape.value_dim + of.column] : 0.0F;
        decay = decays[of.in_head];
        step = decays[shape.values_per_key + of.in_head];
    }
    /// `known`: what the state before gives for the key.
    [[nodiscard]] __device__ float delta(float known, StateRule rule) const {
        return __fmul_rn(step, rule == StateRule::sum ? value : __fsub_rn(value, __fmul_rn(decay, known)));
    }
};

/// The output of a row, of which the state gives `out`.
__device__ __forceinline__ float with_skip(const DeltaArgs& args, const ValueColumn& of, const ColumnUpdate& update,
                                           float out) {
    return args.weights.skip == nullptr ? out : __fmaf_rn(args.weights.skip[of.value_head], update.value, out);
}

__device__ __forceinline__ float changed(float state, float key, float delta, float decay) {
    return __fmaf_rn(key, delta, __fmul_rn(decay, state));
}

// --- updates --------------------------------------------------------------------------------------------------------

std::size_t convolve_bytes(const DeltaShape& shape) {
    return static_cast<std::size_t>(shape.taps) * sizeof(float*) +
           static_cast<std::size_t>(2 * shape.key_dim + 2) * sizeof(float);
}

/// Grid [rows, key heads].
__global__ void __launch_bounds__(convolve_threads)
    delta_convolve_kernel(DeltaArgs args, const DeltaPlace* rows, const DeltaPlace* before) {
    const DeltaShape& shape = args.shape;
    const std::int64_t row = blockIdx.x, head = blockIdx.y, channels = shape.channels();
    const int dim = static_cast<int>(shape.key_dim), taps = static_cast<int>(shape.taps);
    const int thread = static_cast<int>(threadIdx.x);
    const auto inputs = shared_memory<const float*>();                // [taps]; nullptr: zeros
    auto* const activated = reinterpret_cast<float*>(inputs + taps);  // query and key
    float* const scales = activated + 2 * dim;                        // of these two
    for (int t = thread; t < taps; t += convolve_threads) {
        const DeltaPlace place = t + 1 < taps ? before[row * (taps - 1) + t] : DeltaPlace{nullptr, row};
        inputs[t] = place.is_zero() ? nullptr : args.input(place, args.layer, head);
    }
    __syncthreads();
    const DeltaPlace own = rows[row];
    float* const update = args.update(own, args.layer, head);
    float* const kept = own.page == nullptr ? nullptr : args.slot(own, args.layer, head);
    const float *const filter = args.weights.filter + head * taps * channels, *const bias = args.weights.filter_bias;
    const bool keeps_lengths = shape.rule == StateRule::sum;
    for (std::int64_t c = thread; c < channels; c += convolve_threads) {
        float sum = bias == nullptr ? 0.0F : bias[head * channels + c], x = 0.0F;
        for (int t = 0; t < taps; ++t) {
            x = inputs[t] == nullptr ? 0.0F : inputs[t][c];
            sum = __fmaf_rn(filter[t * channels + c], x, sum);
        }
        if (kept != nullptr) kept[c] = x;
        const float value = sum / (1.0F + exp_of(-sum));
        (c < 2 * dim ? activated[c] : update[c - dim]) = value;
    }
    __syncthreads();
    if (thread < warp_size) {  // half a warp for the query, the other one for the key
        const int which = thread / 16;
        const float* const x = activated + which * dim;
        float squares = 0.0F;
        for (int i = thread % 16; i < dim; i += 16) squares = __fmaf_rn(x[i], x[i], squares);
        squares = lane_tree(squares);
        const float length = __fsqrt_rn(squares + delta_eps);
        if (thread % 16 == 0) scales[which] = keeps_lengths ? 1.0F : (which == 0 ? args.query_factor : 1.0F) / length;
    } else {
        const std::int64_t heads = shape.num_value_heads();
        const float* const gates = args.gates + row * shape.gates_width();
        float* const decays = update + dim + shape.values_width();
        for (std::int64_t i = thread - warp_size; i < shape.values_per_key; i += convolve_threads - warp_size) {
            const std::int64_t h = head * shape.values_per_key + i;
            const float rate = __fadd_rn(gates[h], args.weights.step_bias[h]);
            decays[i] = decay_of(args.weights.log_rate[h], rate);
            decays[shape.values_per_key + i] = keeps_lengths ? step_of_rate(rate) : step_of(gates[heads + h]);
        }
    }
    __syncthreads();
    float* const query = args.query(row, head);
    for (int c = thread; c < 2 * dim; c += convolve_threads)
        (c < dim ? query[c] : update[c - dim]) = __fmul_rn(activated[c], scales[c < dim ? 0 : 1]);
}

// --- the text -------------------------------------------------------------------------------------------------------

/// A column of a state: in registers if key_dim is DIM, in shared memory if DIM is 0.
template <int DIM>
struct Column {
    explicit __device__ Column(float* /*shared*/) {}
    __device__ float& operator[](int i) { return values[i]; }
    float values[DIM];
};
template <>
struct Column<0> {
    explicit __device__ Column(float* shared) : first(shared + threadIdx.x) {}
    __device__ float& operator[](int i) { return first[i * columns]; }
    float* first;
};

constexpr int keys_ahead = 3, queries_ahead = 2;  ///< rows whose key (query) is in shared memory

template <int DIM>
std::size_t text_bytes(const DeltaShape& shape) {
    return static_cast<std::size_t>(shape.key_dim * (keys_ahead + queries_ahead + (DIM == 0 ? columns : 0))) *
           sizeof(float);
}

/// The convolution's last inputs, of the block's share of the channels of its key head.
template <class PlaceOf>
__device__ void keep_last(const DeltaArgs& args, std::int64_t layer, const DeltaText& text, const ValueColumn& of,
                          PlaceOf place_of) {
    const DeltaShape& shape = args.shape;
    const std::int64_t channels = shape.channels(), step = shape.values_per_key * of.num_slices * columns;
    const int kept = static_cast<int>(shape.taps) - 1;
    float* const last = args.head_state(text.page, layer, of.head) + shape.state_floats();
    for (std::int64_t c = (of.in_head * of.num_slices + of.slice) * columns + threadIdx.x; c < channels; c += step) {
        for (int t = 0; t < kept; ++t) {  // oldest first, so none is overwritten before it has moved
            const int row = text.count + t - kept;
            float x = 0.0F;
            if (row >= 0) {
                x = args.input(place_of(row), layer, of.head)[c];
            } else if (text.begins == 0) {
                x = last[(text.count + t) * channels + c];
            }
            last[t * channels + c] = x;
        }
    }
}

/// Changes a column of a state by rows of the text, place_of(0) to place_of(count - 1). Called by one warp.
template <int DIM, class PlaceOf>
__device__ __forceinline__ void fold_rows(const DeltaArgs& args, std::int64_t layer, const DeltaText& text,
                                          const ValueColumn& of, PlaceOf place_of) {
    const DeltaShape& shape = args.shape;
    const int dim = DIM > 0 ? DIM : static_cast<int>(shape.key_dim), lane = static_cast<int>(threadIdx.x);
    float* const keys = shared_memory<float>();
    float* const queries = keys + keys_ahead * dim;
    Column<DIM> column(queries + queries_ahead * dim);
    const auto fetch = [&](float* to, const float* from) {
        for (int i = lane; i < dim; i += warp_size) copy_async_4(to + i, from + i);
    };
    const auto update_of = [&](const DeltaPlace& place) { return args.update(place, layer, of.head); };
    const bool wanted = args.queries != nullptr;

    DeltaPlace now = place_of(0), next = text.count > 1 ? place_of(1) : now;
    fetch(keys, update_of(now));
    fetch(keys + dim, update_of(next));
    if (wanted) fetch(queries, args.query(now.index, of.head));
    commit_copies();
    float* const state = of.state(args, text.page, layer);
#pragma unroll
    for (int i = 0; i < dim; ++i) column[i] = of.there && text.begins == 0 ? state[i * shape.value_dim] : 0.0F;
    ColumnUpdate update(shape, update_of(now), of);
    wait_copies<0>();
    __syncwarp();
    float known = 0.0F;
#pragma unroll
    for (int i = 0; i < dim; ++i) known = __fmaf_rn(column[i], keys[i], known);

    for (int t = 0; t < text.count; ++t) {
        // Rows ahead, of which the last ones are repeated: what they give is not used.
        const DeltaPlace after = t + 2 < text.count ? place_of(t + 2) : next;
        fetch(keys + (t + 2) % keys_ahead * dim, update_of(after));
        if (wanted) fetch(queries + (t + 1) % queries_ahead * dim, args.query(next.index, of.head));
        commit_copies();
        const ColumnUpdate next_update(shape, update_of(next), of);

        const float delta = update.delta(known, shape.rule);
        const float* const key = keys + t % keys_ahead * dim;
        const float* const next_key = keys + (t + 1) % keys_ahead * dim;
        const float* const query = queries + t % queries_ahead * dim;
        float out = 0.0F;
        known = 0.0F;
#pragma unroll
        for (int first = 0; first < dim; first += 4) {
            float k[4], q[4], n[4];
            load_floats(key + first, k);
            load_floats(query + first, q);
            load_floats(next_key + first, n);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float element = changed(column[first + i], k[i], delta, update.decay);
                column[first + i] = element;
                out = __fmaf_rn(element, q[i], out);
                known = __fmaf_rn(element, n[i], known);
            }
        }
        if (wanted && of.there) args.output(now.index, of.value_head)[of.column] = with_skip(args, of, update, out);
        now = next;
        next = after;
        update = next_update;
        wait_copies<0>();
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < dim; ++i) {
        if (of.there) state[i * shape.value_dim] = column[i];
    }
    keep_last(args, layer, text, of, place_of);
}

/// Grid [texts, ValueColumn::parts_of].
template <int DIM>
__global__ void __launch_bounds__(columns)
    delta_text_kernel(DeltaArgs args, const DeltaText* texts, const DeltaPlace* of_texts) {
    const DeltaText text = texts[blockIdx.x];
    const DeltaPlace* const places = of_texts + text.first;
    fold_rows<DIM>(args, args.layer, text, ValueColumn(args.shape, blockIdx.y), [&](int t) { return places[t]; });
}

/// Draft nodes that become text. In the arguments of the call, so that nothing has to be sent for it.
struct Accepted {
    DeltaPlace places[max_accepted];
};

/// Grid [layers, ValueColumn::parts_of].
template <int DIM>
__global__ void __launch_bounds__(columns) delta_accept_kernel(DeltaArgs args, DeltaText text, Accepted nodes) {
    fold_rows<DIM>(args, blockIdx.x, text, ValueColumn(args.shape, blockIdx.y), [&](int t) { return nodes.places[t]; });
}

// --- draft nodes ----------------------------------------------------------------------------------------------------

constexpr int tile = 16;  ///< elements of a column at a time; divides key_dim

/// What a thread needs of the steps of a tree.
struct StepColumn {
    __device__ StepColumn(const DeltaArgs& args, const DeltaTables& tables, const DeltaTree& tree,
                          const ValueColumn& of)
        : state(of.state(args, tree.page, args.layer)),
          steps(tables.steps),
          deltas(args.deltas + of.value_head * args.shape.value_dim + of.column),
          stride(static_cast<int>(args.shape.num_value_heads() * args.shape.value_dim)),
          value_dim(static_cast<int>(args.shape.value_dim)),
          in_slot(static_cast<int>(args.shape.slot_offset(args.num_layers, 0, args.layer, of.head) +
                                   args.shape.channels())),
          decay_at(static_cast<int>(args.shape.key_dim + args.shape.values_width() + of.in_head)) {}

    [[nodiscard]] __device__ const float* update(std::int32_t step) const { return steps[step].slot + in_slot; }
    [[nodiscard]] __device__ float& delta(std::int32_t step) const { return deltas[std::int64_t{step} * stride]; }

    /// Changes a tile of the column, elements `first` and on, by a step.
    __device__ __forceinline__ void change(std::int32_t step, int first, float (&elements)[tile]) const {
        const float* const from = update(step);
        const float decay = from[decay_at], of_step = delta(step);
#pragma unroll
        for (int i = 0; i < tile; i += 2) {
            float key[2];
            load_floats(from + first + i, key);
            elements[i] = changed(elements[i], key[0], of_step, decay);
            elements[i + 1] = changed(elements[i + 1], key[1], of_step, decay);
        }
    }
    /// A tile behind these steps.
    __device__ __forceinline__ void load(const std::int32_t* above, int num_above, int first,
                                         float (&elements)[tile]) const {
#pragma unroll
        for (int i = 0; i < tile; ++i) elements[i] = state[(first + i) * value_dim];
        for (int a = 0; a < num_above; ++a) change(above[a], first, elements);
    }

    const float* state;  ///< behind the text
    const DeltaStep* steps;
    float* deltas;
    int stride, value_dim, in_slot, decay_at;
};

/// Adds the products of a tile and `x`, which is aligned to 8 bytes.
__device__ __forceinline__ float add_products(const float (&elements)[tile], const float* x, float sum) {
#pragma unroll
    for (int i = 0; i < tile; i += 2) {
        float pair[2];
        load_floats(x + i, pair);
        sum = __fmaf_rn(elements[i], pair[0], sum);
        sum = __fmaf_rn(elements[i + 1], pair[1], sum);
    }
    return sum;
}

__device__ void run_step(const DeltaArgs& args, const DeltaTables& tables, const StepColumn& column,
                         const ValueColumn& of, std::int32_t index) {
    const int dim = static_cast<int>(args.shape.key_dim), row = tables.steps[index].row;
    const std::int32_t* const above = tables.above + tables.steps[index].first;
    const int num_above = tables.steps[index].above;
    const float* const update = column.update(index);
    float known = 0.0F;
    for (int first = 0; first < dim; first += tile) {
        float elements[tile];
        column.load(above, num_above, first, elements);
        known = add_products(elements, update + first, known);
    }
    const ColumnUpdate own(args.shape, update, of);
    column.delta(index) = own.delta(known, args.shape.rule);
    if (row < 0) return;
    const float* const query = args.query(row, of.head);
    float out = 0.0F;
    for (int first = 0; first < dim; first += tile) {
        float elements[tile];
        column.load(above, num_above, first, elements);
        column.change(index, first, elements);
        out = add_products(elements, query + first, out);
    }
    args.output(row, of.value_head)[of.column] = with_skip(args, of, own, out);
}

/// Grid [trees, ValueColumn::parts_of]; a warp per step.
__global__ void __launch_bounds__(step_warps* warp_size, 2) delta_nodes_kernel(DeltaArgs args, DeltaTables tables) {
    const DeltaTree tree = tables.trees[blockIdx.x];
    const ValueColumn of(args.shape, blockIdx.y);
    const StepColumn column(args, tables, tree, of);
    const std::int32_t* const levels = tables.levels + tree.first_level;
    for (std::int32_t l = 0; l < tree.num_levels; ++l) {
        for (std::int32_t s = levels[l] + static_cast<std::int32_t>(threadIdx.x) / warp_size; s < levels[l + 1];
             s += step_warps) {
            if (of.there) run_step(args, tables, column, of, s);
        }
        __syncthreads();
    }
}

// --- calls -----------------------------------------------------------------------------------------------------------

DeltaArgs args_of(const KvLayout& layout, std::int64_t layer) {
    DeltaArgs args{};
    args.shape = layout.delta;
    args.num_layers = layout.num_layers;
    args.layer = layer;
    args.query_factor = 1.0F / std::sqrt(static_cast<float>(layout.delta.key_dim));
    return args;
}

constexpr std::int64_t register_dim = 128;  ///< key_dim of models, for which a column is in registers

dim3 columns_grid(std::int64_t count, const DeltaShape& shape) {
    return {static_cast<unsigned>(count), static_cast<unsigned>(ValueColumn::parts_of(shape))};
}

}  // namespace

void CudaDevice::mix(const KvLayout& layout, std::int64_t layer, const DeltaWeights& weights, const float* inputs,
                     std::int64_t inputs_stride, const float* gates, float* out) {
    check_delta(layout, layer, state_->pass.on_host().group(layout.group), inputs_stride);
    const Stream& stream = state_->stream;
    DeltaPart& part = state_->delta;
    const DeltaTables& tables = part.prepare(stream, state_->ring, state_->pass, layout);
    const DeltaShape& shape = layout.delta;
    DeltaArgs args = args_of(layout, layer);
    args.weights = weights;
    args.inputs = inputs;
    args.inputs_stride = inputs_stride;
    args.gates = gates;
    args.out = out;
    args.queries = part.queries.get<float>(stream, tables.num_rows * shape.num_key_heads * shape.key_dim);
    args.updates = part.updates.get<float>(stream, tables.num_rows * shape.num_key_heads * shape.update_floats());
    args.deltas = part.deltas.get<float>(stream, tables.num_steps * shape.num_value_heads() * shape.value_dim);
    const dim3 grid(static_cast<unsigned>(tables.num_rows), static_cast<unsigned>(shape.num_key_heads));
    launch(stream, delta_convolve_kernel, grid, dim3(convolve_threads), convolve_bytes(shape), args, tables.rows,
           tables.before);
    const bool in_registers = shape.key_dim == register_dim;
    launch(stream, in_registers ? delta_text_kernel<register_dim> : delta_text_kernel<0>,
           columns_grid(tables.num_texts, shape), dim3(columns),
           in_registers ? text_bytes<register_dim>(shape) : text_bytes<0>(shape), args, tables.texts, tables.of_texts);
    launch(stream, delta_nodes_kernel, columns_grid(tables.num_trees, shape), dim3(step_warps * warp_size), 0, args,
           tables);
}

void CudaDevice::accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                        std::span<const std::int32_t> slots) {
    const DeltaShape& shape = layout.delta;
    const DeltaArgs args = args_of(layout, 0);
    while (!slots.empty()) {
        const std::span<const std::int32_t> some = slots.first(std::min<std::size_t>(slots.size(), max_accepted));
        slots = slots.subspan(some.size());
        Accepted nodes{};
        for (std::size_t i = 0; i < some.size(); ++i)
            nodes.places[i] = DeltaPlace::slot(scratch_pages[static_cast<std::size_t>(some[i] / KvLayout::page_tokens)],
                                               some[i] % KvLayout::page_tokens);
        const DeltaText text{.page = state, .first = 0, .count = static_cast<std::int32_t>(some.size())};
        const bool in_registers = shape.key_dim == register_dim;
        launch(state_->stream, in_registers ? delta_accept_kernel<register_dim> : delta_accept_kernel<0>,
               columns_grid(layout.num_layers, shape), dim3(columns),
               in_registers ? text_bytes<register_dim>(shape) : text_bytes<0>(shape), args, text, nodes);
    }
}

}  // namespace longhaul::kernels::cuda
