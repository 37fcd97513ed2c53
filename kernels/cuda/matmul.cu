// CudaDevice::matmul: selects the kernel and its shape. The choice never changes a bit of the result (matmul.cuh).
#include <algorithm>
#include <stdexcept>

#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/matmul_cluster.cuh"
#include "kernels/cuda/matmul_exact.cuh"
#include "kernels/cuda/matmul_quantized.cuh"
#include "kernels/cuda/matmul_slices.cuh"
#include "kernels/cuda/matmul_split.hpp"
#include "kernels/cuda/matmul_stream.cuh"
#include "kernels/cuda/matmul_tile.cuh"

namespace longhaul::kernels::cuda {
namespace {

unsigned pieces(std::int64_t whole, std::int64_t piece) {
    return static_cast<unsigned>((whole + piece - 1) / piece);
}

/// Copies bf16 rows, padding each slice with zeros to whole steps. Grid: rows along x, which alone allows
/// so large a number; groups of words.
__global__ void __launch_bounds__(max_row_threads)
    pad_slices(const std::uint32_t* x, std::int64_t x_stride, int num_slices, std::int64_t slice_length,
               std::int64_t padded, std::uint32_t* to) {
    const std::int64_t word = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x, words = padded / 2;
    if (word >= num_slices * words) return;
    const std::int64_t slice = word / words, k = word % words * 2;
    to[blockIdx.x * num_slices * words + word] =
        k < slice_length ? x[(blockIdx.x * x_stride + slice * slice_length + k) / 2] : 0;
}

/// Sets the columns of `active` beyond its width to zero. Grid: rows.
__global__ void __launch_bounds__(max_row_threads) clear_columns(MatmulJob job) {
    for (std::int64_t i = job.gated_width + threadIdx.x; i < job.active_stride; i += blockDim.x) {
        const float zero[1] = {0.0F};
        store_act(job.active + blockIdx.x * job.active_stride * (job.active_bf16 ? 2 : 4), job.active_bf16, i, zero);
    }
}

void clear_padding(const Stream& stream, const MatmulJob& job) {
    const std::int64_t columns = job.active_stride - job.gated_width;
    if (columns == 0) return;
    launch(stream, clear_columns, dim3(static_cast<unsigned>(job.num_rows)), dim3(threads_for(columns)), 0, job);
}

/// Launches the kernels of one matmul. Grids iterate over rows first, so that concurrent blocks read the same weights.
class Product {
  public:
    Product(const Stream& stream, const GpuProperties& gpu, MatmulMemory& memory, const MatmulJob& job)
        : stream_(stream), gpu_(gpu), memory_(memory), job_(job) {}

    template <DType type>
    void exact() {
        if (job_.num_rows == 1) return exact_rows<type, 1>();
        exact_rows<type, 4>();
    }

    void tensor() {
        align_inputs();
        if (job_.num_rows <= 8) return stream<1, 1, 4, 8>();
        if (job_.num_rows <= 16) return stream<2, 2, 4, 8>();
        if (job_.num_rows <= 32) return tree<4>();
        if (job_.num_rows <= 64) return tree<8>();
        prompts();
    }

    template <DType type>
    void quantized() {
        quantize<type>();
        if (job_.num_rows <= 8) return quantized_stream<type, 1, 1, 4, 8>();
        if (job_.num_rows <= 16) return quantized_stream<type, 2, 2, 3, 8>();
        if (job_.num_rows <= 32) return quantized_stream<type, 2, 4, 3, 8>();
        quantized_stream<type, 4, 8, 3, 4>();
    }

  private:
    /// As many rows per launch as stay in the L2 cache, because the blocks of every tile of outputs read all of them.
    void prompts() {
        if (clusters()) return;
        constexpr std::int64_t cached_bytes = std::int64_t{24} << 20, multiple = PromptTile::rows;
        const std::int64_t max_rows = std::max(multiple, cached_bytes / (job_.x_stride * 2) / multiple * multiple);
        const MatmulJob all = job_;
        for (std::int64_t first = 0; first < all.num_rows; first += max_rows) {
            job_ = rows_of(all, first, std::min(max_rows, all.num_rows - first));
            tile<PromptTile>();
        }
    }
    static MatmulJob rows_of(MatmulJob job, std::int64_t first, std::int64_t count) {
        job.x += first * job.x_stride * 2;
        job.num_rows = count;
        job.y += first * job.num_outputs;
        if (job.active != nullptr) job.active += first * job.active_stride * (job.active_bf16 ? 2 : 4);
        return job;
    }

