// Memory of devices that compute on the host (the reference and the vector CPU devices).
#pragma once

#include <cstddef>

#include "kernels/device.hpp"

namespace longhaul::kernels {

/// Zero-filled, 64-byte aligned; from 4 MB on in huge pages if the system grants them (weights are streamed once per
/// token; with 4 KB pages every 64th cache line would need another address translation). Throws std::bad_alloc.
std::byte* allocate_host(std::size_t num_bytes);
void release_host(std::byte* data, std::size_t num_bytes) noexcept;

/// The part of Device that all of them share.
class HostDevice : public Device {
  public:
    std::byte* allocate(std::size_t num_bytes) final { return allocate_host(num_bytes); }
    void release(std::byte* data, std::size_t num_bytes) noexcept final { release_host(data, num_bytes); }
    void upload(std::byte* to, const void* from_host, std::size_t num_bytes) final;
    void download(void* to_host, const std::byte* from, std::size_t num_bytes) final;
    void copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) final;
    Buffer adopt(const std::byte* data, std::size_t num_bytes) final;
    void begin_pass(const PassRows& pass) override;

  protected:
    [[nodiscard]] const PassRows& pass() const { return pass_; }

  private:
    PassRows pass_;
};

}  // namespace longhaul::kernels
