// Export and import of KV pages for checkpoints: one kernel gathers a box into the layout of the files, and one copy
// transfers it. Runs on its own stream, concurrently with decoding.
#include <algorithm>
#include <cstring>

#include "kernels/checks.hpp"
#include "kernels/cuda/cuda_state.hpp"
#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr int box_threads = 256;
constexpr std::size_t max_box_bytes = std::size_t{16} << 20;  // larger boxes are split

/// Arguments of box_kernel; pointers to device memory.
struct BoxArgs {
    KvShape shape;
    std::byte* const* pages;  ///< from the page of position `first` on
    std::int64_t first_layer, first_head;
    bool values;
    std::int64_t first, count;  ///< positions
    int element_bytes;          ///< of a row; the scale follows in files, and is stored separately in pages
    int token_bytes;
    std::byte* rows;  ///< [layers, heads, count, token_bytes]
};

/// Grid [pages, heads, layers]. Unit: a type whose size divides the rows of pages and files.
template <typename Unit, bool to_pages>
__global__ void __launch_bounds__(box_threads) box_kernel(BoxArgs args) {
    constexpr int page_tokens = static_cast<int>(KvLayout::page_tokens);
    const std::int64_t first_of_page = (args.first / page_tokens + blockIdx.x) * page_tokens;
    const std::int64_t end = args.first + args.count;
    const int begin_slot = first_of_page < args.first ? static_cast<int>(args.first - first_of_page) : 0;
    const int end_slot = first_of_page + page_tokens > end ? static_cast<int>(end - first_of_page) : page_tokens;
    std::byte* block = args.pages[blockIdx.x] +
                       args.shape.block(args.first_layer + blockIdx.z, args.first_head + blockIdx.y, args.values);
    const std::int64_t head = std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
    std::byte* rows = args.rows + (head * args.count + first_of_page - args.first) * args.token_bytes;
    const int units = args.token_bytes / static_cast<int>(sizeof(Unit));
    for (int i = begin_slot * units + static_cast<int>(threadIdx.x); i < end_slot * units; i += box_threads) {
        const int slot = i / units;
        const int byte = i % units * static_cast<int>(sizeof(Unit));
        std::byte* in_page = byte < args.element_bytes
                                 ? block + slot * args.shape.row_bytes + byte
                                 : block + args.shape.scales() + slot * 4 + (byte - args.element_bytes);
        auto* there = reinterpret_cast<Unit*>(in_page);
        auto* here = reinterpret_cast<Unit*>(rows + std::int64_t{slot} * args.token_bytes + byte);
        if constexpr (to_pages) {
            *there = *here;
        } else {
            *here = *there;
        }
    }
}

template <bool to_pages>
void launch_box(const Stream& stream, const BoxArgs& args, dim3 grid) {
    const bool has_scales = args.element_bytes < args.token_bytes;
    const dim3 block(box_threads);
    if (!has_scales && args.token_bytes % 16 == 0)
        return launch(stream, box_kernel<uint4, to_pages>, grid, block, 0, args);
    if (args.element_bytes % 4 == 0) return launch(stream, box_kernel<std::uint32_t, to_pages>, grid, block, 0, args);
    launch(stream, box_kernel<std::uint16_t, to_pages>, grid, block, 0, args);
}

/// Splits the box into parts of at most max_box_bytes and calls `part(box, at)`; `at`: byte offset in host memory.
template <typename Part>
void in_parts(const KvLayout& layout, const KvBox& box, std::size_t head_stride, std::size_t at, const Part& part) {
    if (box.count == 0 || box.num_heads == 0 || box.num_layers == 0) return;
    KvBox first = box, second = box;
    std::size_t apart = 0;
    if (box.bytes(layout) <= max_box_bytes) return part(box, at);
    if (box.num_layers > 1) {
        first.num_layers /= 2;
        second.num_layers -= first.num_layers;
        second.first_layer += first.num_layers;
        apart = static_cast<std::size_t>(first.num_layers * box.num_heads) * head_stride;
    } else if (box.num_heads > 1) {
        first.num_heads /= 2;
        second.num_heads -= first.num_heads;
        second.first_head += first.num_heads;
        apart = static_cast<std::size_t>(first.num_heads) * head_stride;
    } else {
        first.count /= 2;
        second.count -= first.count;
        second.first += first.count;
        apart = static_cast<std::size_t>(first.count) * layout.token_bytes();
    }
    in_parts(layout, first, head_stride, at, part);
    in_parts(layout, second, head_stride, at + apart, part);
}

std::size_t head_bytes(const KvLayout& layout, const KvBox& box) {
    return static_cast<std::size_t>(box.count) * layout.token_bytes();
}

