// Matmul with bf16 weights on tensor cores for prompts, on GPUs with clusters of blocks (sm_90). Bit-identical to
// matmul_tile.cuh: the same chains of products (wgmma) and the same tree of slices.
//
// What reaches a multiprocessor from L2 limits tiles of 128 x 128 to less than half the peak. Here the blocks of a
// cluster, at `across` groups of rows times `up` groups of outputs, fetch each weight and each input once: a block
// fetches its share of what a column (row) of blocks needs, and the copy arrives in all of them. One thread of a block
// starts the copies, whole panels and tiles at a time; two warpgroups compute and wait for nobody but the copies, so
// that one adds its slice to the tree while the other multiplies.
#pragma once

#include "kernels/cuda/matmul_tile.cuh"

namespace longhaul::kernels::cuda {

/// A block of two warpgroups that compute, each 64 outputs for n_tiles times 8 rows, and one that fetches.
template <int n_tiles, int row_blocks, int output_blocks>
struct ClusterShape {
    static constexpr int threads = 256;  ///< that compute; they come first
    static constexpr int block_threads = threads + 128;
    static constexpr int across = row_blocks, up = output_blocks;
    static constexpr int sharers = across + up - 1;  ///< blocks that write into a block's queue
    static constexpr int NT = n_tiles;
    static constexpr int tiles = 8;
    static constexpr int outputs = tiles * tile_outputs;
    static constexpr int rows = NT * 8;
    static constexpr int stage_steps = 2;  ///< a panel of inputs
    static constexpr int panel_bytes = rows * panel_row_bytes;
    static constexpr int tile_bytes = stage_steps * 1024;
    static constexpr int stage_bytes = panel_bytes + tiles * tile_bytes;
    static constexpr int sums_bytes = 4 * outputs * rows;
    static constexpr int most_stages = (static_cast<int>(cluster_shared_bytes) - sums_bytes - 256) / stage_bytes;
    static constexpr int stages = most_stages < 6 ? most_stages : 6;
    static constexpr int queue_bytes = stages * stage_bytes;
    static constexpr int barriers_at = queue_bytes + sums_bytes;
    static constexpr std::size_t shared_bytes = barriers_at + 2 * stages * sizeof(Mbarrier);
    using Sums = float[NT][4];
    static_assert(stages >= 3 && tiles % (4 * across) == 0);
    static_assert(rows / up % 8 == 0, "shares of a panel are whole groups of eight rows");
};

/// Bytes of the inputs of a block: panels of 64 inputs, [slices][stages][rows * 128].
template <class Shape>
LONGHAUL_HOST_DEVICE constexpr std::int64_t row_group_bytes(const WeightLayout& layout) {
    return layout.num_slices * ((layout.steps + 1) / Shape::stage_steps) * Shape::panel_bytes;
}

/// Copies the inputs into panels, with zeros where there are no inputs or rows. Grid: all panels, those of a group of
/// rows together.
template <class Shape>
__global__ void __launch_bounds__(max_row_threads) arrange_panels(MatmulJob job, std::byte* to) {
    const WeightLayout& layout = job.layout;
    const int stages = static_cast<int>(layout.steps + 1) / Shape::stage_steps;
    const int of_group = static_cast<int>(blockIdx.x) % (layout.num_slices * stages);
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) / (layout.num_slices * stages) * Shape::rows;
    const int first_input = of_group % stages * panel_inputs, slice = of_group / stages;
    std::byte* const panel = to + std::int64_t{blockIdx.x} * Shape::panel_bytes;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < Shape::rows * 8; i += max_row_threads) {
        const std::int64_t row = first_row + i / 8;
        const int input = first_input + i % 8 * 8;
        const bool is_there = row < job.num_rows && input < layout.slice_length;
        *reinterpret_cast<uint4*>(panel + place_in_panel(i / 8, i % 8)) =
            is_there ? load_16(job.x + (row * job.x_stride + slice * job.x_slice + input) * 2) : make_uint4(0, 0, 0, 0);
    }
}

/// The stages of a block in shared memory, and their barriers.
template <class Shape>
struct ClusterQueue {
    /// Of the slot: its phase ends when the stage has arrived.
    [[nodiscard]] static __device__ __forceinline__ Mbarrier* full(int slot) {
        return reinterpret_cast<Mbarrier*>(shared_memory<std::byte>() + Shape::barriers_at) + slot;
    }
    /// Its phase ends when all warps that compute, in all blocks that share something with this one, have read it.
    [[nodiscard]] static __device__ __forceinline__ Mbarrier* empty(int slot) { return full(Shape::stages + slot); }
    [[nodiscard]] static __device__ __forceinline__ std::byte* stage(int slot) {
        return shared_memory<std::byte>() + slot * Shape::stage_bytes;
    }

