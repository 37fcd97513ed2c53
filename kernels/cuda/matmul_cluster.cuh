// Matmul with bf16 weights on tensor cores for prompts, on GPUs with clusters of blocks (sm_90). Bit-identical to
// matmul_tile.cuh: the same chains of products (wgmma) and the same tree of slices.
//
// What reaches a multiprocessor from L2 limits tiles of 128 x 128 to less than half the peak. Here the blocks of a
// cluster, at row_blocks groups of rows times output_blocks groups of outputs, fetch each weight and each input once: a
// block fetches its share of what a column (row) of blocks needs, and the copy arrives in all of them. Three threads of
// a block start the copies, whole panels and tiles at a time (one cannot start them fast enough); two warpgroups
// compute and wait for nobody but the copies. As many clusters as fit on the GPU compute tile after tile, so that the
// next tile is fetched while the last one is stored.
#pragma once

#include "kernels/cuda/matmul_tile.cuh"

namespace longhaul::kernels::cuda {

/// A block of two warpgroups that compute, each 64 outputs for n_tiles times 8 rows, and one that fetches.
template <int n_tiles, int blocks_of_rows, int blocks_of_outputs>
struct ClusterShape {
    static constexpr int threads = 256;  ///< that compute; they come first
    static constexpr int block_threads = threads + 128;
    static constexpr int row_blocks = blocks_of_rows, output_blocks = blocks_of_outputs;  ///< of a cluster
    static constexpr Extent cluster{row_blocks, output_blocks, 1};
    static constexpr int sharers = row_blocks + output_blocks - 1;  ///< blocks that write into a block's queue
    static constexpr int NT = n_tiles;
    static constexpr int tiles = 8;
    static constexpr int weight_producers = 2;  ///< that fetch weights
    static constexpr int outputs = tiles * tile_outputs;
    static constexpr int rows = NT * 8;
    static constexpr int stage_steps = 2;  ///< a panel of inputs
    static constexpr int panel_bytes = rows * panel_row_bytes;
    static constexpr int tile_bytes = stage_steps * 1024;
    static constexpr int stage_bytes = panel_bytes + tiles * tile_bytes;
    static constexpr int sums_bytes = 4 * outputs * rows;
    static constexpr int max_stages = (static_cast<int>(cluster_shared_bytes) - sums_bytes - 256) / stage_bytes;
    static constexpr int stages = max_stages < 6 ? max_stages : 6;
    static constexpr int queue_bytes = stages * stage_bytes;
    static constexpr int barriers_at = queue_bytes + sums_bytes;
    static constexpr std::size_t shared_bytes = barriers_at + 2 * stages * sizeof(Mbarrier);
    using Sums = float[NT][4];
    static_assert(stages >= 3 && tiles % (weight_producers * row_blocks) == 0);
    static_assert(rows / output_blocks % 8 == 0, "shares of a panel are whole groups of eight rows");
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
    unsigned x = block_of_cluster() % Shape::row_blocks, y = block_of_cluster() / Shape::row_blocks;

    /// The blocks with the same outputs, and those with the same rows.
    [[nodiscard]] __device__ unsigned with_outputs() const {
        return ((1U << Shape::row_blocks) - 1U) << (y * Shape::row_blocks);
    }
    [[nodiscard]] __device__ unsigned with_rows() const {
        unsigned mask = 0;
        for (unsigned i = 0; i < Shape::output_blocks; ++i) mask |= 1U << (i * Shape::row_blocks + x);
        return mask;
    }
    /// Block i of the Shape::sharers that write into this one's queue, and it into theirs.
    [[nodiscard]] __device__ unsigned sharer(unsigned i) const {
        if (i < Shape::row_blocks) return y * Shape::row_blocks + i;
        return (y + i - Shape::row_blocks + 1) % Shape::output_blocks * Shape::row_blocks + x;
    }
};

/// Sizes of a matrix in tiles of a cluster: along the rows, and along the outputs.
struct ClusterTiles {
    int along_rows = 0, along_outputs = 0;
};

/// One of the tiles that a cluster computes one after another; there are about as many clusters as fit on the GPU.
/// Tiles follow each other along the rows. A division would need registers that threads that fetch do not have.
template <class Shape>
class BlockOfTile {
  public:
    __device__ BlockOfTile(const ClusterTiles& tiles, const WeightLayout& layout)
        : tiles_(tiles), last_(static_cast<int>(layout.num_tiles) - Shape::tiles) {
        pass(static_cast<int>(blockIdx.z));
    }
    [[nodiscard]] __device__ bool is_inside() const { return output_ < tiles_.along_outputs; }
    __device__ void advance() { pass(static_cast<int>(gridDim.z)); }
    /// The block's group of rows.
    [[nodiscard]] __device__ int rows() const { return row_ * Shape::row_blocks + static_cast<int>(blockIdx.x); }
    /// The first of its tiles of outputs. The last blocks begin earlier, so that they have all their tiles: where
    /// blocks overlap, they store the same.
    [[nodiscard]] __device__ int first_tile() const {
        const int first = (output_ * Shape::output_blocks + static_cast<int>(blockIdx.y)) * Shape::tiles;
        return first < last_ ? first : last_;
    }