    template <DType type, int rows>
    void exact_rows() {
        const dim3 grid(pieces(job_.num_rows, rows), pieces(job_.layout.num_tiles, exact_tiles));
        const int num_slices = job_.layout.num_slices;
        launch(stream_, exact_matmul<type, rows>, grid,
               dim3(static_cast<unsigned>(num_slices * exact_threads_of_slice)), exact_bytes(num_slices, rows), job_);
    }

    template <int MT, int NT, int stages, int max_warps>
    void stream() {
        using Shape = StreamShape<MT, NT, stages>;
        const dim3 tiles(pieces(job_.num_rows, Shape::rows), pieces(job_.layout.num_tiles, MT));
        const dim3 grid = split_among(tiles, max_warps);
        const int warps = job_.layout.num_slices / job_.split;
        launch(early(stream_), stream_matmul<MT, NT, stages, max_warps>, grid, dim3(static_cast<unsigned>(warps) * 32),
               Shape::shared_bytes(warps), job_);
    }

    template <int n_tiles>
    void tree() {
        // Many tiles occupy the GPU as they are.
        if (job_.layout.num_tiles <= std::int64_t{SliceTile<n_tiles>::tiles} * gpu_.multiprocessors) {
            if (job_.layout.num_slices == 8 && slices<SliceTile<n_tiles>, 8>()) return;
            if (job_.layout.num_slices == 4 && slices<SliceTile<n_tiles>, 4>()) return;
        }
        tile<TreeTile<n_tiles>, true>();
    }
    /// Each block of a cluster multiplies one slice; false if the GPU has no clusters.
    template <class Shape, int num_slices>
    bool slices() {
        if (gpu_.major != 9) return false;
        static const int resident =
            resident_clusters(reinterpret_cast<const void*>(slice_matmul<Shape, num_slices, false>), Shape::threads,
                              SliceSums<Shape>::shared_bytes, {num_slices, 1, 1});
        if (resident == 0) return false;
        const auto kernel =
            job_.gated_width == 0 ? slice_matmul<Shape, num_slices, false> : slice_matmul<Shape, num_slices, true>;
        Place place = in_clusters(stream_, num_slices, 1);
        place.early = true;
        launch(place, kernel, dim3(num_slices, pieces(job_.layout.num_tiles, Shape::tiles)), dim3(Shape::threads),
               SliceSums<Shape>::shared_bytes, job_);
        return true;
    }
    template <class Shape, bool is_early = false>
    void tile() {
        const dim3 tiles(pieces(job_.num_rows, Shape::rows), pieces(job_.layout.num_tiles, Shape::tiles));
        const auto kernel =
            job_.gated_width == 0 ? tile_matmul<Shape, false, is_early> : tile_matmul<Shape, true, is_early>;
        const int blocks = gpu_.major == 9 ? Shape::min_blocks : 1;
        const Place place(stream_, false, is_early);
        launch(place, kernel, split_among(tiles, 8, blocks), dim3(Shape::threads), Shape::shared_bytes, job_);
    }

