// launch(): appends a kernel call with its arguments to the list of a stream. Included by gpu.hpp and by the emulation,
// whose dim3 it uses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// Position of a call: after all earlier calls of a stream, or concurrent with the next one or the one before.
struct Place {
    Place(const Stream& stream) : stream(stream) {}  // implicit: a stream can be passed as a place
    Place(const Stream& stream, bool beside, bool early) : stream(stream), beside(beside), early(early) {}
    const Stream& stream;
    bool beside = false, early = false;
    Extent cluster{};
};

/// Runs the launched kernel concurrently with the next call on the stream; neither waits for the other. For two kernels
/// that leave multiprocessors idle, and neither of which accesses what the other writes.
inline Place beside_the_next(const Stream& stream) {
    return {stream, true, false};
}

/// The launched kernel may start when all blocks of the call before have called let_next_start() or have ended. All its
/// threads call wait_for_previous(), and before that they read only what no call of a pass writes: weights.
inline Place early(const Stream& stream) {
    return {stream, false, true};
}

/// Runs the kernel in clusters of width x height blocks, those of its __cluster_dims__. The grid is whole clusters.
inline Place in_clusters(const Stream& stream, unsigned width, unsigned height) {
    Place place(stream);
    place.cluster = {width, height, 1};
    return place;
}

/// The parameters of a call, each at a multiple of 16 bytes.
template <typename... Params>
class Parameters {
    static_assert((std::is_trivially_copyable_v<Params> && ...));
    static_assert(((alignof(Params) <= 16) && ...));

  public:
    static constexpr std::size_t padded(std::size_t num_bytes) { return (num_bytes + 15) / 16 * 16; }
    static constexpr std::array<std::size_t, sizeof...(Params)> offsets = [] {
        std::array<std::size_t, sizeof...(Params)> at{};
        std::size_t i = 0, next = 0;
        ((at[i++] = next, next += padded(sizeof(Params))), ...);
        return at;
    }();
    static constexpr std::size_t num_bytes = (std::size_t{0} + ... + padded(sizeof(Params)));

    explicit Parameters(Params... values) {
        std::size_t i = 0;
        (put(offsets[i++], values), ...);
    }
    [[nodiscard]] const std::byte* bytes() const { return bytes_.data(); }

#if !defined(__CUDACC__)
    static void call(const void* kernel, const std::byte* parameters) {
        call_each(kernel, parameters, std::index_sequence_for<Params...>());
    }
    static constexpr KernelType type{offsets, num_bytes, call};
#else
    static constexpr KernelType type{offsets, num_bytes, nullptr};
#endif

  private:
    /// Padding is cleared, so that equal values have equal bytes.
    template <typename T>
    void put(std::size_t offset, T value) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
        __builtin_clear_padding(&value);
#endif
#endif
        std::memcpy(bytes_.data() + offset, &value, sizeof value);
    }
#if !defined(__CUDACC__)
    template <std::size_t... indices>
    static void call_each(const void* kernel, const std::byte* parameters, std::index_sequence<indices...> /*of*/) {
        const auto function = reinterpret_cast<void (*)(Params...)>(const_cast<void*>(kernel));
        function(*reinterpret_cast<const Params*>(parameters + offsets[indices])...);
    }
#endif

    alignas(16) std::array<std::byte, num_bytes> bytes_{};
};

/// Threads per block for rows of `units` units of work: whole warps, at most `max_row_threads`.
constexpr int max_row_threads = 256;
constexpr unsigned threads_for(std::int64_t units) {
    const std::int64_t warps = (units + 31) / 32, most = max_row_threads / 32;
    return static_cast<unsigned>(warps < most ? warps : most) * 32;
}

/// Runs `kernel` over `grid` blocks of `block` threads, after all earlier calls on the stream; does nothing for an
/// empty grid. `shared_bytes`: dynamic shared memory per block.
template <typename... Params, typename... Args>
void launch(const Place& place, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            Args... args) {
    using Given = Parameters<Params...>;
    const Given parameters(static_cast<Params>(args)...);
    const KernelCall call{.kernel = reinterpret_cast<const void*>(kernel),
                          .type = &Given::type,
                          .grid = {grid.x, grid.y, grid.z},
                          .block = {block.x, block.y, block.z},
                          .shared_bytes = shared_bytes,
                          .beside = place.beside,
                          .cluster = place.cluster,
                          .early = place.early};
    place.stream.launches().add(call, parameters.bytes());
}

}  // namespace longhaul::kernels::cuda
