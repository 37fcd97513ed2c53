// The part of the CUDA runtime that the device uses: memory, copies, streams, events. Each handle has one owner, and
// each call is checked. Implemented by runtime_cuda.cpp, and by tests/cuda_emulation in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/launches.hpp"
#include "kernels/device_error.hpp"

// CUDA's own handle types, opaque to users of this header; the emulation defines its own.
struct CUstream_st;
struct CUevent_st;

namespace longhaul::kernels::cuda {

/// A CUDA call failed; the message has the call, its place and CUDA's error text.
class CudaError : public DeviceError {
    using DeviceError::DeviceError;
};

using NativeStream = CUstream_st*;
using NativeEvent = CUevent_st*;

/// A queue of operations that run one after another, concurrently with other streams and the host.
class Stream {
  public:
    explicit Stream(const GraphPolicy& policy = {});
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// The CUDA stream, after all pending launches were submitted to it: for operations that are not kernels.
    [[nodiscard]] NativeStream native() const {
        launches_.flush();
        return native_;
    }
    /// The list to which launch() appends its calls.
    [[nodiscard]] Launches& launches() const { return launches_; }
    /// Waits until all queued operations are complete; throws errors of kernels.
    void synchronize() const;
    /// Whether all queued operations are complete.
    [[nodiscard]] bool done() const;

  private:
    NativeStream native_;
    mutable Launches launches_;
};

/// The launcher for this stream (launcher_cuda.cpp, tests/cuda_emulation); the stream must outlive it.
std::unique_ptr<Launcher> make_launcher(NativeStream stream);

/// A point in a stream that other streams and the host can wait for.
class Event {
  public:
    Event();
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    void record(const Stream& stream);
    void make_wait(const Stream& stream) const;  ///< operations queued on `stream` from now on wait for the event
    void synchronize() const;

  private:
    NativeEvent native_{};
};

/// Page-locked host memory, 64-byte aligned. Throws std::bad_alloc.
std::byte* allocate_pinned(std::size_t num_bytes);
void release_pinned(std::byte* data) noexcept;

/// Page-locked host memory with one owner; copies to and from it are asynchronous.
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
    std::size_t shared_bytes = 0;  ///< max per block
};

/// Max shared memory per block on the smallest supported GPU (A100).
constexpr std::size_t block_shared_bytes = 163 << 10;
/// The same on the first GPUs with clusters of blocks (H100).
constexpr std::size_t cluster_shared_bytes = 227 << 10;

/// Number of GPUs visible to this process; 0 if there is no driver.
int num_gpus();
GpuProperties properties_of(int gpu);
/// How many clusters of such blocks the calling thread's GPU runs at the same time; 0 if it has no room for one, or if
/// its code for the kernel is a stub for smaller blocks, because clusters need code for sm_90a.
int resident_clusters(const void* kernel, unsigned block_threads, std::size_t shared_bytes, const Extent& cluster);
/// Selects the GPU of the calling thread; every thread that calls a device must do this once.
void use_gpu(int gpu);
/// Free memory of the calling thread's GPU.
std::size_t free_memory_bytes();

/// Device memory, 256-byte aligned, uninitialized. Throws std::bad_alloc.
std::byte* allocate_memory(std::size_t num_bytes);
void release_memory(std::byte* data) noexcept;
void fill_zero(const Stream& stream, std::byte* to, std::size_t num_bytes);
/// Copies between any two memories. Asynchronous if the host memory is Pinned.
void copy(const Stream& stream, void* to, const void* from, std::size_t num_bytes);

}  // namespace longhaul::kernels::cuda