  private:
    __device__ void pass(int tiles) {
        for (row_ += tiles; row_ >= tiles_.along_rows; row_ -= tiles_.along_rows) ++output_;
    }

    const ClusterTiles& tiles_;
    int last_;
    int row_ = 0, output_ = 0;
};

/// Calls fetch(bytes) for each stage of a block, in order; `bytes`: of a tile's weights.
template <class Shape, class Fetch>
__device__ __forceinline__ void for_each_stage(const WeightLayout& layout, Fetch fetch) {
#pragma unroll 1
    for (int slice = 0; slice < layout.num_slices; ++slice) {
#pragma unroll 1
        for (int steps = static_cast<int>(layout.steps); steps > 0; steps -= Shape::stage_steps)
            fetch(steps >= Shape::stage_steps ? Shape::tile_bytes : Shape::tile_bytes / 2);
    }
}

/// Fetches this block's share of the panels. One thread, whose arrival lets the phase of a stage end.
template <class Shape>
class PanelProducer {
  public:
    __device__ PanelProducer(const MatmulJob& job, const std::byte* panels) : job_(job), panels_(panels) {}

    /// For a block with this group of rows.
    __device__ __forceinline__ void fetch(int rows, int /*first_tile*/) {
        auto from = static_cast<unsigned>(rows * row_group_bytes<Shape>(job_.layout) + first_byte());  // bytes, few
        for_each_stage<Shape>(job_.layout, [&](int bytes) {
            wait_for_phase(queue_.empty(queue_.slot), queue_.parity ^ 1U);
            Mbarrier* const full = queue_.full(queue_.slot);
            arrive_with_bytes(full, Shape::panel_bytes + Shape::tiles * bytes);
            copy_bulk(queue_.stage(queue_.slot) + first_byte(), panels_ + from, share, full,
                      ClusterPlace<Shape>().with_rows());
            from += Shape::panel_bytes;
            queue_.advance();
        });
    }

    /// Waits until all have read the last stages: then nobody arrives at this block's barriers any more.
    __device__ void end() {
#pragma unroll 1
        for (int i = 0; i < Shape::stages; ++i) {
            wait_for_phase(queue_.empty(queue_.slot), queue_.parity ^ 1U);
            queue_.advance();
        }
    }

  private:
    static constexpr int share = Shape::panel_bytes / Shape::output_blocks;
    [[nodiscard]] static __device__ int first_byte() {
        return static_cast<int>(ClusterPlace<Shape>().y) * share;
    }

    const MatmulJob& job_;
    const std::byte* panels_;
    ClusterQueue<Shape> queue_;
};

/// Fetches a part of this block's share of the weights: the tiles of one of Shape::weight_producers threads.
template <class Shape>
class WeightProducer {
  public:
    __device__ WeightProducer(const MatmulJob& job, int part)
        : job_(job), first_((static_cast<int>(ClusterPlace<Shape>().x) * Shape::weight_producers + part) * tiles) {}

