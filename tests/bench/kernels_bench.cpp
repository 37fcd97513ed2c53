// Question: how close are the kernels to the machine's limits?
// Machine: any; its limits are measured and printed in the same run (kernels/ceilings.hpp).
// Build: cmake --build build --target kernels_bench (not part of the default build)
// Command: kernels_bench [--threads N] [--kernels NAME] [--weights bf16|int8|int4] [--only PART] [--quick]
// Answer: per matmul of the 1.1 B Llama shape and number of rows: time, GB/s of weights and its share of the
// read bandwidth, GFLOP/s and its share of the peak, and the larger of the two shares (1.0: the roofline); and the time
// of single small operations, which is mostly overhead. Each matmul runs over enough copies of its matrix to exceed the
// cache. Values are medians over rounds; each round measures the bandwidth before and after the matmul, because on
// shared machines it can halve within seconds. (Attention: `longhaul bench attention`.)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/ceilings.hpp"
#include "kernels/device.hpp"
#include "kernels/numerics.hpp"

namespace {

using namespace longhaul::kernels;
using Clock = std::chrono::steady_clock;

struct Bench {
    CpuVariant variant = CpuVariant::avx2;
    int threads = 2;
    DType weights = DType::bf16;  ///< of the matmuls
    bool quick = false;
    std::unique_ptr<ReadBandwidth> bandwidth;
    double peak = 0.0;  ///< operations/s
    std::unique_ptr<Device> device;
};

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

double seconds_of(const std::function<void()>& run) {
    const auto start = Clock::now();
    run();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Median seconds of `run`, after one warm-up call.
double median_seconds(int repeats, const std::function<void()>& run) {
    std::vector<double> seconds;
    run();
    for (int i = 0; i < repeats; ++i) seconds.push_back(seconds_of(run));
    return median(std::move(seconds));
}

std::vector<std::uint16_t> random_bf16(std::size_t count) {
    std::vector<std::uint16_t> values(count);
    std::uint32_t state = 1;
    for (auto& value : values) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<std::uint16_t>(0x3c00U | (state >> 23 & 0x81ffU));
    }
    return values;
}

/// Times `run`, which reads `copies` times `bytes` and takes as many `operations`, between measurements of the
/// bandwidth. Time and share of the bandwidth are medians, each taken separately.
void product_line(const Bench& bench, const std::string& what, int rounds, double bytes, double operations,
                  std::size_t copies, const std::function<void()>& run) {
    std::vector<double> seconds, memory;
    run();
    double bandwidth = bench.bandwidth->measure();
    for (int i = 0; i < rounds; ++i) {
        seconds.push_back(seconds_of(run) / static_cast<double>(copies));
        const double after = bench.bandwidth->measure();
        memory.push_back(bytes / seconds.back() / ((bandwidth + after) / 2));
        bandwidth = after;
    }
    const double time = median(std::move(seconds));
    const double of_bandwidth = median(std::move(memory));
    const double of_peak = operations / time / bench.peak;
    std::printf("%-34s %10.1f us  %6.1f GB/s %5.2f  %7.1f GFLOP/s %5.2f  roofline %4.2f\n", what.c_str(), time * 1e6,
                bytes / time * 1e-9, of_bandwidth, operations / time * 1e-9, of_peak, std::max(of_bandwidth, of_peak));
}

void bench_matmul(Bench& bench, std::int64_t num_outputs, std::int64_t num_inputs) {
    const std::int64_t half = bench.weights == DType::bf16 ? 0 : bench.weights == DType::int8 ? 1 : 2;
    const double operations = static_cast<double>(num_outputs * num_inputs * 2);
    double bytes = operations / static_cast<double>(1 << half);
    const auto copies = static_cast<std::size_t>(std::max(1.0, 200e6 / bytes));
    const std::vector<std::uint16_t> values = random_bf16(static_cast<std::size_t>(num_outputs * num_inputs));
    const WeightRows rows{
        reinterpret_cast<const std::byte*>(values.data()), DType::bf16, num_outputs, num_inputs, 0, num_inputs};
    std::vector<Matrix> matrices;
    for (std::size_t i = 0; i < copies; ++i) {
        matrices.push_back(bench.device->pack(bench.weights, {&rows, 1}, 8, num_inputs / 8));
    }
    bytes = static_cast<double>(matrices.front().data.num_bytes());
    const std::vector<std::uint16_t> x = random_bf16(static_cast<std::size_t>(512 * num_inputs));
    std::vector<float> y(static_cast<std::size_t>(512 * num_outputs));
    for (const std::int64_t num_rows : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 512}) {
        if (num_rows == 512 && num_outputs > 10'000) continue;
        const std::size_t used = num_rows > 64 ? 1 : copies;
        product_line(bench,
                     "matmul " + std::to_string(num_outputs) + "x" + std::to_string(num_inputs) + ", " +
                         std::to_string(num_rows) + " rows",
                     num_rows > 64 ? 3 : 7, bytes, operations * static_cast<double>(num_rows), used, [&] {
                         for (std::size_t i = 0; i < used; ++i) {
                             bench.device->matmul(matrices[i], reinterpret_cast<const std::byte*>(x.data()), num_inputs,
                                                  num_rows, y.data());
                         }
                     });
    }
}

/// One layer of the demo model's shape: the overhead of operations with almost no work.
void bench_overhead(Bench& bench) {
    Device& device = *bench.device;
    const std::vector<std::uint16_t> values = random_bf16(1376 * 256);
    const auto pack = [&](std::int64_t n, std::int64_t k) {
        const WeightRows rows{reinterpret_cast<const std::byte*>(values.data()), DType::bf16, n, k, 0, k};
        return device.pack(DType::bf16, {&rows, 1}, 8, k / 8);
    };
    const Matrix qkv = pack(512, 256);
    const Matrix o = pack(256, 256);
    const Matrix up = pack(1376, 256);
    const Matrix down = pack(256, 688);
    std::vector<float> x(256, 0.5F), gain(256, 1.0F), y(4096, 0.0F), angles(16, 0.7F);
    std::vector<std::uint16_t> act(4096);
    auto* act_bytes = reinterpret_cast<std::byte*>(act.data());
    const KvLayout layout{.dtype = DType::bf16, .num_layers = 1, .num_kv_heads = 4, .head_dim = 32};
    Buffer pages(device, device.kv_page_bytes(layout) * 8);
    std::vector<std::byte*> page_list;
    for (std::size_t i = 0; i < 8; ++i) page_list.push_back(pages.data() + i * device.kv_page_bytes(layout));
    const AttentionSequence sequence{page_list, {}};
    const KvSlot slot{page_list[7], 0};
    const AttentionRow row{0, 400, 401, nullptr};
    const PassAngles rotation{.cos = angles.data(), .sin = angles.data()};
    device.begin_pass({.sequences = {&sequence, 1},
                       .rows = {&row, 1},
                       .slots = {&slot, 1},
                       .angles = {&rotation, 1},
                       .num_angles = 16});
    const auto line = [&](const char* what, const std::function<void()>& run) {
        constexpr int calls = 200;
        const double seconds = median_seconds(bench.quick ? 5 : 51, [&] {
            for (int i = 0; i < calls; ++i) run();
        });
        std::printf("%-34s %10.2f us\n", what, seconds / calls * 1e6);
    };
    const auto layer = [&] {
        device.rms_norm(x.data(), gain.data(), 1e-5F, 1, 256, DType::bf16, act_bytes, 256);
        device.matmul(qkv, act_bytes, 256, 1, y.data());
        device.rope_store(layout, 0, y.data(), 8, act_bytes);
        device.attention(layout, 0, act_bytes, 8, nullptr, DType::bf16, act_bytes + 1024, 256);
        device.matmul(o, act_bytes + 1024, 256, 1, y.data());
        device.add(x.data(), y.data(), 256);
        device.rms_norm(x.data(), gain.data(), 1e-5F, 1, 256, DType::bf16, act_bytes, 256);
        device.matmul(up, act_bytes, 256, 1, y.data());
        device.gate_mul(Gate::silu, y.data(), 1, 688, DType::bf16, act_bytes, 688);
        device.matmul(down, act_bytes, 688, 1, y.data());
        device.add(x.data(), y.data(), 256);
    };
    line("demo layer, 11 operations", layer);
    line("rms_norm 256", [&] { device.rms_norm(x.data(), gain.data(), 1e-5F, 1, 256, DType::bf16, act_bytes, 256); });
    line("rope_store 8+4 heads of 32", [&] { device.rope_store(layout, 0, y.data(), 8, act_bytes); });
    line("attention 400, 8 heads of 32",
         [&] { device.attention(layout, 0, act_bytes, 8, nullptr, DType::bf16, act_bytes + 1024, 256); });
    line("matmul 256x256", [&] { device.matmul(o, act_bytes, 256, 1, y.data()); });
    line("matmul 1376x256", [&] { device.matmul(up, act_bytes, 256, 1, y.data()); });
    line("gate_mul 688", [&] { device.gate_mul(Gate::silu, y.data(), 1, 688, DType::bf16, act_bytes, 688); });
    line("add 256", [&] { device.add(x.data(), y.data(), 256); });
}

}  // namespace