    static __device__ void init() {
        if (threadIdx.x == 0) {
            for (int slot = 0; slot < Shape::stages; ++slot) {
                init_mbarrier(full(slot), 1);
                init_mbarrier(empty(slot), Shape::threads / 32 * Shape::sharers);
            }
            publish_mbarriers();
        }
        cluster_barrier();
    }

    int slot = 0;
    unsigned parity = 0;  ///< of the phase that fills the slot
    __device__ __forceinline__ void advance() {
        if (++slot < Shape::stages) return;
        slot = 0;
        parity ^= 1U;
    }
};

/// This block in its cluster, and those with which it shares.
template <class Shape>
struct ClusterPlace {
    unsigned x = block_of_cluster() % Shape::across, y = block_of_cluster() / Shape::across;

    /// The blocks with the same outputs, and those with the same rows.
    [[nodiscard]] __device__ unsigned with_outputs() const {
        return ((1U << Shape::across) - 1U) << (y * Shape::across);
    }
    [[nodiscard]] __device__ unsigned with_rows() const {
        unsigned mask = 0;
        for (unsigned i = 0; i < Shape::up; ++i) mask |= 1U << (i * Shape::across + x);
        return mask;
    }
    /// Block i of the Shape::sharers that write into this one's queue, and it into theirs.
    [[nodiscard]] __device__ unsigned sharer(unsigned i) const {
        if (i < Shape::across) return y * Shape::across + i;
        return (y + i - Shape::across + 1) % Shape::up * Shape::across + x;
    }
};

/// Fetches this block's shares of all stages. Called by one thread of each warp of the warpgroup that fetches, which
/// divide the tiles; the first one fetches the panels, too, and its arrival lets a phase of `full` end.
template <class Shape>
__device__ void fetch_stages(const MatmulJob& job, const std::byte* panels) {
    const ClusterPlace<Shape> place;
    const WeightLayout& layout = job.layout;
    constexpr int tiles = Shape::tiles / Shape::across / 4, share = Shape::panel_bytes / Shape::up;
    const int warp = static_cast<int>(threadIdx.x) / 32 - Shape::threads / 32;
    const unsigned with_rows = place.with_rows(), with_outputs = place.with_outputs();
    const int first_place = static_cast<int>(place.y) * share;
    const int first_of_block = (static_cast<int>(place.x) * 4 + warp) * tiles;
    const std::int64_t tile_stride = layout.num_slices * layout.steps * 1024;
    const std::int64_t first_tile = std::int64_t{blockIdx.y} * Shape::tiles + first_of_block;
    const std::byte* weights[tiles];
#pragma unroll
    for (int t = 0; t < tiles; ++t)  // instead of tiles that are missing, the first one: what they give is not stored
        weights[t] = job.weights + (first_tile + t < layout.num_tiles ? first_tile + t : 0) * tile_stride;
    const std::byte* panel = panels + blockIdx.x * row_group_bytes<Shape>(layout) + first_place;
    ClusterQueue<Shape> queue;
    for (int slice = 0; slice < layout.num_slices; ++slice) {
#pragma unroll 1
        for (int steps_left = static_cast<int>(layout.steps); steps_left > 0; steps_left -= Shape::stage_steps) {
            wait_for_phase(queue.empty(queue.slot), queue.parity ^ 1U);  // at first: one that ended before all others
            Mbarrier* const full = queue.full(queue.slot);
            std::byte* const to = queue.stage(queue.slot);
            const int bytes = steps_left >= Shape::stage_steps ? Shape::tile_bytes : Shape::tile_bytes / 2;
            if (warp == 0) {
                arrive_with_bytes(full, Shape::panel_bytes + Shape::tiles * bytes);
                copy_bulk(to + first_place, panel, share, full, with_rows);
                panel += Shape::panel_bytes;
            }
            std::byte* const tile = to + Shape::panel_bytes + first_of_block * Shape::tile_bytes;
#pragma unroll
            for (int t = 0; t < tiles; ++t) {
                copy_bulk(tile + t * Shape::tile_bytes, weights[t], bytes, full, with_outputs);
                weights[t] += bytes;
            }
            queue.advance();
        }
    }
}

