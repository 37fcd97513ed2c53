// Keys and values of CudaDevice: RoPE and store, moves, and the events that a concurrent export must wait for.
#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gpu.hpp"
#include "kernels/cuda/math.cuh"
#include "kernels/kv_int8.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr int warp_size = 32;
constexpr int heads_per_block = 4;  // one warp each

/// Arguments of rope_store; pointers to device memory.
struct RopeArgs {
    KvShape shape;
    DType dtype;
    std::int64_t layer;
    int q_heads;
    const KvSlot* slots;  ///< [rows]
    PassAngles angles;    ///< [rows, head_dim / 2] each
    const float* qkv;     ///< [rows, (q_heads + 2 kv_heads) * head_dim]
    std::byte* q_out;     ///< query_type [rows, q_heads, head_dim]
};

/// A head, and the angles that rotate it.
struct HeadRow {
    const float* x;
    const float* c;  ///< nullptr: not rotated
    const float* s;
    int half;
};

/// Calls visit(d, values) for elements d.. of a head as they are stored, `count` at a time: those of a lane in the
/// first half of the head, and those that they are rotated with.
template <int count, class Visit>
__device__ __forceinline__ void for_each_element(const HeadRow& row, int lane, Visit visit) {
#pragma unroll 1  // one turn, mostly
    for (int i = lane * count; i < row.half; i += warp_size * count) {
        float low[count], high[count];
        load_floats(row.x + i, low);
        load_floats(row.x + row.half + i, high);
        if (row.c != nullptr) {
            float c[count], s[count];
            load_floats(row.c + i, c);
            load_floats(row.s + i, s);
            for (int v = 0; v < count; ++v) {
                const float first = low[v], second = high[v];
                low[v] = __fsub_rn(__fmul_rn(first, c[v]), __fmul_rn(second, s[v]));
                high[v] = __fadd_rn(__fmul_rn(second, c[v]), __fmul_rn(first, s[v]));
            }
        }
        visit(i, low);
        visit(row.half + i, high);
    }
}

/// The largest magnitude of a head, computed by one warp; infinity if an element is not finite.
template <int count>
__device__ float largest_of_head(const HeadRow& row, int lane) {
    float largest = 0.0F;
    for_each_element<count>(row, lane, [&](int, const float(&values)[count]) {
        for (int v = 0; v < count; ++v) {
            const float magnitude = __builtin_fabsf(values[v]);
            if (!(magnitude <= largest)) largest = magnitude < __builtin_inff() ? magnitude : __builtin_inff();
        }
    });
    for (int step = warp_size / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(full_warp, largest, step);
        largest = other > largest ? other : largest;
    }
    return largest;
}

template <int count>
__device__ void store_elements(DType dtype, const HeadRow& row, int lane, std::byte* to) {
    for_each_element<count>(
        row, lane, [&](int d, const float(&values)[count]) { store_act(to, dtype == DType::bf16, d, values); });
}

/// Stores a key (or value) to slot `slot` of its block.
template <int count>
__device__ void store_token(const RopeArgs& args, const HeadRow& row, int lane, std::byte* block, int slot) {
    std::byte* to = block + static_cast<std::int64_t>(slot) * args.shape.row_bytes;
    if (args.dtype != DType::int8) return store_elements<count>(args.dtype, row, lane, to);
    const QuantizationScale whole = QuantizationScale::of(largest_of_head<count>(row, lane), max_quantized_kv);
    for_each_element<count>(row, lane, [&](int d, const float(&values)[count]) {
        for (int v = 0; v < count; ++v) to[d + v] = static_cast<std::byte>(whole.whole(values[v]));
    });
    if (lane == 0) reinterpret_cast<float*>(block + args.shape.scales())[slot] = whole.scale;
}

/// Grid [rows, heads / heads_per_block]; one warp per head of queries, keys and values.
/// `count`: elements per access.
template <int count>
__global__ void __launch_bounds__(warp_size* heads_per_block) rope_store_kernel(RopeArgs args) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int head = static_cast<int>(blockIdx.y) * heads_per_block + static_cast<int>(threadIdx.x) / warp_size;
    const int num_heads = args.q_heads + 2 * args.shape.num_kv_heads;
    if (head >= num_heads) return;
    const auto row = static_cast<std::int64_t>(blockIdx.x);
    const int head_dim = args.shape.head_dim;
    const int half = head_dim / 2;
    const bool is_value = head >= args.q_heads + args.shape.num_kv_heads;
    const bool is_query = head < args.q_heads;
    const float* const cos = is_query ? args.angles.query_cos : args.angles.cos;
    const float* const sin = is_query ? args.angles.query_sin : args.angles.sin;
    const HeadRow from{args.qkv + (row * num_heads + head) * head_dim, is_value ? nullptr : cos + row * half,
                       sin + row * half, half};
    if (is_query) {
        const DType type = args.dtype == DType::bf16 ? DType::bf16 : DType::f32;
        const std::int64_t element = type == DType::bf16 ? 2 : 4;
        return store_elements<count>(type, from, lane, args.q_out + (row * args.q_heads + head) * head_dim * element);
    }
    const KvSlot slot = args.slots[row];
    if (slot.page == nullptr) return;
    const int kv_head = (head - args.q_heads) % args.shape.num_kv_heads;
    store_token<count>(args, from, lane, slot.page + args.shape.block(args.layer, kv_head, is_value), slot.slot);
}

