// Buffer, Staging, and the default implementations of Device.
#include <stdexcept>
#include <utility>

#include "kernels/checks.hpp"
#include "kernels/device.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/host_memory.hpp"

namespace longhaul::kernels {

Buffer::Buffer(Device& device, std::size_t num_bytes) : device_(&device), num_bytes_(num_bytes) {
    if (num_bytes > 0) data_ = device.allocate(num_bytes);
}

Buffer Buffer::borrowed(std::byte* data, std::size_t num_bytes) {
    Buffer buffer;
    buffer.data_ = data;
    buffer.num_bytes_ = num_bytes;
    return buffer;
}

Buffer Buffer::in_host_memory(Device& device, std::size_t num_bytes) {
    Buffer buffer;
    buffer.device_ = &device;
    buffer.num_bytes_ = num_bytes;
    if (num_bytes > 0) buffer.data_ = device.allocate_in_host_memory(num_bytes);
    return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    if (device_ != nullptr && data_ != nullptr) device_->release(data_, num_bytes_);
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    num_bytes_ = std::exchange(other.num_bytes_, 0);
    return *this;
}

Buffer::~Buffer() {
    if (device_ != nullptr && data_ != nullptr) device_->release(data_, num_bytes_);
}

std::byte* Device::allocate_in_host_memory(std::size_t /*num_bytes*/) {
    throw std::logic_error("allocate_in_host_memory: this device has no separate host memory");
}

std::byte* Device::allocate_staging(std::size_t num_bytes) {
    return allocate_host(num_bytes);
}

void Device::release_staging(std::byte* data, std::size_t num_bytes) noexcept {
    release_host(data, num_bytes);
}

Matrix Device::pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) {
    Matrix matrix = pack(dtype, parts, num_slices, slice_length);
    matrix.gated = true;
    return matrix;
}

void Device::gated_matmul(const Matrix& w, Gate gate, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                          float* sums, DType act, std::byte* out, std::int64_t out_stride) {
    check_gated(w, act, num_rows, out_stride);
    layer_matmul(w, x, x_stride, num_rows, sums);
    gate_mul(gate, sums, num_rows, w.num_outputs / 2, act, out, out_stride);
}

void Device::qkv_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* qkv,
                        const KvLayout& layout, std::int64_t layer, std::int64_t q_heads, std::byte* q_out) {
    check_qkv(w, layout, q_heads);
    layer_matmul(w, x, x_stride, num_rows, qkv);
    rope_store(layout, layer, qkv, q_heads, q_out);
}

void Device::add_columns(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                         const std::int32_t* columns, std::int64_t num_rows, std::int64_t width) {
    const FlushDenormals flush;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        for (std::int64_t i = 0; i < width; ++i) x[r * x_stride + columns[i]] += y[r * y_stride + i];
    }
}

void Device::add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows,
                          std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    add(x, y, num_rows * dim);
    rms_norm(x, gain, eps, num_rows, dim, act, out, out_stride);
}

Staging::Staging(Device& device, std::size_t num_bytes) : device_(&device), num_bytes_(num_bytes) {
    if (num_bytes > 0) data_ = device.allocate_staging(num_bytes);
}

Staging::Staging(Staging&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Staging& Staging::operator=(Staging&& other) noexcept {
    if (this == &other) return *this;
    if (data_ != nullptr) device_->release_staging(data_, num_bytes_);
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    num_bytes_ = std::exchange(other.num_bytes_, 0);
    return *this;
}

Staging::~Staging() {
    if (data_ != nullptr) device_->release_staging(data_, num_bytes_);
}

}  // namespace longhaul::kernels
