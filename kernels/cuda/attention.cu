// CudaDevice::attention: plans the rows of a pass once for all layers, then per layer computes the partial results of
// the plan's units and merges them.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/checks.hpp"
#include "kernels/cuda/attention_exact.cuh"
#include "kernels/cuda/attention_merge_few.cuh"
#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/attention_warpgroup.cuh"
#include "kernels/cuda/cuda_state.hpp"

namespace longhaul::kernels::cuda {
namespace {

/// The kernels for tensor cores have no soft cap.
bool on_tensor_cores(Arithmetic arithmetic, const KvLayout& layout) {
    return arithmetic != Arithmetic::exact && layout.dtype != DType::f32 && layout.head_dim <= 256 &&
           layout.score_cap == 0.0F;
}

PlanShape plan_shape(const AttentionCall& call, const GpuProperties& gpu) {
    PlanShape shape{.group_heads = static_cast<int>(call.q_heads / call.layout.num_kv_heads),
                    .num_kv_heads = static_cast<int>(call.layout.num_kv_heads),
                    .head_dim = static_cast<int>(call.layout.head_dim),
                    .window = call.layout.window,
                    .narrow_queries = exact_queries,
                    .wide_queries = exact_queries,
                    .chunk_pages = chunk_pages};
    if (!call.tensor_cores) return shape;
    shape.narrow_queries = 16;
    shape.wide_queries = call.layout.head_dim <= 128 ? 64 : 16;  // wider heads: outputs do not fit into registers
    if (gpu.major == 9 && call.layout.dtype == DType::bf16 && shape.head_dim > 32 && shape.head_dim <= 128)  // wgmma
        shape.widest_queries = WarpgroupTile<128>::queries;
    shape.chunk_pages = tensor_chunk_pages;
    shape.span_chunks = tensor_span_chunks;
    shape.enough_units = gpu.multiprocessors;
    return shape;
}

template <int DIM, int ROW_WARPS, DType KV>
void launch_tensor(const Place& place, const AttentionArgs& args, dim3 grid) {
    launch(place, tensor_kernel<DIM, ROW_WARPS, KV>, grid, dim3(attention_threads),
           static_cast<std::size_t>(TensorTile<DIM, ROW_WARPS, KV>::shared_bytes), args);
}

void launch_narrow(const Place& place, DType dtype, const AttentionArgs& args, dim3 grid) {
    const int dim = args.shape.head_dim;
    if (dtype == DType::int8) {
        if (dim <= 64) return launch_tensor<64, 1, DType::int8>(place, args, grid);
        if (dim <= 128) return launch_tensor<128, 1, DType::int8>(place, args, grid);
        return launch_tensor<256, 1, DType::int8>(place, args, grid);
    }
    if (dim <= 32) return launch_tensor<32, 1, DType::bf16>(place, args, grid);
    if (dim <= 64) return launch_tensor<64, 1, DType::bf16>(place, args, grid);
    if (dim <= 128) return launch_tensor<128, 1, DType::bf16>(place, args, grid);
    launch_tensor<256, 1, DType::bf16>(place, args, grid);
}

void launch_wide(const Place& place, DType dtype, const AttentionArgs& args, dim3 grid) {
    const int dim = args.shape.head_dim;
    if (dtype == DType::int8) {
        if (dim <= 64) return launch_tensor<64, 4, DType::int8>(place, args, grid);
        return launch_tensor<128, 4, DType::int8>(place, args, grid);
    }
    if (dim <= 32) return launch_tensor<32, 4, DType::bf16>(place, args, grid);
    if (dim <= 64) return launch_tensor<64, 4, DType::bf16>(place, args, grid);
    launch_tensor<128, 4, DType::bf16>(place, args, grid);
}

template <int DIM>
void launch_warpgroups_of(const Place& place, const AttentionArgs& args, dim3 grid) {
    using T = WarpgroupTile<DIM>;
    launch(place, warpgroup_kernel<DIM>, grid, dim3(T::threads), static_cast<std::size_t>(T::shared_bytes), args);
}
void launch_warpgroups(const Place& place, const AttentionArgs& args, dim3 grid) {
    if (args.shape.head_dim <= 64) return launch_warpgroups_of<64>(place, args, grid);
    launch_warpgroups_of<128>(place, args, grid);
}

template <DType KV>
void launch_exact_of(const Stream& stream, const AttentionArgs& args, dim3 grid) {
    const ExactShape shape(args.shape, KV);
    const dim3 block(attention_threads);
    const int dim = args.shape.head_dim;
    if (dim <= 128) return launch(stream, exact_kernel<KV, 1>, grid, block, shape.shared_bytes(), args, shape);
    if (dim <= 256) return launch(stream, exact_kernel<KV, 2>, grid, block, shape.shared_bytes(), args, shape);
    launch(stream, exact_kernel<KV, max_exact_dims / 128>, grid, block, shape.shared_bytes(), args, shape);
}

void launch_exact(const Stream& stream, DType dtype, const AttentionArgs& args, dim3 grid) {
    if (args.shape.head_dim > max_exact_dims || ExactShape(args.shape, dtype).shared_bytes() > block_shared_bytes) {
        throw std::logic_error("attention: keys of head_dim " + std::to_string(args.shape.head_dim) +
                               " are too wide for a GPU");
    }
    if (dtype == DType::bf16) return launch_exact_of<DType::bf16>(stream, args, grid);
    if (dtype == DType::f32) return launch_exact_of<DType::f32>(stream, args, grid);
    launch_exact_of<DType::int8>(stream, args, grid);
}

}  // namespace

std::int64_t AttentionPart::bytes(const KvLayout& layout, const PassSize& pass, const GpuProperties& gpu) {
    const PlanShape shape = plan_shape({.tensor_cores = false,
                                        .layout = layout,
                                        .layer = 0,
                                        .q = nullptr,
                                        .q_heads = pass.q_heads,
                                        .sinks = nullptr,
                                        .act = DType::f32,
                                        .out = nullptr,
                                        .out_stride = 0},
                                       gpu);
    const int tokens = on_tensor_cores(Arithmetic::tensor, layout) ? tensor_chunk_tokens : chunk_tokens;
    const std::int64_t of_row = (pass.positions / tokens + 2) * shape.entry_bytes();
    return std::min(pass.rows * of_row, std::max(of_row, shape.max_bytes));
}

void CudaDevice::attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                           const float* sinks, DType act, std::byte* out, std::int64_t out_stride) {
    check_layout(layout, layer, q_heads);
    const auto num_rows = static_cast<std::int64_t>(state_->pass.on_host().rows.size());
    check_act_rows("attention", act, num_rows, q_heads * layout.head_dim, out_stride);
    const AttentionCall call{
        on_tensor_cores(state_->arithmetic, layout), layout, layer, q, q_heads, sinks, act, out, out_stride};
    const PlanShape shape = plan_shape(call, state_->properties);
    state_->attention.run(state_->stream, state_->ring, state_->pass, state_->far, shape, call);
}

