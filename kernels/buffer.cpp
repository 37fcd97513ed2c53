#include <stdexcept>
#include <utility>

#include "kernels/device.hpp"
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

Buffer Buffer::far(Device& device, std::size_t num_bytes) {
    Buffer buffer;
    buffer.device_ = &device;
    buffer.num_bytes_ = num_bytes;
    if (num_bytes > 0) buffer.data_ = device.allocate_far(num_bytes);
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

std::byte* Device::allocate_far(std::size_t /*num_bytes*/) {
    throw std::logic_error("allocate_far: this device has no other memory than its own");
}

std::byte* Device::allocate_staging(std::size_t num_bytes) {
    return allocate_host(num_bytes);
}

void Device::release_staging(std::byte* data, std::size_t num_bytes) noexcept {
    release_host(data, num_bytes);
}

void Device::choose(float* /*logits*/, std::int64_t /*stride*/, std::int64_t /*vocab_size*/,
                    std::span<const Choice> /*choices*/, std::span<std::int32_t> /*tokens*/) {
    throw std::logic_error("this device does not choose tokens");
}

void Device::draw(float* /*logits*/, std::int64_t /*stride*/, std::int64_t /*vocab_size*/,
                  std::span<const Choice> /*choices*/, std::int64_t /*count*/, std::span<Drawn> /*drawn*/) {
    throw std::logic_error("this device does not choose tokens");
}

void Device::decide(float* /*logits*/, std::int64_t /*stride*/, std::int64_t /*vocab_size*/, TrialRule /*rule*/,
                    std::span<const NodeTrials> /*nodes*/, std::span<Decided> /*decided*/) {
    throw std::logic_error("this device does not choose tokens");
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