    /// Multiplies in clusters of blocks; false if the GPU has none, or if too few blocks would occupy it without a
    /// split. Clusters of four read less from L2, pairs fit better on the GPU and the matrix.
    bool clusters() {
        using Four = ClusterShape<16, 2, 2>;
        using Two = ClusterShape<16, 1, 2>;
        const std::int64_t blocks =
            std::int64_t{pieces(job_.num_rows, Two::rows)} * pieces(job_.layout.num_tiles, Two::tiles);
        if (4 * blocks < 3 * gpu_.multiprocessors || job_.layout.num_tiles < Two::tiles) return false;
        if (gpu_.major != 9 || resident<Four>() == 0 || resident<Two>() == 0) return false;
        constexpr std::int64_t stage_of_four = 353, stage_of_two = 446;  // nanoseconds on an H100
        if (stage_of_four * rounds<Four>() <= stage_of_two * rounds<Two>()) {
            in_clusters_of<Four>();
        } else {
            in_clusters_of<Two>();
        }
        return true;
    }
    /// Clusters that fit on the GPU; 0: it has none.
    template <class Shape>
    static int resident() {
        static const int count = resident_clusters(reinterpret_cast<const void*>(cluster_matmul<Shape, false>),
                                                   Shape::block_threads, Shape::shared_bytes, Shape::cluster);
        return count;
    }
    template <class Shape>
    [[nodiscard]] static ClusterTiles tiles_of(const MatmulJob& job) {
        return {.along_rows = static_cast<int>(pieces(job.num_rows, std::int64_t{Shape::rows} * Shape::row_blocks)),
                .along_outputs =
                    static_cast<int>(pieces(job.layout.num_tiles, std::int64_t{Shape::tiles} * Shape::output_blocks))};
    }
    template <class Shape>
    [[nodiscard]] std::int64_t rounds() const {
        const ClusterTiles tiles = tiles_of<Shape>(job_);
        return pieces(std::int64_t{tiles.along_rows} * tiles.along_outputs, resident<Shape>());
    }

    /// No more rows per launch than stay in the L2 cache beside the weights of concurrent blocks.
    template <class Shape>
    void in_clusters_of() {
        constexpr std::int64_t cluster_rows = Shape::rows * Shape::row_blocks, cached_clusters = 2048 / cluster_rows;
        const std::int64_t of_group = row_group_bytes<Shape>(job_.layout);
        const std::int64_t max_rows =
            std::clamp(memory_.max_panel_bytes / (Shape::row_blocks * of_group), std::int64_t{1}, cached_clusters) *
            cluster_rows;
        const auto kernel = job_.gated_width == 0 ? cluster_matmul<Shape, false> : cluster_matmul<Shape, true>;
        const MatmulJob all = job_;
        for (std::int64_t first = 0; first < all.num_rows; first += max_rows) {
            job_ = rows_of(all, first, std::min(max_rows, all.num_rows - first));
            const ClusterTiles tiles = tiles_of<Shape>(job_);
            const std::int64_t bytes = tiles.along_rows * Shape::row_blocks * of_group;
            auto* const panels = memory_.panels.get<std::byte>(stream_, bytes);
            launch(stream_, arrange_panels<Shape>, dim3(static_cast<unsigned>(bytes / Shape::panel_bytes)),
                   dim3(max_row_threads), 0, job_, panels);
            const dim3 grid(Shape::row_blocks, Shape::output_blocks,
                            static_cast<unsigned>(std::min(tiles.along_rows * tiles.along_outputs, resident<Shape>())));
            launch(in_clusters(stream_, Shape::row_blocks, Shape::output_blocks), kernel, grid,
                   dim3(Shape::block_threads), Shape::shared_bytes, job_, panels, tiles);
        }
    }

    template <DType type, int MT, int NT, int stages, int max_warps>
    void quantized_stream() {
        using Shape = QuantizedShape<type, MT, NT, stages>;
        const dim3 tiles(pieces(job_.num_rows, Shape::Sums::rows), pieces(job_.layout.num_tiles, MT));
        const dim3 grid = split_among(tiles, max_warps);
        const int warps = job_.layout.num_slices / job_.split;
        launch(early(stream_), quantized_matmul<type, MT, NT, stages, max_warps>, grid,
               dim3(static_cast<unsigned>(warps) * 32), Shape::shared_bytes(warps), job_);
    }

    /// Splits the slices among blocks: into subtrees of at most `max_slices`.
    dim3 split_among(dim3 tiles, int max_slices, int blocks_per_multiprocessor = 1) {
        const auto num_tiles = static_cast<std::int64_t>(tiles.x) * tiles.y;
        job_.split = split_of_slices(num_tiles, job_.layout.num_slices, max_slices,
                                     blocks_per_multiprocessor * gpu_.multiprocessors);
        if (job_.split > 1) {
            job_.parts = memory_.parts.get<float>(stream_, job_.split * job_.num_rows * job_.num_outputs);
            job_.arrived = memory_.zeros(stream_, num_tiles);
        }
        return {tiles.x, tiles.y, static_cast<unsigned>(job_.split)};
    }