const AttentionPart::GroupPlan& AttentionPart::prepare(const Stream& stream, PinnedRing& ring, const CurrentPass& pass,
                                                       const HostPages& far, const PlanShape& shape,
                                                       std::int64_t group) {
    while (std::ssize(groups_) <= group) groups_.emplace_back();
    GroupPlan& of = groups_[static_cast<std::size_t>(group)];
    if (of.planned == pass.number() && of.shape == shape) return of;
    const Plan& plan = of.plan = make_plan(pass.on_host().group(group), shape);
    parcel_.clear();
    const std::size_t at_units = parcel_.add(std::span<const PlanUnit>(plan.units));
    const std::size_t at_rows = parcel_.add(std::span<const PlanRow>(plan.rows));
    const std::size_t at_paths = parcel_.add(std::span<const std::int32_t>(plan.paths));
    std::vector<PageEntry> pages;
    pages.reserve(plan.pages.size());
    for (const std::byte* page : plan.pages) pages.push_back(far.entry_of(page));
    const std::size_t at_pages = parcel_.add(std::span<const PageEntry>(pages));
    const std::span<const std::byte> bytes = parcel_.bytes();
    auto* const at = of.memory.get<std::byte>(stream, static_cast<std::int64_t>(bytes.size()));
    ring.send(at, bytes.data(), bytes.size());
    of.device = {reinterpret_cast<const PlanUnit*>(at + at_units), reinterpret_cast<const PlanRow*>(at + at_rows),
                 reinterpret_cast<const std::int32_t*>(at + at_paths),
                 reinterpret_cast<const PageEntry*>(at + at_pages)};
    of.planned = pass.number();
    of.shape = shape;
    return of;
}