    /// For a block that starts with this tile.
    __device__ __forceinline__ void fetch(int /*rows*/, int first_tile) {
        const WeightLayout& layout = job_.layout;
        // Offsets in units of 16 bytes: they take one register each.
        const unsigned stride = static_cast<unsigned>(layout.num_slices) * static_cast<unsigned>(layout.steps) * 64;
        unsigned from = static_cast<unsigned>(first_tile + first_) * stride;
        for_each_stage<Shape>(layout, [&](int bytes) {
            wait_for_phase(queue_.empty(queue_.slot), queue_.parity ^ 1U);
            std::byte* const to = queue_.stage(queue_.slot) + Shape::panel_bytes + first_ * Shape::tile_bytes;
            unsigned at = from;
#pragma unroll 1
            for (int t = 0; t < tiles; ++t) {
                copy_bulk(to + t * Shape::tile_bytes, job_.weights + std::uint64_t{16} * at, bytes,
                          queue_.full(queue_.slot), ClusterPlace<Shape>().with_outputs());
                at += stride;
            }
            from += static_cast<unsigned>(bytes) / 16;
            queue_.advance();
        });
    }

    __device__ void end() {}

  private:
    static constexpr int tiles = Shape::tiles / Shape::row_blocks / Shape::weight_producers;

    const MatmulJob& job_;
    ClusterQueue<Shape> queue_;
    int first_;  ///< of the block's tiles
};

/// `producer` for all tiles of the cluster.
template <class Shape, class Producer>
__device__ __forceinline__ void fetch_tiles(Producer producer, const ClusterTiles& tiles, const WeightLayout& layout) {
#pragma unroll 1
    for (BlockOfTile<Shape> block(tiles, layout); block.is_inside(); block.advance())
        producer.fetch(block.rows(), block.first_tile());
    producer.end();
}

/// One warp's side of the queue: adds the products of whole slices, a step of 32 inputs at a time. The products of a
/// step are computed while the next one's weights are loaded.
template <class Shape>
class StageConsumer {
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
/// KeptSums the sum of the first four.
template <class Shape>
__device__ __forceinline__ void add_slices(StageConsumer<Shape>& reader, const WeightLayout& layout,
                                           typename Shape::Sums& total) {
    const int slices = layout.num_slices, steps = static_cast<int>(layout.steps);
#pragma unroll 1
    for (int first = 0; first < slices; first += 4) {
        if (first == 4) KeptSums<Shape>::keep(total);
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
    if (slices == 8) KeptSums<Shape>::add_to(total);
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Grid: the blocks of a cluster; clusters. `panels`: the inputs, as arrange_panels() leaves them.
template <class Shape, bool is_gated>
__global__ void LONGHAUL_CLUSTER_DIMS(Shape::row_blocks, Shape::output_blocks, 1)
    __launch_bounds__(Shape::block_threads, 1)
        cluster_matmul(MatmulJob job, const std::byte* panels, ClusterTiles tiles) {
    ClusterQueue<Shape>::init();
    if (threadIdx.x >= Shape::threads) {
        give_registers<24>();
        const int warp = static_cast<int>(threadIdx.x - Shape::threads) / 32;
        if (threadIdx.x % 32 == 0) {
            if (warp == 0) {
                fetch_tiles<Shape>(PanelProducer<Shape>(job, panels), tiles, job.layout);
            } else if (warp <= Shape::weight_producers) {
                fetch_tiles<Shape>(WeightProducer<Shape>(job, warp - 1), tiles, job.layout);
            }
        }
        __syncwarp();
    } else {
        take_registers<240>();
        StageConsumer<Shape> reader;
#pragma unroll 1
        for (BlockOfTile<Shape> block(tiles, job.layout); block.is_inside(); block.advance()) {
            TileTree<Shape, is_gated> tree{job, block.rows(), block.first_tile()};
            add_slices<Shape>(reader, job.layout, tree.sum);
            tree.store();
        }
    }
    end_in_cluster();  // others write into this block's shared memory until they end
}
#else
template <class Shape, bool is_gated>
__global__ void __launch_bounds__(32) cluster_matmul(MatmulJob, const std::byte*, ClusterTiles) {}  // as slice_matmul
#endif

}  // namespace longhaul::kernels::cuda
