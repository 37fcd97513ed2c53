// Fetches KV pages from host memory for attention (host_pages.hpp).
#include "kernels/cuda/host_pages.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr int fetch_threads = 256;
constexpr unsigned fetch_blocks = 32;  // leaves multiprocessors to the pass, but saturates the link
constexpr int loads_in_flight = 4;     // per thread
constexpr std::int64_t iteration_pieces = std::int64_t{loads_in_flight} * fetch_threads;

/// Pointers to device memory; the pages themselves are in host memory.
struct FetchArgs {
    const std::byte* const* pages;  ///< [num_pages]
    std::int64_t num_pages;
    std::int64_t first_byte;  ///< byte offset of the layer in a page
    std::int64_t pieces;      ///< 16-byte pieces per page and layer
    uint4* window;            ///< [num_pages, pieces]

    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t page_iterations() const {
        return (pieces + iteration_pieces - 1) / iteration_pieces;
    }
};

/// Works with any grid: in each iteration a block copies loads_in_flight * fetch_threads pieces of a page.
__global__ void __launch_bounds__(fetch_threads) fetch_kernel(FetchArgs args) {
    const std::int64_t page_iterations = args.page_iterations();
    for (std::int64_t iteration = blockIdx.x; iteration < args.num_pages * page_iterations; iteration += gridDim.x) {
        const std::int64_t page = iteration / page_iterations;
        const std::int64_t first = iteration % page_iterations * iteration_pieces + threadIdx.x;
        const auto* from = reinterpret_cast<const uint4*>(args.pages[page] + args.first_byte);
        uint4* to = args.window + page * args.pieces;
        uint4 loaded[loads_in_flight];
#pragma unroll
        for (int i = 0; i < loads_in_flight; ++i) {
            const std::int64_t piece = first + i * fetch_threads;
            loaded[i] = piece < args.pieces ? from[piece] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < loads_in_flight; ++i) {
            const std::int64_t piece = first + i * fetch_threads;
            if (piece < args.pieces) to[piece] = loaded[i];
        }
    }
}

std::int64_t layer_bytes(const KvLayout& layout) {
    return KvShape(layout).block(1, 0, false);
}

}  // namespace

std::byte* HostPages::allocate(std::size_t num_bytes) {
    std::byte* const data = allocate_pinned(num_bytes);
    std::memset(data, 0, num_bytes);
    memories_[data] = num_bytes;
    return data;
}

bool HostPages::release(std::byte* data) noexcept {
    const auto memory = memories_.find(data);
    if (memory == memories_.end()) return false;
    try {
        fetches_.synchronize();
    } catch (const std::exception&) {  // thrown to the caller that waits for results
    }
    memories_.erase(memory);
    release_pinned(data);
    return true;
}

bool HostPages::is_in_host_memory(const std::byte* page) const {
    const auto behind = memories_.upper_bound(page);
    return behind != memories_.begin() && page < std::prev(behind)->first + std::prev(behind)->second;
}

void HostPages::pass_begins(const PassRows& pass) {
    pages_.clear();
    number_of_.clear();
    num_written_ = 0;
    sent_ = false;
    for (Window& window : windows_) window.layer = -1;
    if (memories_.empty()) return;
    find_pages(pass);
    begun_.record(stream_);
}

/// Collects the pages in host memory that a row of the pass sees.
void HostPages::find_pages(const PassRows& pass) {
    std::vector<std::int64_t> positions(pass.sequences.size()), scratch_slots(pass.sequences.size());
    for (const AttentionRow& row : pass.rows) {
        const auto s = static_cast<std::size_t>(row.sequence);
        positions[s] = std::max(positions[s], row.in_pages);
        for (std::int64_t i = 0; i < row.position + 1 - row.in_pages; ++i)
            scratch_slots[s] = std::max<std::int64_t>(scratch_slots[s], row.path[i] + 1);
    }
    const auto take = [&](std::span<std::byte* const> pages, std::int64_t num_slots) {
        const std::int64_t count = (num_slots + KvLayout::page_tokens - 1) / KvLayout::page_tokens;
        for (std::byte* const page : pages.first(static_cast<std::size_t>(count))) {
            if (is_in_host_memory(page)) pages_.push_back(page);
        }
    };
    for (std::size_t s = 0; s < pass.sequences.size(); ++s) {
        take(pass.sequences[s].pages, positions[s]);
        take(pass.sequences[s].scratch_pages, scratch_slots[s]);
    }
    std::vector<const std::byte*> written;
    for (const KvSlot& slot : pass.slots) {
        if (written.empty() || written.back() != slot.page) written.push_back(slot.page);
    }
    std::sort(written.begin(), written.end());
    const auto first_written = std::stable_partition(pages_.begin(), pages_.end(), [&](const std::byte* page) {
        return !std::binary_search(written.begin(), written.end(), page);
    });
    num_written_ = static_cast<std::size_t>(pages_.end() - first_written);
    for (std::size_t i = 0; i < pages_.size(); ++i) number_of_[pages_[i]] = i;
}