/// One warp's side of the queue: adds the products of whole slices, a step of 32 inputs at a time. The products of a
/// step are computed while the next one's weights are loaded.
template <class Shape>
class StageReader {
  public:
    __device__ void add_slice(typename Shape::Sums& sum, int steps) {
#pragma unroll
        for (int n = 0; n < Shape::NT; ++n) {
            for (float& s : sum[n]) s = 0.0F;
        }
#pragma unroll 1
        for (int step = 0; step < steps; step += Shape::stage_steps) {
            wait_for_phase(queue_.full(queue_.slot), queue_.parity);
            start(sum, 0, true);
            finish_products<1>(sum);
            release_last();
            last_ = queue_.slot;
            start(sum, 1, step + 1 < steps);
            finish_products<1>(sum);
            queue_.advance();
        }
        finish_products<0>(sum);
        release_last();
    }

  private:
    /// A missing step of weights is zeros, which change no sum: a branch would keep the products of two steps apart.
    __device__ __forceinline__ void start(typename Shape::Sums& sum, int step, bool is_there) {
        const std::byte* const stage = queue_.stage(queue_.slot);
        const std::byte* const outputs = stage + outputs_at_ + step * 1024;
#pragma unroll
        for (int f = 0; f < step_fragments; ++f) {
            const uint4 values = load_16(outputs + f * 512);
            a_[step][f] = is_there ? values : make_uint4(0, 0, 0, 0);
        }
        start_products(sum, a_[step], stage, step * step_fragments);
    }
    /// Lets the slot whose products were computed last be filled again.
    __device__ __forceinline__ void release_last() {
        if (last_ < 0) return;
        __syncwarp();
        if (lane_ < Shape::sharers) arrive_at_block(queue_.empty(last_), sharer_);
        last_ = -1;
    }

    static constexpr int step_fragments = 2;
    ClusterQueue<Shape> queue_;
    unsigned lane_ = threadIdx.x % 32, sharer_ = ClusterPlace<Shape>().sharer(lane_);
    int outputs_at_ = Shape::panel_bytes + static_cast<int>(threadIdx.x / 32 * Shape::tile_bytes + lane_ * 16);
    uint4 a_[Shape::stage_steps][step_fragments];
    int last_ = -1;  ///< slot to release
};

template <class Shape>
__device__ __forceinline__ void add(typename Shape::Sums& to, const typename Shape::Sums& sums) {
    for_each_sum<Shape>([&](int n, int i) { to[n][i] = __fadd_rn(to[n][i], sums[n][i]); });
}

/// The total of all 1, 2, 4 or 8 slices. Registers hold the sums of up to two slices that wait for their partner,
/// `first_four` the sum of the first four, with stride Shape::threads.
template <class Shape>
__device__ __forceinline__ void add_slices(const WeightLayout& layout, typename Shape::Sums& total, float* first_four) {
    const int slices = layout.num_slices, steps = static_cast<int>(layout.steps);
    const auto place = [](int n, int i) { return (n * 4 + i) * Shape::threads; };
    StageReader<Shape> reader;
#pragma unroll 1
    for (int first = 0; first < slices; first += 4) {
        if (first == 4) for_each_sum<Shape>([&](int n, int i) { first_four[place(n, i)] = total[n][i]; });
        reader.add_slice(total, steps);
        if (slices == 1) return;
        typename Shape::Sums right;
        reader.add_slice(right, steps);
        add<Shape>(total, right);
        if (slices == 2) return;
        typename Shape::Sums last;
        reader.add_slice(right, steps);
        reader.add_slice(last, steps);
        add<Shape>(right, last);
        add<Shape>(total, right);
    }
    if (slices == 8)
        for_each_sum<Shape>([&](int n, int i) { total[n][i] = __fadd_rn(first_four[place(n, i)], total[n][i]); });
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/// Grid: groups of rows; groups of outputs; both whole clusters. `panels`: the inputs, as arrange_panels() leaves them.
template <class Shape, bool is_gated>
__global__ void LONGHAUL_CLUSTER_DIMS(Shape::across, Shape::up, 1) __launch_bounds__(Shape::block_threads, 1)
    cluster_matmul(MatmulJob job, const std::byte* panels) {
    ClusterQueue<Shape>::init();
    if (threadIdx.x >= Shape::threads) {
        give_registers<24>();
        if (threadIdx.x % 32 == 0) fetch_stages<Shape>(job, panels);
        __syncwarp();
    } else {
        take_registers<240>();
        TileTree<Shape, is_gated> tree{job};
        add_slices<Shape>(job.layout, tree.sum, tree.pair());
        tree.store();
    }
    end_in_cluster();  // others write into this block's shared memory until they end
}
#else
template <class Shape, bool is_gated>
__global__ void cluster_matmul(MatmulJob, const std::byte*) {}  // never called
#endif

}  // namespace longhaul::kernels::cuda
