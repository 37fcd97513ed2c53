// Shared by the kernel tests: the devices under test, numbers from fixed seeds, guarded outputs, bitwise comparison.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/convert.hpp"
#include "kernels/cpu/variants.hpp"
#include "kernels/device.hpp"
#include "kernels/numerics.hpp"
#include "kernels/reference/reference_device.hpp"

namespace longhaul::kernels::testing {

/// A device under test. The same test sources run on all of them.
struct DeviceCase {
    std::string name;
    std::string needs;                                         ///< hardware requirement
    std::function<std::unique_ptr<Device>(int threads)> make;  ///< returns nullptr if the machine lacks it
    Bf16Order order = Bf16Order::pairs;                        ///< of products of bf16

    friend void PrintTo(const DeviceCase& device, std::ostream* os) { *os << device.name; }
};

/// Variants named in LONGHAUL_TEST_WITHOUT ("avx2 avx512") count as missing, as on a processor that lacks them, so that
/// skipped tests can be provoked on any machine (tests/tools/check_report_test.py).
inline bool available(CpuVariant variant) {
    const char* const named = std::getenv("LONGHAUL_TEST_WITHOUT");
    std::istringstream names(named == nullptr ? "" : named);
    for (std::string name; names >> name;) {
        if (name == variant_name(variant)) return false;
    }
    const std::vector<CpuVariant> all = available_cpu_variants();
    return std::find(all.begin(), all.end(), variant) != all.end();
}

inline DeviceCase device_case(CpuVariant variant) {
    return {std::string(variant_name(variant)), "processor flags " + std::string(variant_flags(variant)),
            [variant](int threads) { return available(variant) ? make_cpu_device(variant, threads) : nullptr; }};
}

// The GPU: this machine's or an emulated one, depending on the file linked (real_gpus.cpp, emulated_gpus.cpp).
DeviceCase exact_gpu();    ///< the reference's bits
DeviceCase tensor_gpu();   ///< its own bits where tensor cores are used
DeviceCase older_gpu();    ///< the bits of tensor_gpu, without clusters of blocks and wgmma; emulated only
DeviceCase library_gpu();  ///< as tensor_gpu, with other bits for prompt rows

inline DeviceCase device_case(cpu::TestVariant which, const char* name, CpuVariant variant, const char* more_flags) {
    DeviceCase device = device_case(variant);
    device.name = name;
    device.needs += more_flags;
    device.make = [which, variant](int threads) {
        return available(variant) ? cpu::make_test_device(which, threads) : nullptr;
    };
    return device;
}

/// All devices that give the reference's bits, except the reference itself. The emulated ones have the blocking of
/// avx512 and amx, for processors that have only avx2.
inline std::vector<DeviceCase> exact_devices() {
    using cpu::TestVariant;
    return {device_case(CpuVariant::avx2),
            device_case(TestVariant::avx512_fma, "avx512_fma", CpuVariant::avx512, ""),
            device_case(TestVariant::avx512_bf16, "avx512_bf16", CpuVariant::avx512, " avx512_bf16"),
            device_case(TestVariant::avx512_emulated, "avx512_emulated", CpuVariant::avx2, ""),
            device_case(CpuVariant::amx),
            device_case(TestVariant::amx_emulated, "amx_emulated", CpuVariant::avx2, ""),
            exact_gpu()};
}

/// Devices with the bits of kernels = amx-bf16.
inline std::vector<DeviceCase> devices_in_blocks() {
    using cpu::TestVariant;
    std::vector<DeviceCase> devices{
        device_case(TestVariant::amx_bf16, "amx_bf16", CpuVariant::amx, " amx_bf16"),
        device_case(TestVariant::amx_bf16_on_avx512, "amx_bf16_on_avx512", CpuVariant::avx512, ""),
        device_case(TestVariant::amx_bf16_on_avx2, "amx_bf16_on_avx2", CpuVariant::avx2, "")};
    for (DeviceCase& device : devices) device.order = Bf16Order::blocks;
    return devices;
}

inline std::vector<DeviceCase> all_devices() {
    std::vector<DeviceCase> devices = exact_devices();
    devices.insert(devices.begin(), device_case(CpuVariant::reference));
    devices.push_back(tensor_gpu());
    return devices;
}

/// Numbers from a fixed seed, which a failing test prints. SplitMix64 (Steele et al. 2014), because
/// std::normal_distribution takes half of a kernel test's time.
class Numbers {
  public:
    explicit Numbers(std::uint64_t seed) : state_(seed) {}

    /// About normal, with mean 0, standard deviation `scale` and all bits of a float: the sum of four uniform numbers.
    float normal(float scale = 1.0F) {
        constexpr float deviation = 2'479'700'524.4F;  // of the sum: sqrt(4 / 12) * 2^32
        const std::uint64_t a = next(), b = next();
        const std::uint64_t sum = (a >> 32) + (a & 0xffffffffU) + (b >> 32) + (b & 0xffffffffU);
        return scale * (static_cast<float>(static_cast<std::int64_t>(sum) - (std::int64_t{1} << 33)) / deviation);
    }
    std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(end)); }
    std::vector<float> normals(std::int64_t count, float scale = 1.0F) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(scale);
        return values;
    }

  private:
    std::uint64_t next() {
        std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15U;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
        return mixed ^ (mixed >> 31);
    }

    std::uint64_t state_;
};

