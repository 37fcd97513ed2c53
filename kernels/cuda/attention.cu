// Attention of CudaDevice: a plan of the pass's rows, once for all layers; then for each layer the partial results of
// its units and their merging.
#include <cmath>
#include <stdexcept>

#include "kernels/cuda/attention_exact.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_part.hpp"
#include "kernels/cuda/attention_tensor.cuh"

namespace longhaul::kernels::cuda {
namespace {

bool on_tensor_cores(Arithmetic arithmetic, const KvLayout& layout) {
    return arithmetic == Arithmetic::tensor && layout.dtype == DType::bf16 && layout.head_dim <= 256;
}

PlanShape plan_shape(bool tensor_cores, int multiprocessors, const AttentionCall& call) {
    PlanShape shape{.group_heads = static_cast<int>(call.q_heads / call.layout.num_kv_heads),
                    .num_kv_heads = static_cast<int>(call.layout.num_kv_heads),
                    .head_dim = static_cast<int>(call.layout.head_dim),
                    .narrow_queries = exact_queries,
                    .wide_queries = exact_queries};
    if (!tensor_cores) return shape;
    shape.narrow_queries = 16;
    shape.wide_queries = call.layout.head_dim <= 128 ? 64 : 16;  // beyond, outputs do not fit into registers
    shape.span_chunks = tensor_span_chunks;
    shape.enough_units = 4 * multiprocessors;
    return shape;
}

template <int DIM, int ROW_WARPS>
void launch_tensor(const Stream& stream, const AttentionArgs& args, dim3 grid) {
    launch(stream, tensor_kernel<DIM, ROW_WARPS>, grid, dim3(attention_threads),
           static_cast<std::size_t>(TensorTile<DIM, ROW_WARPS>::shared_bytes), args);
}

void launch_narrow(const Stream& stream, const AttentionArgs& args, dim3 grid) {
    const int dim = args.shape.head_dim;
    if (dim <= 32) return launch_tensor<32, 1>(stream, args, grid);
    if (dim <= 64) return launch_tensor<64, 1>(stream, args, grid);
    if (dim <= 128) return launch_tensor<128, 1>(stream, args, grid);
    launch_tensor<256, 1>(stream, args, grid);
}

void launch_wide(const Stream& stream, const AttentionArgs& args, dim3 grid) {
    const int dim = args.shape.head_dim;
    if (dim <= 32) return launch_tensor<32, 4>(stream, args, grid);
    if (dim <= 64) return launch_tensor<64, 4>(stream, args, grid);
    launch_tensor<128, 4>(stream, args, grid);
}

template <DType KV>
void launch_exact_of(const Stream& stream, const AttentionArgs& args, dim3 grid) {
    const ExactShape shape(args.shape, KV);
    const dim3 block(attention_threads);
    const int dim = args.shape.head_dim;
    if (dim <= 128) return launch(stream, exact_kernel<KV, 1>, grid, block, shape.shared_bytes(), args, shape);
    if (dim <= 256) return launch(stream, exact_kernel<KV, 2>, grid, block, shape.shared_bytes(), args, shape);
    launch(stream, exact_kernel<KV, 4>, grid, block, shape.shared_bytes(), args, shape);
}

void launch_exact(const Stream& stream, DType dtype, const AttentionArgs& args, dim3 grid) {
    if (args.shape.head_dim > most_exact_dims) throw std::logic_error("attention: head_dim is at most 512 on a GPU");
    if (dtype == DType::bf16) return launch_exact_of<DType::bf16>(stream, args, grid);
    if (dtype == DType::f32) return launch_exact_of<DType::f32>(stream, args, grid);
    launch_exact_of<DType::int8>(stream, args, grid);
}

}  // namespace

void AttentionPart::prepare(const Stream& stream, const DevicePass& pass, const PlanShape& shape) {
    if (planned_ == pass.number && shape_ == shape) return;
    plan_ = make_plan(pass.host, shape);
    const auto units = std::span<const PlanUnit>(plan_.units);
    const auto rows = std::span<const PlanRow>(plan_.rows);
    const auto paths = std::span<const std::int32_t>(plan_.paths);
    const auto pages = std::span<std::byte* const>(plan_.pages);
    upload_.begin(Upload::rounded(units.size_bytes()) + Upload::rounded(rows.size_bytes()) +
                  Upload::rounded(paths.size_bytes()) + Upload::rounded(pages.size_bytes()));
    const std::size_t at_units = upload_.add(units);
    const std::size_t at_rows = upload_.add(rows);
    const std::size_t at_paths = upload_.add(paths);
    const std::size_t at_pages = upload_.add(pages);
    const std::byte* at = upload_.send(stream);
    device_ = {reinterpret_cast<const PlanUnit*>(at + at_units), reinterpret_cast<const PlanRow*>(at + at_rows),
               reinterpret_cast<const std::int32_t*>(at + at_paths),
               reinterpret_cast<const std::byte* const*>(at + at_pages)};
    planned_ = pass.number;
    shape_ = shape;
}

void AttentionPart::run(const Stream& stream, Arithmetic arithmetic, int multiprocessors, const DevicePass& pass,
                        const AttentionCall& call) {
    const bool tensor_cores = on_tensor_cores(arithmetic, call.layout);
    const PlanShape shape = plan_shape(tensor_cores, multiprocessors, call);
    prepare(stream, pass, shape);
    std::int64_t entries = 0;
    for (const PlanRound& round : plan_.rounds) entries = std::max(entries, round.num_entries);
    const KvShape kv(call.layout);
    const AttentionArgs args{
        .shape = kv,
        .first_block = kv.block(call.layer, 0, false),
        .units = device_.units,
        .rows = device_.rows,
        .paths = device_.paths,
        .pages = device_.pages,
        .q = call.q,
        .q_heads = static_cast<int>(call.q_heads),
        .group_heads = shape.group_heads,
        .scale = 1.0F / std::sqrt(static_cast<float>(call.layout.head_dim)),
        .outputs = outputs_.get<float>(stream, entries * call.q_heads * call.layout.head_dim),
        .softmax = softmax_.get<float2>(stream, entries * call.q_heads),
    };
    for (const PlanRound& round : plan_.rounds) run_round(stream, tensor_cores, call, args, round);
}

void AttentionPart::run_round(const Stream& stream, bool tensor_cores, const AttentionCall& call, AttentionArgs args,
                              const PlanRound& round) {
    const auto kv_heads = static_cast<unsigned>(call.layout.num_kv_heads);
    const dim3 narrow(static_cast<unsigned>(round.num_narrow), kv_heads);
    const dim3 wide(static_cast<unsigned>(round.num_wide), kv_heads);
    args.units = device_.units + round.first_narrow;
    if (tensor_cores) {
        launch_narrow(stream, args, narrow);
        args.units = device_.units + round.first_wide;
        launch_wide(stream, args, wide);
    } else {
        launch_exact(stream, call.layout.dtype, args, narrow);
    }
    merge(stream, call, args, round);
}

void AttentionPart::merge(const Stream& stream, const AttentionCall& call, const AttentionArgs& args,
                          const PlanRound& round) {
    const MergeArgs merge_args{
        .rows = device_.rows + round.first_row,
        .outputs = args.outputs,
        .softmax = args.softmax,
        .q_heads = args.q_heads,
        .head_dim = args.shape.head_dim,
        .unit_chunks = plan_.unit_chunks,
        .span_chunks = shape_->span_chunks,
        .act = call.act,
        .out = call.out,
        .out_stride = call.out_stride,
    };
    const dim3 grid(static_cast<unsigned>(round.num_rows), static_cast<unsigned>(call.q_heads));
    launch(stream, merge_kernel, grid, dim3(attention_threads), merge_shared_bytes(round.most_entries), merge_args);
}

}  // namespace longhaul::kernels::cuda