int main(int argc, char** argv) {
    Bench bench;
    bench.variant = available_cpu_variants().back();
    std::string only;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (option == "--quick") bench.quick = true;
        if (option == "--threads" && i + 1 < argc) bench.threads = std::atoi(argv[++i]);
        if (option == "--weights" && i + 1 < argc) {
            const std::string type = argv[++i];
            bench.weights = type == "int8" ? DType::int8 : type == "int4" ? DType::int4 : DType::bf16;
        }
        if (option == "--only" && i + 1 < argc) only = argv[++i];
        if (option == "--kernels" && i + 1 < argc) {
            const std::string name = argv[++i];
            bench.variant = CpuVariant::reference;
            for (const CpuVariant variant : available_cpu_variants())
                if (variant_name(variant) == name) bench.variant = variant;
            if (name == variant_name(CpuVariant::amx_bf16)) bench.variant = CpuVariant::amx_bf16;
            if (bench.variant == CpuVariant::reference) {
                std::fprintf(
                    stderr,
                    "kernels_bench: --kernels: expected avx2, avx512, amx or amx-bf16, as this processor has\n");
                return 2;
            }
        }
    }
    bench.device = make_cpu_device(bench.variant, bench.threads);
    bench.bandwidth = std::make_unique<ReadBandwidth>(bench.threads);
    bench.peak = measure_peak_flops(bench.variant, bench.threads, bench.weights);
    std::printf("kernels %s, %d threads: read bandwidth %.1f GB/s, peak %.1f GFLOP/s\n",
                std::string(bench.device->name()).c_str(), bench.threads, bench.bandwidth->measure() * 1e-9,
                bench.peak * 1e-9);
    const auto wanted = [&](const char* part) { return only.empty() || only == part; };
    if (wanted("overhead")) bench_overhead(bench);
    if (wanted("matmul")) {
        bench_matmul(bench, 2048, 2048);
        if (!bench.quick) bench_matmul(bench, 5632, 2048);
        if (!bench.quick) bench_matmul(bench, 2048, 5632);
        if (!bench.quick) bench_matmul(bench, 32000, 2048);
    }
    return 0;
}