    /// Tensor core kernels fetch inputs 16 bytes at a time. The sizes of common models are all aligned.
    void align_inputs() {
        const WeightLayout& layout = job_.layout;
        const bool aligned = layout.slice_length % 8 == 0 && job_.x_stride % 8 == 0 &&
                             reinterpret_cast<std::uintptr_t>(job_.x) % 16 == 0;
        if (aligned) return;
        const std::int64_t padded = layout.steps * step_inputs(DType::bf16), row = layout.num_slices * padded;
        auto* const to = memory_.inputs.get<std::uint32_t>(stream_, job_.num_rows * row / 2);
        const unsigned threads = threads_for(row / 2);
        const dim3 grid(static_cast<unsigned>(job_.num_rows), pieces(row / 2, threads));
        launch(stream_, pad_slices, grid, dim3(threads), 0, reinterpret_cast<const std::uint32_t*>(job_.x),
               job_.x_stride, layout.num_slices, layout.slice_length, padded, to);
        job_.x = reinterpret_cast<const std::byte*>(to);
        job_.x_stride = row;
        job_.x_slice = padded;
        job_.layout.slice_length = padded;
    }

    template <DType type>
    void quantize() {
        const WeightLayout& layout = job_.layout;
        const std::int64_t num_steps = layout.num_slices * layout.steps;
        const std::int64_t scale_rows = (job_.num_rows + 7) / 8 * 8;
        QuantizeJob quantize{.layout = layout, .x = job_.x, .x_stride = job_.x_stride, .num_rows = job_.num_rows};
        quantize.whole = memory_.inputs.get<std::int8_t>(stream_, scale_rows * num_steps * 64);
        quantize.scales = memory_.scales.get<float>(stream_, num_steps * step_blocks(type) * scale_rows);
        quantize.scale_rows = scale_rows;
        const unsigned threads = threads_for(num_steps * 8);
        const dim3 grid(static_cast<unsigned>(scale_rows), pieces(num_steps * 8, threads));
        launch(early(stream_), quantize_inputs<type>, grid, dim3(threads), 0, quantize);
        job_.x = reinterpret_cast<const std::byte*>(quantize.whole);
        job_.x_stride = num_steps * 64;
        job_.x_slice = layout.steps * 64;
        job_.x_scales = quantize.scales;
        job_.scale_rows = scale_rows;
    }

    const Stream& stream_;
    const GpuProperties& gpu_;
    MatmulMemory& memory_;
    MatmulJob job_;
};

}  // namespace

void CudaDevice::matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) {
    check_matmul(w, x_stride, num_rows);
    if (w.gated) throw std::logic_error("matmul: a gated matrix needs gated_matmul");
    multiply(w, x, x_stride, num_rows, y, nullptr);
}

void CudaDevice::multiply(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y,
                          const GatedOutput* gated) {
    if (num_rows == 0 || w.num_outputs == 0) return;
    MatmulJob job{.weights = w.data.data(),
                  .layout = WeightLayout::of(w),
                  .num_outputs = w.num_outputs,
                  .x = x,
                  .x_stride = x_stride,
                  .x_slice = w.slice_length,
                  .num_rows = num_rows,
                  .y = y};
    if (gated != nullptr) {
        job.gated_width = w.num_outputs / 2;
        job.gate = gated->gate;
        job.active_bf16 = gated->act == DType::bf16;
        job.active = gated->out;
        job.active_stride = gated->stride;
        clear_padding(state_->stream, job);
    }
    Product product(state_->stream, state_->properties, state_->products, job);
    switch (w.dtype) {
        case DType::int8:
            return product.quantized<DType::int8>();
        case DType::int4:
            return product.quantized<DType::int4>();
        case DType::f32:
            return product.exact<DType::f32>();
        default:
            break;
    }
    if (state_->arithmetic == Arithmetic::exact) return product.exact<DType::bf16>();
    product.tensor();
}

}  // namespace longhaul::kernels::cuda