/// The pages that contain positions of a box.
std::span<std::byte* const> pages_of(std::span<std::byte* const> pages, const KvBox& box) {
    const std::int64_t first = box.first / KvLayout::page_tokens;
    const std::int64_t last = (box.first + box.count - 1) / KvLayout::page_tokens;
    return pages.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first + 1));
}

}  // namespace

void CudaDevice::kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                           bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const {
    check_slots(layout, layer, kv_head, first, count);
    auto* const only = const_cast<std::byte*>(page);
    const KvBox box{.first_layer = layer, .first_head = kv_head, .values = values, .first = first, .count = count};
    kv_export_box(layout, {&only, 1}, box, to_host, head_bytes(layout, box));
}

void CudaDevice::kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                           bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) {
    check_slots(layout, layer, kv_head, first, count);
    const KvBox box{.first_layer = layer, .first_head = kv_head, .values = values, .first = first, .count = count};
    kv_import_box(layout, {&page, 1}, box, from_host, head_bytes(layout, box));
}

void CudaDevice::kv_export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                               std::byte* to_host, std::size_t head_stride) const {
    check_box(layout, pages, box, head_stride);
    use_gpu(state_->gpu);
    in_parts(layout, box, head_stride, 0, [&](const KvBox& part, std::size_t at) {
        state_->kv.export_box(layout, pages_of(pages, part), part, to_host + at, head_stride);
    });
}

void CudaDevice::kv_import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                               const std::byte* from_host, std::size_t head_stride) {
    check_box(layout, pages, box, head_stride);
    use_gpu(state_->gpu);
    in_parts(layout, box, head_stride, 0, [&](const KvBox& part, std::size_t at) {
        state_->kv.import_box(layout, pages_of(pages, part), part, from_host + at, head_stride);
    });
}

std::byte* KvPart::staging(std::size_t num_bytes) {
    if (staged_.num_bytes() < num_bytes) staged_ = Pinned(num_bytes);
    return staged_.data();
}

/// Copies the rows of a box between its pages and `device_rows_`.
template <bool to_pages>
void KvPart::request_rows(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box) {
    auto* const list = device_pages_.get<std::byte*>(transfers_, static_cast<std::int64_t>(pages.size()));
    transfer_ring_.send(reinterpret_cast<std::byte*>(list), pages.data(), pages.size_bytes());
    const auto token_bytes = static_cast<int>(layout.token_bytes());
    const BoxArgs args{
        .shape = KvShape(layout),
        .pages = list,
        .first_layer = box.first_layer,
        .first_head = box.first_head,
        .values = box.values,
        .first = box.first,
        .count = box.count,
        .element_bytes = token_bytes - (layout.dtype == DType::int8 ? 4 : 0),
        .token_bytes = token_bytes,
        .rows = device_rows_.get<std::byte>(transfers_, static_cast<std::int64_t>(box.bytes(layout))),
    };
    launch_box<to_pages>(transfers_, args,
                         dim3(static_cast<unsigned>(pages.size()), static_cast<unsigned>(box.num_heads),
                              static_cast<unsigned>(box.num_layers)));
}

void KvPart::export_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box, std::byte* to_host,
                        std::size_t head_stride) {
    const std::size_t num_bytes = box.bytes(layout), of_head = head_bytes(layout, box);
    const std::lock_guard lock(transfer_mutex_);
    wait_for_writes(pages, box);
    request_rows<false>(layout, pages, box);
    std::byte* staged = staging(num_bytes);
    copy(transfers_, staged, device_rows_.get<std::byte>(transfers_, static_cast<std::int64_t>(num_bytes)), num_bytes);
    transfers_.synchronize();
    for (std::size_t at = 0; at < num_bytes; at += of_head, to_host += head_stride)
        std::memcpy(to_host, staged + at, of_head);
}

void KvPart::import_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box,
                        const std::byte* from_host, std::size_t head_stride) {
    const std::size_t num_bytes = box.bytes(layout), of_head = head_bytes(layout, box);
    const std::lock_guard lock(transfer_mutex_);
    {
        const std::lock_guard state_lock(mutex_);
        wait_for_all();  // a page may be new, its zero fill still in flight
    }
    std::byte* staged = staging(num_bytes);
    for (std::size_t at = 0; at < num_bytes; at += of_head, from_host += head_stride)
        std::memcpy(staged + at, from_host, of_head);
    copy(transfers_, device_rows_.get<std::byte>(transfers_, static_cast<std::int64_t>(num_bytes)), staged, num_bytes);
    request_rows<true>(layout, pages, box);
    transfers_.synchronize();
}

}  // namespace longhaul::kernels::cuda