/// Heads to be normed in place; pointers to device memory.
struct HeadNormArgs {
    float* qkv;  ///< [rows, (q_heads + 2 kv_heads) * head_dim]
    HeadGains gains;
    int q_heads, kv_heads, head_dim;
    float eps;
};

/// Grid [rows, heads / heads_per_block]; one warp per head that is normed. Lanes 0 to 15 add the squares.
__global__ void __launch_bounds__(warp_size* heads_per_block) head_norm_kernel(HeadNormArgs args) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int head = static_cast<int>(blockIdx.y) * heads_per_block + static_cast<int>(threadIdx.x) / warp_size;
    const int keys_end = args.q_heads + args.kv_heads;
    if (head >= keys_end + (args.gains.v != nullptr ? args.kv_heads : 0)) return;
    const std::int64_t num_heads = args.q_heads + 2 * args.kv_heads;
    float* const x = args.qkv + (std::int64_t{blockIdx.x} * num_heads + head) * args.head_dim;
    const float* const gain = head < args.q_heads ? args.gains.q : head < keys_end ? args.gains.k : args.gains.v;
    float sum = 0.0F;
    for (int i = lane; lane < 16 && i < args.head_dim; i += 16) sum = __fmaf_rn(x[i], x[i], sum);
    sum = __shfl_sync(full_warp, lane_tree(sum), 0);
    __syncwarp();  // all lanes write what lanes 0 to 15 have read
    const float scale = 1.0F / __fsqrt_rn(sum / static_cast<float>(args.head_dim) + args.eps);
    for (int i = lane; i < args.head_dim; i += warp_size) x[i] = (x[i] * scale) * gain[i];
}

/// Arguments of a norm over all heads of queries, and over all of keys; pointers to device memory.
struct WholeNormArgs {
    float* qkv;  ///< [rows, (q_heads + 2 kv_heads) * head_dim]
    WholeHeads of;
    const float* q_gain;
    const float* k_gain;
    float* squares;  ///< [rows, of.num_q + of.num_kv]
    int q_heads, kv_heads, head_dim;
    float eps;
};

/// Grid [rows, heads of the whole model / heads_per_block]; one warp per head, in which lanes 0 to 15 add.
__global__ void __launch_bounds__(warp_size* heads_per_block) head_squares_kernel(WholeNormArgs args) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int slot = static_cast<int>(blockIdx.y) * heads_per_block + static_cast<int>(threadIdx.x) / warp_size;
    const int num_q = static_cast<int>(args.of.num_q), num_slots = num_q + static_cast<int>(args.of.num_kv);
    if (slot >= num_slots) return;
    const bool is_query = slot < num_q;
    const int head =
        is_query ? slot - static_cast<int>(args.of.first_q) : slot - num_q - static_cast<int>(args.of.first_kv);
    const bool here = head >= 0 && head < (is_query ? args.q_heads : args.of.counts_kv ? args.kv_heads : 0);
    const std::int64_t num_heads = args.q_heads + 2 * args.kv_heads, in_row = is_query ? head : args.q_heads + head;
    const float* const x = args.qkv + (std::int64_t{blockIdx.x} * num_heads + in_row) * args.head_dim;
    float sum = 0.0F;
    for (int i = lane; here && lane < 16 && i < args.head_dim; i += 16) sum = __fmaf_rn(x[i], x[i], sum);
    sum = lane_tree(sum);
    if (lane == 0) args.squares[std::int64_t{blockIdx.x} * num_slots + slot] = sum;
}

