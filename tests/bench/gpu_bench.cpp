// Question: how near are the kernels to what the GPU can do?
// Machine: one NVIDIA GPU; prints the bandwidth of a copy, measured in the same run, as the ceiling.
// Command: gpu_bench [--exact] [--quick]
// Answer: of the products and the attention of an 8 B Llama (hidden 4096, 32 query and 8 KV heads of 128, feed-forward
// 14336) of single rows' operations, and of choosing tokens from rows of 128K logits: time, GB/s of the bytes that must
// move, their share of the copy's bandwidth, and TFLOP/s. Medians; each product runs over enough copies of its matrix
// to be out of the second cache. tests/bench/ gpu_peer.py does the same with PyTorch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/gpu_devices.hpp"
#include "kernels/numerics.hpp"

namespace {

using namespace longhaul::kernels;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t head_dim = 128, q_heads = 32, kv_heads = 8;

class Bench {
  public:
    Bench(GpuArithmetic arithmetic, bool quick) : device_(make_gpu_device(arithmetic, 0)), quick_(quick) {
        constexpr std::int64_t rows = 32768, dim = 8192;  // 1 GiB there, 1 GiB back
        const Buffer from = random_floats(rows * dim);
        const Buffer to(*device_, rows * dim * 4);
        std::vector<std::int32_t> all(rows);
        std::iota(all.begin(), all.end(), 0);
        copy_bandwidth_ =
            2.0 * rows * dim * 4 / seconds_of(1, [&] { device_->gather(from.as<float>(), all, dim, to.as<float>()); });
        std::printf("%s: a copy moves %.0f GB/s\n", std::string(device_->name()).c_str(), copy_bandwidth_ * 1e-9);
    }

    void products(DType dtype, const char* name) {
        const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
            {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
        for (const std::int64_t num_rows : {1, 8, 64, 512}) {
            double layer_seconds = 0.0, layer_bytes = 0.0;
            for (const auto& [outputs, inputs] : shapes) {
                const Timed timed = product(dtype, outputs, inputs, num_rows);
                layer_seconds += timed.seconds;
                layer_bytes += timed.bytes;
                line(std::string(name) + " " + std::to_string(outputs) + "x" + std::to_string(inputs) + ", " +
                         std::to_string(num_rows) + " rows",
                     timed);
            }
            line(std::string(name) + " products of 32 layers, " + std::to_string(num_rows) + " rows",
                 {32 * layer_seconds, 32 * layer_bytes, 0.0});
        }
    }

    void attention(DType dtype, const char* name) {
        for (const std::int64_t context : {1000, 10'000, 100'000}) {
            for (const std::int64_t nodes : {1, 64}) {
                line(std::string("attention ") + name + ", " + std::to_string(context) + " tokens, " +
                         std::to_string(nodes) + " nodes",
                     attention_of(dtype, context, nodes));
            }
        }
    }

    void rows() {
        const Buffer x = random_floats(std::int64_t{512} * 28672), gain = random_floats(4096);
        const Buffer out(*device_, std::size_t{512} * 28672 * 4);
        for (const std::int64_t n : {1, 64, 512}) {
            const auto count = static_cast<double>(n);
            line("rms_norm 4096, " + std::to_string(n) + " rows",
                 {seconds_of(100,
                             [&] {
                                 device_->rms_norm(x.as<float>(), gain.as<float>(), 1e-5F, n, 4096, DType::bf16,
                                                   out.data(), 4096);
                             }),
                  count * 4096 * 6, 0.0});
            line("silu_mul 14336, " + std::to_string(n) + " rows",
                 {seconds_of(100, [&] { device_->silu_mul(x.as<float>(), n, 14336, DType::bf16, out.data(), 14336); }),
                  count * 14336 * 10, 0.0});
            line("add 4096, " + std::to_string(n) + " rows",
                 {seconds_of(100, [&] { device_->add(out.as<float>(), x.as<float>(), n * 4096); }), count * 4096 * 12,
                  0.0});
        }
    }

    /// Tokens from rows of logits with a few likely tokens and many that are not.
    void choices() {
        constexpr std::int64_t vocab = 128256, most_rows = 64;
        std::vector<float> values(static_cast<std::size_t>(vocab * most_rows));
        std::uint32_t state = 1;
        for (float& value : values) {
            value = 0.0F;
            for (int i = 0; i < 6; ++i) value += static_cast<float>((state = state * 1664525U + 1013904223U) >> 8);
            value *= 4.0F * 0x1p-24F;  // about normal, spread 2.8
        }
        const Buffer logits(*device_, values.size() * 4);
        device_->upload(logits.data(), values.data(), logits.num_bytes());
        const std::vector<std::pair<const char*, Choice>> kinds = {{"greedy", {.temperature = 0.0}},
                                                                   {"no filter", {}},
                                                                   {"min-p 0.05", {.min_p = 0.05}},
                                                                   {"top-p 0.5", {.top_p = 0.5}},
                                                                   {"top-k 50, top-p 0.9", {.top_k = 50, .top_p = 0.9}},
                                                                   {"eta 0.001", {.eta = 1e-3}}};
        for (const auto& [name, kind] : kinds) {
            for (const std::int64_t num_rows : {std::int64_t{1}, most_rows}) {
                std::vector<Choice> rows(static_cast<std::size_t>(num_rows), kind);
                for (std::int64_t r = 0; r < num_rows; ++r) rows[static_cast<std::size_t>(r)].row = r;
                std::vector<std::int32_t> tokens(rows.size());
                const double seconds =
                    seconds_of(20, [&] { device_->choose(logits.as<float>(), vocab, vocab, rows, tokens); });
                const auto left = std::count(tokens.begin(), tokens.end(), -1);
                line(std::string("choose, ") + name + ", " + std::to_string(num_rows) + " rows" +
                         (left > 0 ? ", " + std::to_string(left) + " left to the host" : ""),
                     {seconds, static_cast<double>(num_rows * vocab * 4), 0.0});
            }
        }
    }

  private:
    struct Timed {
        double seconds, bytes, operations;
    };

    /// Median seconds of one of `calls` calls of `run` in a row.
    double seconds_of(int calls, const std::function<void()>& run) {
        std::vector<double> seconds;
        run();
        wait();
        for (int i = 0; i < (quick_ ? 3 : 9); ++i) {
            const auto start = Clock::now();
            for (int c = 0; c < calls; ++c) run();
            wait();
            seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / calls);
        }
        std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                         seconds.end());
        return seconds[seconds.size() / 2];
    }
    void wait() {
        float value;
        device_->download(&value, small_.data(), sizeof value);
    }