void AttentionPart::run(const Stream& stream, PinnedRing& ring, const CurrentPass& pass, HostPages& far,
                        const PlanShape& shape, const AttentionCall& call) {
    const GroupPlan& of = prepare(stream, ring, pass, far, shape, call.layout.group);
    std::int64_t entries = 0;
    for (const PlanRound& round : of.plan.rounds) entries = std::max(entries, round.num_entries);
    const KvShape kv(call.layout);
    const float scale = 1.0F / std::sqrt(static_cast<float>(call.layout.head_dim));
    const AttentionArgs args{
        .shape = kv,
        .first_block = kv.block(call.layer, 0, false),
        .units = of.device.units,
        .rows = of.device.rows,
        .paths = of.device.paths,
        .pages = of.device.pages,
        .host_window = far.bring(call.layout, call.layer),
        .q = call.q,
        .q_heads = static_cast<int>(call.q_heads),
        .group_heads = shape.group_heads,
        .scale = scale,
        .log2_scale = scale * exp_constants::log2_e,
        .score_cap = call.layout.score_cap,
        .outputs = outputs_.get<float>(stream, entries * call.q_heads * call.layout.head_dim),
        .softmax = softmax_.get<float2>(stream, entries * call.q_heads),
    };
    for (const PlanRound& round : of.plan.rounds) run_round(stream, call, of, args, round);
    far.done(call.layout, call.layer);
}

void AttentionPart::run_round(const Stream& stream, const AttentionCall& call, const GroupPlan& of, AttentionArgs args,
                              const PlanRound& round) {
    const auto kv_heads = static_cast<unsigned>(call.layout.num_kv_heads);
    const dim3 narrow(static_cast<unsigned>(round.num_narrow), kv_heads);
    const dim3 wide(static_cast<unsigned>(round.num_wide), kv_heads);
    args.units = of.device.units + round.first_narrow;
    if (!call.tensor_cores) {
        launch_exact(stream, call.layout.dtype, args, narrow);
    } else if (round.num_wide == 0) {
        launch_narrow(stream, call.layout.dtype, args, narrow);
    } else {  // concurrently: neither kernel waits for the last blocks of the other
        launch_narrow(beside_the_next(stream), call.layout.dtype, args, narrow);
        args.units = of.device.units + round.first_wide;
        of.plan.wide_queries == WarpgroupTile<128>::queries ? launch_warpgroups(stream, args, wide)
                                                            : launch_wide(stream, call.layout.dtype, args, wide);
    }
    merge(stream, call, of, args, round);
}

void AttentionPart::merge(const Stream& stream, const AttentionCall& call, const GroupPlan& of,
                          const AttentionArgs& args, const PlanRound& round) {
    const MergeArgs merge_args{
        .rows = of.device.rows + round.first_row,
        .outputs = args.outputs,
        .softmax = args.softmax,
        .sinks = call.sinks,
        .q_heads = args.q_heads,
        .head_dim = args.shape.head_dim,
        .whole_spans = of.plan.unit_chunks > 1,
        .act = call.act,
        .out = call.out,
        .out_stride = call.out_stride,
    };
    const bool many = round.max_entries >= many_entries;
    if (!many && merge_args.head_dim % 4 == 0 && call.out_stride % 4 == 0) {
        const auto heads = static_cast<unsigned>((call.q_heads + merge_warps - 1) / merge_warps);
        return launch(stream, call.tensor_cores ? merge_few_kernel<true> : merge_few_kernel<false>,
                      dim3(static_cast<unsigned>(round.num_rows), heads), dim3(attention_threads), 0, merge_args);
    }
    const dim3 grid(static_cast<unsigned>(round.num_rows), static_cast<unsigned>(call.q_heads));
    const auto kernel = call.tensor_cores ? many ? merge_kernel<true, true> : merge_kernel<true, false>
                        : many ? merge_kernel<false, true>
                                          : merge_kernel<false, false>;
    launch(stream, kernel, grid, dim3(attention_threads), merge_shared_bytes(round.max_entries), merge_args);
}

}  // namespace longhaul::kernels::cuda