/// Grid [rows, heads / heads_per_block]; one warp per head of queries and keys. Each adds the squares again.
__global__ void __launch_bounds__(warp_size* heads_per_block) whole_norm_kernel(WholeNormArgs args) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int head = static_cast<int>(blockIdx.y) * heads_per_block + static_cast<int>(threadIdx.x) / warp_size;
    if (head >= args.q_heads + args.kv_heads) return;
    const bool is_query = head < args.q_heads;
    const std::int64_t num_heads = args.q_heads + 2 * args.kv_heads;
    float* const x = args.qkv + (std::int64_t{blockIdx.x} * num_heads + head) * args.head_dim;
    const float* const gain =
        is_query ? args.q_gain + head * args.head_dim : args.k_gain + (head - args.q_heads) * args.head_dim;
    const std::int64_t per_norm = args.of.q_per_norm > 0 ? args.of.q_per_norm : args.of.num_q;
    const std::int64_t first = is_query ? (args.of.first_q + head) / per_norm * per_norm : args.of.num_q;
    const float* const sums = args.squares + std::int64_t{blockIdx.x} * (args.of.num_q + args.of.num_kv) + first;
    const int count = static_cast<int>(is_query ? per_norm : args.of.num_kv);
    float sum = 0.0F;
    for (int h = lane; lane < 16 && h < count; h += 16) sum = sum + sums[h];
    sum = __shfl_sync(full_warp, lane_tree(sum), 0);
    const float scale = 1.0F / __fsqrt_rn(sum / static_cast<float>(count * args.head_dim) + args.eps);
    for (int i = lane; i < args.head_dim; i += warp_size) x[i] = (x[i] * scale) * gain[i];
}

/// Grid [moves, blocks of a page]: each block moves a key or value of one head.
__global__ void move_kernel(KvShape shape, bool has_scales, const KvPart::Move* moves) {
    const KvPart::Move move = moves[blockIdx.x];
    const std::int64_t block = static_cast<std::int64_t>(blockIdx.y) * shape.block_bytes;
    const std::byte* from = move.from.page + block;
    std::byte* to = move.to.page + block;
    const int pieces = shape.row_bytes / 16;
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += static_cast<int>(blockDim.x)) {
        reinterpret_cast<uint4*>(to)[move.to.slot * pieces + i] =
            reinterpret_cast<const uint4*>(from)[move.from.slot * pieces + i];
    }
    if (has_scales && threadIdx.x == 0) {
        reinterpret_cast<float*>(to + shape.scales())[move.to.slot] =
            reinterpret_cast<const float*>(from + shape.scales())[move.from.slot];
    }
}

bool same(const KvSlot& a, const KvSlot& b) {
    return a.page == b.page && a.slot == b.slot;
}

}  // namespace

std::size_t CudaDevice::kv_page_bytes(const KvLayout& layout) const {
    return static_cast<std::size_t>(KvShape(layout).block(layout.num_layers, 0, false));
}

void CudaDevice::head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                           const HeadGains& gains, float eps) {
    if (num_rows == 0) return;
    const auto heads = static_cast<unsigned>(q_heads + (gains.v != nullptr ? 2 : 1) * layout.num_kv_heads);
    const dim3 grid(static_cast<unsigned>(num_rows), (heads + heads_per_block - 1) / heads_per_block);
    const HeadNormArgs args{
        qkv, gains, static_cast<int>(q_heads), static_cast<int>(layout.num_kv_heads), static_cast<int>(layout.head_dim),
        eps};
    launch(state_->stream, head_norm_kernel, grid, dim3(warp_size * heads_per_block), 0, args);
}

void CudaDevice::head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                              const WholeHeads& of, float* squares) {
    check_whole_heads(layout, q_heads, of);
    if (num_rows == 0) return;
    const auto heads = static_cast<unsigned>(of.num_q + of.num_kv);
    const dim3 grid(static_cast<unsigned>(num_rows), (heads + heads_per_block - 1) / heads_per_block);
    const WholeNormArgs args{const_cast<float*>(qkv),
                             of,
                             nullptr,
                             nullptr,
                             squares,
                             static_cast<int>(q_heads),
                             static_cast<int>(layout.num_kv_heads),
                             static_cast<int>(layout.head_dim),
                             0.0F};
    launch(state_->stream, head_squares_kernel, grid, dim3(warp_size * heads_per_block), 0, args);
}

void CudaDevice::whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                            const WholeHeads& of, const float* squares, const float* q_gain, const float* k_gain,
                            float eps) {
    check_whole_heads(layout, q_heads, of);
    if (num_rows == 0) return;
    const auto heads = static_cast<unsigned>(q_heads + layout.num_kv_heads);
    const dim3 grid(static_cast<unsigned>(num_rows), (heads + heads_per_block - 1) / heads_per_block);
    const WholeNormArgs args{qkv,
                             of,
                             q_gain,
                             k_gain,
                             const_cast<float*>(squares),
                             static_cast<int>(q_heads),
                             static_cast<int>(layout.num_kv_heads),
                             static_cast<int>(layout.head_dim),
                             eps};
    launch(state_->stream, whole_norm_kernel, grid, dim3(warp_size * heads_per_block), 0, args);
}