    Buffer random_floats(std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        std::uint32_t state = 1;
        for (float& value : values) {
            state = state * 1664525U + 1013904223U;
            value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
        }
        Buffer buffer(*device_, values.size() * 4);
        device_->upload(buffer.data(), values.data(), buffer.num_bytes());
        return buffer;
    }
    static std::vector<std::uint16_t> random_bf16(std::int64_t count) {
        std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
        std::uint32_t state = 1;
        for (auto& value : values) {
            state = state * 1664525U + 1013904223U;
            value = static_cast<std::uint16_t>(0x3c00U | (state >> 23 & 0x81ffU));
        }
        return values;
    }

    /// With small numbers of bf16, whatever they are taken for: on zeros a GPU is faster than on anything else.
    void fill(const Buffer& memory) {
        const std::vector<std::uint16_t> piece = random_bf16(8 << 20);
        for (std::size_t at = 0; at < memory.num_bytes(); at += piece.size() * 2) {
            device_->upload(memory.data() + at, piece.data(), std::min(piece.size() * 2, memory.num_bytes() - at));
        }
    }

    Timed product(DType dtype, std::int64_t outputs, std::int64_t inputs, std::int64_t num_rows) {
        const std::vector<std::uint16_t> values = random_bf16(outputs * inputs);
        const WeightRows rows{
            reinterpret_cast<const std::byte*>(values.data()), DType::bf16, outputs, inputs, 0, inputs};
        std::vector<Matrix> matrices;
        matrices.push_back(device_->pack(dtype, {&rows, 1}, 8, inputs / 8));
        const auto bytes = static_cast<double>(matrices.front().data.num_bytes());
        std::vector<std::byte> packed(matrices.front().data.num_bytes());
        device_->download(packed.data(), matrices.front().data.data(), packed.size());
        while (static_cast<double>(matrices.size()) * bytes < 300e6) {
            const Matrix& first = matrices.front();
            matrices.push_back({first.dtype, first.num_outputs, first.num_inputs, first.num_slices, first.slice_length,
                                device_->adopt(packed.data(), packed.size())});
        }
        const std::vector<std::uint16_t> x_values = random_bf16(num_rows * inputs);
        const Buffer x(*device_, x_values.size() * 2);
        device_->upload(x.data(), x_values.data(), x.num_bytes());
        const Buffer y(*device_, static_cast<std::size_t>(num_rows * outputs) * 4);
        std::size_t next = 0;
        const double seconds = seconds_of(static_cast<int>(2 * matrices.size()), [&] {
            device_->matmul(matrices[next++ % matrices.size()], x.data(), inputs, num_rows, y.as<float>());
        });
        return {seconds, bytes, 2.0 * static_cast<double>(outputs * inputs * num_rows)};
    }

