// What the device asks of the CUDA runtime: memory, copies, streams, events; each handle with one owner, each call
// checked. runtime_cuda.cpp fills it; tests/cuda_emulation does the same in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/launches.hpp"
#include "kernels/device_error.hpp"

// CUDA's own names for these; the emulation never looks inside.
struct CUstream_st;
struct CUevent_st;

namespace longhaul::kernels::cuda {

/// A call of CUDA's failed: which, where, and CUDA's own words.
class CudaError : public DeviceError {
    using DeviceError::DeviceError;
};

using NativeStream = CUstream_st*;
using NativeEvent = CUevent_st*;

/// A queue of operations that run one behind the other, beside those of other streams and of the host.
class Stream {
  public:
    explicit Stream(const GraphPolicy& policy = {});
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// CUDA's stream, in which all that was asked for so far is now: for whatever is not a kernel.
    [[nodiscard]] NativeStream native() const {
        launches_.flush();
        return native_;
    }
    /// Where launch() puts its calls.
    [[nodiscard]] Launches& launches() const { return launches_; }
    /// Waits until all that was asked for is done; errors of kernels appear here.
    void synchronize() const;
    /// Whether all that was asked for is done.
    [[nodiscard]] bool done() const;

  private:
    NativeStream native_;
    mutable Launches launches_;
};

/// Launches in this stream (launcher_cuda.cpp, tests/cuda_emulation), which outlives it.
std::unique_ptr<Launcher> make_launcher(NativeStream stream);

/// A place in a stream that others can wait for.
class Event {
  public:
    Event();
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    void record(const Stream& stream);
    void make_wait(const Stream& stream) const;  ///< what is asked of `stream` from now on waits for the event
    void synchronize() const;

  private:
    NativeEvent native_{};
};

/// Page-locked host memory, 64-byte aligned. Throws std::bad_alloc.
std::byte* allocate_pinned(std::size_t num_bytes);
void release_pinned(std::byte* data) noexcept;

/// Page-locked host memory with one owner: copies to and from it do not hold up the host.
class Pinned {
  public:
    Pinned() = default;
    explicit Pinned(std::size_t num_bytes);
    Pinned(Pinned&& other) noexcept;
    Pinned& operator=(Pinned&& other) noexcept;
    ~Pinned();

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t num_bytes_ = 0;
};

struct GpuProperties {
    std::string name;
    std::string uuid;  ///< in hexadecimal
    int major = 0;     ///< compute capability
    int minor = 0;
    int multiprocessors = 0;
    std::size_t memory_bytes = 0;
    std::size_t l2_bytes = 0;
    std::size_t shared_bytes = 0;  ///< of a block, at most
};

/// What a block may have of shared memory on the smallest GPU that the kernels are for (A100).
constexpr std::size_t block_shared_bytes = 163 << 10;

/// GPUs that this process sees; 0 where there is no driver.
int num_gpus();
GpuProperties properties_of(int gpu);
/// The GPU of the calling thread from here on; each thread that calls a device must say it once.
void use_gpu(int gpu);
/// Of the calling thread's GPU, what nobody has taken.
std::size_t free_memory_bytes();

/// Device memory, 256-byte aligned; what is in it means nothing. Throws std::bad_alloc.
std::byte* allocate_memory(std::size_t num_bytes);
void release_memory(std::byte* data) noexcept;
void fill_zero(const Stream& stream, std::byte* to, std::size_t num_bytes);
/// Between any two memories. Does not wait where host memory is Pinned.
void copy(const Stream& stream, void* to, const void* from, std::size_t num_bytes);

}  // namespace longhaul::kernels::cuda