void CudaDevice::rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                            std::byte* q_out) {
    check_rope(layout, layer, q_heads);
    if (layout.num_kv_heads > 0) state_->far.fetch(layout, layer);
    const Pass& pass = state_->pass.on_device(layout.group);
    const RopeArgs args{KvShape(layout),
                        layout.dtype,
                        layer,
                        static_cast<int>(q_heads),
                        pass.slots,
                        state_->pass.angles_on_device(layout),
                        qkv,
                        q_out};
    const auto num_heads = static_cast<unsigned>(q_heads + 2 * layout.num_kv_heads);
    const dim3 grid(static_cast<unsigned>(pass.num_slots), (num_heads + heads_per_block - 1) / heads_per_block);
    // Pairs of elements if they occupy all lanes.
    const auto kernel = layout.head_dim % (4 * warp_size) == 0 ? rope_store_kernel<2> : rope_store_kernel<1>;
    launch(state_->stream, kernel, grid, dim3(warp_size * heads_per_block), 0, args);
}

void CudaDevice::kv_move(const KvLayout& layout, KvSlot from, KvSlot to) {
    check_slot(from);
    check_slot(to);
    state_->kv.move(layout, from, to);
}

void KvPart::pass_begins(const PassRows& pass) {
    const std::lock_guard lock(mutex_);
    launch_moves();
    pass_slots_.clear();
    for (std::int64_t group = 0; group < pass.num_groups(); ++group) {
        for (const KvSlot& slot : pass.group(group).slots) {
            if (slot.page == nullptr) continue;
            if (pass_slots_.empty() || pass_slots_.back().page != slot.page)
                pass_slots_.push_back({slot.page, slot.slot, slot.slot});
            Run& run = pass_slots_.back();
            run.first = std::min(run.first, slot.slot);
            run.last = std::max(run.last, slot.slot);
        }
    }
    before_pass_.record(stream_);
    marked_ = true;
}

void KvPart::move(const KvLayout& layout, KvSlot from, KvSlot to) {
    const std::lock_guard lock(mutex_);
    const auto conflicts = [&](const Move& earlier) {
        return same(earlier.to, from) || same(earlier.to, to) || same(earlier.from, to);
    };
    const bool other_pages = layout.dtype != moves_layout_.dtype || layout.num_layers != moves_layout_.num_layers ||
                             layout.num_kv_heads != moves_layout_.num_kv_heads ||
                             layout.head_dim != moves_layout_.head_dim;
    constexpr std::size_t max_moves = 1024;  // each is compared with all before it
    if (other_pages || moves_.size() == max_moves || std::any_of(moves_.begin(), moves_.end(), conflicts))
        launch_moves();
    moves_layout_ = layout;
    moves_.push_back({from, to});
}

void KvPart::flush_moves() {
    const std::lock_guard lock(mutex_);
    if (moves_.empty()) return;
    launch_moves();
    before_pass_.record(stream_);  // a concurrent export then finds no pending move, but must not overtake these
}

void KvPart::launch_moves() {
    if (moves_.empty()) return;
    auto* moves = device_moves_.get<Move>(stream_, static_cast<std::int64_t>(moves_.size()));
    ring_.send(reinterpret_cast<std::byte*>(moves), moves_.data(), moves_.size() * sizeof(Move));
    const KvShape shape(moves_layout_);
    const auto blocks = static_cast<unsigned>(moves_layout_.num_layers * moves_layout_.num_kv_heads * 2);
    launch(stream_, move_kernel, dim3(static_cast<unsigned>(moves_.size()), blocks), dim3(warp_size), 0, shape,
           moves_layout_.dtype == DType::int8, static_cast<const Move*>(moves));
    moves_.clear();
}

/// Whether the running pass may still write positions of the box. `pages`: those of the box.
bool KvPart::may_be_on_its_way(std::span<std::byte* const> pages, const KvBox& box) const {
    if (!marked_) return true;
    const std::int64_t first_page = box.first / KvLayout::page_tokens;
    for (std::size_t p = 0; p < pages.size(); ++p) {
        const std::int64_t position = (first_page + static_cast<std::int64_t>(p)) * KvLayout::page_tokens;
        const auto reads = [&](const Run& run) {
            return run.page == pages[p] && position + run.last >= box.first &&
                   position + run.first < box.first + box.count;
        };
        if (std::any_of(pass_slots_.begin(), pass_slots_.end(), reads)) return true;
    }
    return false;
}

/// Makes the transfers wait for all kernels that may still write the box.
void KvPart::wait_for_writes(std::span<std::byte* const> pages, const KvBox& box) {
    const std::lock_guard lock(mutex_);
    if (moves_.empty() && !may_be_on_its_way(pages, box)) return before_pass_.make_wait(transfers_);
    wait_for_all();
}

void KvPart::wait_for_all() {
    launch_moves();
    reached_.record(stream_);
    reached_.make_wait(transfers_);
}

}  // namespace longhaul::kernels::cuda