    /// A chain of `nodes` scratch slots behind a context in pages.
    Timed attention_of(DType dtype, std::int64_t context, std::int64_t nodes) {
        constexpr std::int64_t layers = 4;  // in turn, out of the second cache
        const KvLayout layout{.dtype = dtype, .num_layers = layers, .num_kv_heads = kv_heads, .head_dim = head_dim};
        const std::size_t page_bytes = device_->kv_page_bytes(layout);
        const std::int64_t num_pages = (context + 63) / 64;
        const Buffer memory(*device_, static_cast<std::size_t>(num_pages + 1) * page_bytes);
        fill(memory);
        std::vector<std::byte*> pages, scratch;
        for (std::int64_t i = 0; i < num_pages; ++i) {
            pages.push_back(memory.data() + static_cast<std::size_t>(i) * page_bytes);
        }
        scratch.push_back(memory.data() + static_cast<std::size_t>(num_pages) * page_bytes);
        const AttentionSequence sequence{pages, scratch};
        std::vector<std::int32_t> path(static_cast<std::size_t>(nodes));
        std::iota(path.begin(), path.end(), 0);
        std::vector<AttentionRow> rows;
        for (std::int64_t n = 0; n < nodes; ++n) rows.push_back({0, context + n, context, path.data()});
        device_->begin_pass({.sequences = {&sequence, 1}, .rows = rows, .slots = {}});
        const Buffer q = random_floats(nodes * q_heads * head_dim);
        const Buffer out(*device_, static_cast<std::size_t>(nodes * q_heads * head_dim) * 2);
        std::int64_t layer = 0;
        const double seconds = seconds_of(2 * layers, [&] {
            device_->attention(layout, layer++ % layers, q.data(), q_heads, DType::bf16, out.data(),
                               q_heads * head_dim);
        });
        const double bytes = static_cast<double>(context) * static_cast<double>(layout.position_bytes()) / layers;
        return {seconds, bytes, 4.0 * static_cast<double>(context * nodes * q_heads * head_dim)};
    }

    void line(const std::string& what, const Timed& timed) const {
        std::printf("%-44s %10.1f us %8.0f GB/s %5.2f of a copy %8.1f TFLOP/s\n", what.c_str(), timed.seconds * 1e6,
                    timed.bytes / timed.seconds * 1e-9, timed.bytes / timed.seconds / copy_bandwidth_,
                    timed.operations / timed.seconds * 1e-12);
        std::fflush(stdout);
    }

    std::unique_ptr<Device> device_;
    Buffer small_{*device_, 64};
    bool quick_;
    double copy_bandwidth_ = 0.0;
};

}  // namespace

int main(int argc, char** argv) {
    bool quick = false;
    GpuArithmetic arithmetic = GpuArithmetic::tensor;
    for (int i = 1; i < argc; ++i) {
        if (std::string(argv[i]) == "--quick") quick = true;
        if (std::string(argv[i]) == "--exact") arithmetic = GpuArithmetic::exact;
    }
    try {
        Bench bench(arithmetic, quick);
        bench.products(DType::bf16, "bf16");
        if (!quick) bench.products(DType::int8, "int8");
        if (!quick) bench.products(DType::int4, "int4");
        bench.attention(DType::bf16, "bf16");
        if (!quick) bench.attention(DType::int8, "int8");
        bench.rows();
        bench.choices();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: GPU: %s\n", error.what());
        return 1;
    }
    return 0;
}