/// Floats converted to `dtype`, as bytes.
inline std::vector<std::byte> rounded(const std::vector<float>& values, DType dtype) {
    std::vector<std::byte> bytes(values.size() * bytes_of(dtype) + 64);  // for reads past the end
    for (std::size_t i = 0; i < values.size(); ++i) {
        store_rounded(bytes.data(), dtype, static_cast<std::int64_t>(i), values[i]);
    }
    return bytes;
}

/// Host data copied to a device's memory, as input of its operations.
class OnDevice {
  public:
    template <typename T>
    OnDevice(Device& device, std::span<const T> values) : buffer_(device, values.size_bytes()) {
        device.upload(buffer_.data(), values.data(), values.size_bytes());
    }
    template <typename T>
    OnDevice(Device& device, const std::vector<T>& values) : OnDevice(device, std::span<const T>(values)) {}

    [[nodiscard]] std::byte* data() const { return buffer_.data(); }
    [[nodiscard]] float* floats() const { return buffer_.as<float>(); }

  private:
    Buffer buffer_;
};

/// Output in a device's memory, with a guard pattern before and after it that must stay intact. The pattern is a NaN in
/// either type, so an element that was never written is found too.
class Guarded {
  public:
    Guarded(Device& device, std::size_t num_bytes)
        : device_(&device), buffer_(device, num_bytes + 2 * guard), num_bytes_(num_bytes) {
        const std::vector<std::byte> pattern(buffer_.num_bytes(), std::byte{0xff});
        device.upload(buffer_.data(), pattern.data(), pattern.size());
    }

    // The output's address in device memory.
    [[nodiscard]] std::byte* data() const { return buffer_.data() + guard; }
    [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(data()); }

    // The output, downloaded to the host.
    [[nodiscard]] std::vector<std::byte> bytes() const {
        std::vector<std::byte> all = with_guards();
        return {all.begin() + guard, all.end() - guard};
    }
    [[nodiscard]] std::vector<float> values() const {
        std::vector<float> all(num_bytes_ / 4);
        device_->download(all.data(), data(), all.size() * 4);
        return all;
    }
    [[nodiscard]] ::testing::AssertionResult intact() const {
        const std::vector<std::byte> all = with_guards();
        for (std::size_t i = 0; i < all.size(); ++i) {
            const bool inside = i >= guard && i < guard + num_bytes_;
            if (!inside && all[i] != std::byte{0xff}) {
                return ::testing::AssertionFailure() << "guard byte " << i << " was written, output is " << num_bytes_;
            }
        }
        return ::testing::AssertionSuccess();
    }

  private:
    static constexpr std::ptrdiff_t guard = 128;

    [[nodiscard]] std::vector<std::byte> with_guards() const {
        std::vector<std::byte> all(buffer_.num_bytes());
        device_->download(all.data(), buffer_.data(), all.size());
        return all;
    }

    Device* device_;
    Buffer buffer_;
    std::size_t num_bytes_;
};

/// Expects equal bits and no NaN or infinity. Counts the compared values.
class Comparison {
  public:
    explicit Comparison(const DeviceCase& device) : device_(device) {}
    ~Comparison() {
        std::printf("[ compared ] %lld values, %s (needs %s)\n", static_cast<long long>(count_), device_.name.c_str(),
                    device_.needs.c_str());
    }
    Comparison(const Comparison&) = delete;
    Comparison& operator=(const Comparison&) = delete;

    ::testing::AssertionResult equal(const std::vector<std::byte>& expected, const std::vector<std::byte>& actual,
                                     DType dtype) {
        if (expected.size() != actual.size()) return ::testing::AssertionFailure() << "sizes differ";
        const auto element = bytes_of(dtype);
        std::int64_t differ = 0;
        std::int64_t first = -1;
        for (std::size_t i = 0; i < expected.size() / element; ++i, ++count_) {
            const bool same = std::memcmp(expected.data() + i * element, actual.data() + i * element, element) == 0;
            const bool finite = std::isfinite(load_as_f32(actual.data(), dtype, static_cast<std::int64_t>(i)));
            if (same && finite) continue;
            ++differ;
            if (first < 0) first = static_cast<std::int64_t>(i);
        }
        if (differ == 0) return ::testing::AssertionSuccess();
        return ::testing::AssertionFailure()
               << differ << " of " << expected.size() / element << " values differ, first at " << first << ": expected "
               << load_as_f32(expected.data(), dtype, first) << ", got " << load_as_f32(actual.data(), dtype, first);
    }
    ::testing::AssertionResult equal(const Guarded& expected, const Guarded& actual, DType dtype) {
        if (auto intact = actual.intact(); !intact) return intact;
        return equal(expected.bytes(), actual.bytes(), dtype);
    }
    [[nodiscard]] std::int64_t count() const { return count_; }

  private:
    const DeviceCase& device_;
    std::int64_t count_ = 0;
};

/// Base of tests that compare a device with the reference.
class DeviceTest : public ::testing::TestWithParam<DeviceCase> {
  protected:
    void SetUp() override {
        device_ = GetParam().make(2);
        if (device_ == nullptr) GTEST_SKIP() << GetParam().name << " needs " << GetParam().needs;
    }

    std::unique_ptr<Device> device_;
    std::unique_ptr<Device> reference_ = make_reference_device(2, GetParam().order);
};

/// Base of tests that check one device's own guarantees.
class ContractTest : public ::testing::TestWithParam<DeviceCase> {
  protected:
    void SetUp() override {
        if (GetParam().make(1) == nullptr) GTEST_SKIP() << GetParam().name << " needs " << GetParam().needs;
    }
};

inline std::string name_of(const ::testing::TestParamInfo<DeviceCase>& info) {
    return info.param.name;
}

}  // namespace longhaul::kernels::testing