PageEntry HostPages::entry_of(const std::byte* page) const {
    const auto number = number_of_.find(page);
    return number == number_of_.end() ? PageEntry::near(page) : PageEntry::far(number->second);
}

/// Sends the list of pages, after all kernels of the previous pass that read its list.
void HostPages::send_list() {
    if (sent_) return;
    begun_.make_wait(fetches_);
    auto* const to = list_.get<const std::byte*>(fetches_, static_cast<std::int64_t>(pages_.size()));
    ring_.send(reinterpret_cast<std::byte*>(to), pages_.data(), pages_.size() * sizeof to[0]);
    sent_ = true;
}

/// Grows by 16 pages at a time, because sequences grow by one.
std::byte* HostPages::memory_of(Window& window, const KvLayout& layout) {
    constexpr std::size_t step = 16;
    const auto pages = static_cast<std::int64_t>((pages_.size() + step - 1) / step * step);
    return window.memory.get<std::byte>(stream_, pages * layer_bytes(layout));
}

void HostPages::launch_fetch(const Stream& stream, const KvLayout& layout, std::int64_t layer, std::size_t first,
                             std::size_t count) {
    if (count == 0) return;
    const std::int64_t bytes = layer_bytes(layout);
    const FetchArgs args{
        .pages = list_.get<const std::byte*>(fetches_, static_cast<std::int64_t>(pages_.size())) + first,
        .num_pages = static_cast<std::int64_t>(count),
        .first_byte = KvShape(layout).block(layer, 0, false),
        .pieces = bytes / static_cast<std::int64_t>(sizeof(uint4)),
        .window =
            reinterpret_cast<uint4*>(memory_of(window_of(layer), layout) + static_cast<std::int64_t>(first) * bytes),
    };
    const std::int64_t iterations = args.num_pages * args.page_iterations();
    const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(iterations, fetch_blocks)));
    launch(stream, fetch_kernel, grid, dim3(fetch_threads), 0, args);
}

void HostPages::fetch(const KvLayout& layout, std::int64_t layer) {
    if (pages_.empty() || layout.group > 0 || layer >= layout.num_layers) return;
    Window& window = window_of(layer);
    if (window.layer == layer) return;
    send_list();
    memory_of(window, layout);
    window.read.make_wait(fetches_);
    launch_fetch(fetches_, layout, layer, 0, pages_.size() - num_written_);
    window.arrived.record(fetches_);
    window.layer = layer;
}

const std::byte* HostPages::bring(const KvLayout& layout, std::int64_t layer) {
    if (pages_.empty() || layout.group > 0) return nullptr;
    fetch(layout, layer);
    Window& window = window_of(layer);
    window.arrived.make_wait(stream_);
    launch_fetch(stream_, layout, layer, pages_.size() - num_written_, num_written_);
    return memory_of(window, layout);
}

void HostPages::written(std::span<std::byte* const> pages, std::int64_t layer) {
    const auto known = [&](const std::byte* page) { return number_of_.contains(page); };
    if (std::none_of(pages.begin(), pages.end(), known)) return;
    changed_.record(stream_);
    changed_.make_wait(fetches_);
    window_of(layer).layer = -1;
}

void HostPages::done(const KvLayout& layout, std::int64_t layer) {
    if (pages_.empty() || layout.group > 0) return;
    window_of(layer).read.record(stream_);
    fetch(layout, layer + 1);
}

}  // namespace longhaul::kernels::cuda
