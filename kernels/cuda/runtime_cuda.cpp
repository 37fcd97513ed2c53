// Implements runtime.hpp with the CUDA runtime.
#include <cstring>
#include <new>
#include <utility>

#include "kernels/cuda/check.hpp"

namespace longhaul::kernels::cuda {

void check(cudaError_t result, std::source_location where) {
    if (result == cudaSuccess) return;
    if (result == cudaErrorMemoryAllocation) {
        static_cast<void>(cudaGetLastError());  // clears the error, so that the next call does not report it again
        throw std::bad_alloc();
    }
    throw CudaError(std::string("CUDA: ") + cudaGetErrorString(result) + " (" + cudaGetErrorName(result) + ") in " +
                    where.function_name());
}

namespace {
NativeStream new_stream() {
    NativeStream stream{};
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}
}  // namespace

Stream::Stream(const GraphPolicy& policy) : native_(new_stream()), launches_(make_launcher(native_), policy) {}
Stream::~Stream() {
    try {
        launches_.flush();
    } catch (const std::exception&) {  // already thrown to the caller that waited for results
    }
    static_cast<void>(cudaStreamDestroy(native_));
}
void Stream::synchronize() const {
    check(cudaStreamSynchronize(native()));
}

bool Stream::done() const {
    const cudaError_t result = cudaStreamQuery(native());
    if (result == cudaErrorNotReady) return false;
    check(result);
    return true;
}

Event::Event() {
    check(cudaEventCreateWithFlags(&native_, cudaEventDisableTiming));
}
Event::~Event() {
    static_cast<void>(cudaEventDestroy(native_));
}
void Event::record(const Stream& stream) {
    check(cudaEventRecord(native_, stream.native()));
}
void Event::make_wait(const Stream& stream) const {
    check(cudaStreamWaitEvent(stream.native(), native_, 0));
}
void Event::synchronize() const {
    check(cudaEventSynchronize(native_));
}

std::byte* allocate_pinned(std::size_t num_bytes) {
    void* data = nullptr;
    check(cudaMallocHost(&data, num_bytes));
    return static_cast<std::byte*>(data);
}
void release_pinned(std::byte* data) noexcept {
    static_cast<void>(cudaFreeHost(data));
}

int num_gpus() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return 0;
    }
    return count;
}

GpuProperties properties_of(int gpu) {
    cudaDeviceProp found{};
    check(cudaGetDeviceProperties(&found, gpu));
    std::string uuid;
    for (const char byte : found.uuid.bytes) {
        constexpr char digits[] = "0123456789abcdef";
        uuid += digits[static_cast<unsigned char>(byte) >> 4];
        uuid += digits[static_cast<unsigned char>(byte) & 15];
    }
    return {.name = found.name,
            .uuid = std::move(uuid),
            .major = found.major,
            .minor = found.minor,
            .multiprocessors = found.multiProcessorCount,
            .memory_bytes = found.totalGlobalMem,
            .l2_bytes = static_cast<std::size_t>(found.l2CacheSize),
            .shared_bytes = found.sharedMemPerBlockOptin};
}

int resident_clusters(const void* kernel, unsigned block_threads, std::size_t shared_bytes, const Extent& cluster) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel));
    if (attributes.maxThreadsPerBlock < static_cast<int>(block_threads)) return 0;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
    cudaLaunchAttribute dimension{};
    dimension.id = cudaLaunchAttributeClusterDimension;
    dimension.val.clusterDim = {cluster.x, cluster.y, cluster.z};
    cudaLaunchConfig_t config{};
    config.gridDim = {cluster.x, cluster.y, cluster.z};
    config.blockDim = {block_threads, 1, 1};
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &dimension;
    config.numAttrs = 1;
    int count = 0;
    check(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
    return count;
}
void use_gpu(int gpu) {
    check(cudaSetDevice(gpu));
}

std::size_t free_memory_bytes() {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return free;
}

std::byte* allocate_memory(std::size_t num_bytes) {
    void* data = nullptr;
    check(cudaMalloc(&data, num_bytes));
    return static_cast<std::byte*>(data);
}

void release_memory(std::byte* data) noexcept {
    static_cast<void>(cudaFree(data));
}

void fill_zero(const Stream& stream, std::byte* to, std::size_t num_bytes) {
    if (num_bytes > 0) check(cudaMemsetAsync(to, 0, num_bytes, stream.native()));
}

void copy(const Stream& stream, void* to, const void* from, std::size_t num_bytes) {
    if (num_bytes > 0) check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, stream.native()));
}

}  // namespace longhaul::kernels::cuda
