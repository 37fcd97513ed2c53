#include "runner/bench/ceilings.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "kernels/ceilings.hpp"

namespace longhaul::runner {
namespace {

kernels::CpuVariant variant_of(const kernels::Device& device) {
    if (device.name().starts_with(kernels::variant_name(kernels::CpuVariant::amx_bf16)))
        return kernels::CpuVariant::amx_bf16;
    for (const kernels::CpuVariant variant : kernels::available_cpu_variants()) {
        if (kernels::variant_name(variant) == device.name()) return variant;
    }
    throw std::logic_error("no processor variant '" + std::string(device.name()) + "'");
}

class ProcessorCeilings final : public Ceilings {
  public:
    ProcessorCeilings(kernels::CpuVariant variant, int threads)
        : variant_(variant), threads_(threads), bandwidth_(threads) {}
    double bytes_per_second() override { return bandwidth_.measure(); }
    double flops_per_second(kernels::DType weights) override {
        return kernels::measure_peak_flops(variant_, threads_, weights);
    }

  private:
    kernels::CpuVariant variant_;
    int threads_;
    kernels::ReadBandwidth bandwidth_;
};

class DeviceCeilings final : public Ceilings {
  public:
    explicit DeviceCeilings(kernels::Device& device)
        : device_(device), x_(device, vector_bytes(device)), y_(device, vector_bytes(device)) {}

    double bytes_per_second() override {
        constexpr int repeats = 10;
        const std::int64_t count = x_.num_bytes() / sizeof(float);
        device_.add(x_.as<float>(), y_.as<float>(), count);
        device_.finish();
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < repeats; ++i) device_.add(x_.as<float>(), y_.as<float>(), count);
        device_.finish();
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return 3.0 * repeats * static_cast<double>(x_.num_bytes()) / seconds;
    }
    double flops_per_second(kernels::DType) override { return device_.measure_peak_flops(); }

  private:
    /// Larger than any cache, but a small part of the memory.
    static std::size_t vector_bytes(const kernels::Device& device) {
        const std::int64_t most = device.own_memory()->total_bytes / 64;
        return std::min(most, std::int64_t{512} << 20) / 64 * 64;
    }

    kernels::Device& device_;
    kernels::Buffer x_, y_;
};

}  // namespace

std::unique_ptr<Ceilings> make_ceilings(kernels::Device& device, int threads) {
    if (device.own_memory()) return std::make_unique<DeviceCeilings>(device);
    return std::make_unique<ProcessorCeilings>(variant_of(device), threads);
}

}  // namespace longhaul::runner
