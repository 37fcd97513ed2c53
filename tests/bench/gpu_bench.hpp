// The measurements of gpu_bench.cpp, which says what they are for: a method each, on one device.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu_devices.hpp"
#include "kernels/numerics.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::kernels {

using Clock = std::chrono::steady_clock;

inline constexpr std::int64_t head_dim = 128, q_heads = 32, kv_heads = 8;

/// A pass of prompt rows only.
class Prompt {
  public:
    Prompt(Device& device, std::int64_t num_rows)
        : page_(device,
                device.kv_page_bytes({.dtype = DType::bf16, .num_layers = 1, .num_kv_heads = 1, .head_dim = 2})),
          pages_{page_.data()},
          rows_(static_cast<std::size_t>(num_rows), AttentionRow{.position = 0, .in_pages = 1}),
          sequence_{pages_, {}} {
        device.begin_pass({.sequences = {&sequence_, 1}, .rows = rows_, .slots = {}, .num_prompt_rows = num_rows});
    }

  private:
    Buffer page_;
    std::vector<std::byte*> pages_;
    std::vector<AttentionRow> rows_;
    AttentionSequence sequence_;
};

class Bench {
  public:
    Bench(GpuArithmetic arithmetic, GpuLaunches launches, bool quick)
        : device_(make_gpu_device(arithmetic, 0, launches)),
          quick_(quick),
          min_rows_(arithmetic == GpuArithmetic::library ? 512 : 1) {  // fewer rows use our own kernels
        constexpr std::size_t num_bytes = std::size_t{1} << 30;
        const Buffer from(*device_, num_bytes), to(*device_, num_bytes);
        fill(from);
        copy_bandwidth_ =
            2.0 * num_bytes / seconds_of(4, [&] { device_->copy_within(to.data(), from.data(), num_bytes); });
        peak_ = device_->measure_peak_flops();
        std::printf("%s, %s: a copy moves %.0f GB/s, tensor cores on registers alone %.1f TFLOP/s\n",
                    std::string(device_->name()).c_str(), device_->place().c_str(), copy_bandwidth_ * 1e-9,
                    peak_ * 1e-12);
    }

    /// Whether bytes come back as they went, and what a transfer, a kernel and an empty wait cost.
    void smoke() {
        constexpr std::size_t num_bytes = std::size_t{256} << 20;
        const Buffer first(*device_, num_bytes), second(*device_, num_bytes);
        const Staging sent(*device_, num_bytes), received(*device_, num_bytes);
        const std::vector<std::uint16_t> numbers = random_bf16(num_bytes / 2);
        std::memcpy(sent.data(), numbers.data(), num_bytes);
        device_->upload(first.data(), sent.data(), num_bytes);
        device_->copy_within(second.data(), first.data(), num_bytes);
        device_->download(received.data(), second.data(), num_bytes);
        if (std::memcmp(received.data(), sent.data(), num_bytes) != 0)
            throw std::runtime_error("256 MiB came back from the GPU changed");
        constexpr auto bytes = static_cast<double>(num_bytes);
        line("256 MiB to the GPU",
             {seconds_of(1, [&] { device_->upload(first.data(), sent.data(), num_bytes); }), bytes, 0.0});
        line("256 MiB from the GPU",
             {seconds_of(1, [&] { device_->download(received.data(), first.data(), num_bytes); }), bytes, 0.0});
        const auto add = [&] { device_->add(first.as<float>(), second.as<float>(), 64); };
        line("a small kernel among a hundred", {seconds_of(100, add), 768.0, 0.0});
        line("a small kernel, waited for", {seconds_of(1,
                                                       [&] {
                                                           add();
                                                           device_->finish();
                                                       }),
                                            768.0, 0.0});
    }

    /// Collectives of a group of one rank: what NCCL costs before any link.
    void collectives() {
        DeviceLinks* const links = device_->links();
        if (links == nullptr) throw std::runtime_error("built without NCCL, whose header was not found");
        const std::unique_ptr<DeviceLink> link = links->join(links->new_id(), 0, 1);
        for (const std::int64_t count : {4096, 1 << 18, 1 << 24}) {
            const Buffer data = random_floats(count), all(*device_, static_cast<std::size_t>(count) * 4);
            const std::string what = std::to_string(count * 4 / 1024) + " KiB, one rank";
            const auto bytes = static_cast<double>(2 * count * 4);
            line("all-gather of " + what,
                 {seconds_of(20, [&] { link->all_gather(data.as<float>(), all.as<float>(), count); }), bytes, 0.0});
            line("all-reduce of " + what,
                 {seconds_of(20, [&] { link->all_reduce(data.as<float>(), count); }), bytes, 0.0});
            link->finish();
        }
    }

    void products(DType dtype, const char* name) {
        const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
            {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
        for (const std::int64_t num_rows : {1, 8, 64, 512, 2048}) {
            if (num_rows < min_rows_) continue;
            double layer_seconds = 0.0, layer_bytes = 0.0, layer_operations = 0.0;
            for (const auto& [outputs, inputs] : shapes) {
                const Timed timed = product(dtype, outputs, inputs, num_rows);
                layer_seconds += timed.seconds;
                layer_bytes += timed.bytes;
                layer_operations += timed.operations;
                line(std::string(name) + " " + std::to_string(outputs) + "x" + std::to_string(inputs) + ", " +
                         std::to_string(num_rows) + " rows",
                     timed);
            }
            line(std::string(name) + " products of 32 layers, " + std::to_string(num_rows) + " rows",
                 {32 * layer_seconds, 32 * layer_bytes, layer_operations * 32});
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

    /// Over the link to the host: attention over pages in host memory, and the KV export of a checkpoint.
    void host_memory() {
        for (const std::int64_t nodes : {1, 64})
            line("attention bf16, 20000 tokens in host memory, " + std::to_string(nodes) + " nodes",
                 attention_of(DType::bf16, 20'000, nodes, true));
        const KvLayout layout{.dtype = DType::bf16, .num_layers = 8, .num_kv_heads = kv_heads, .head_dim = head_dim};
        const KvBox box{.num_layers = 2, .num_heads = kv_heads, .first = 10, .count = 2000};
        const std::size_t page_bytes = device_->kv_page_bytes(layout), head_bytes = box.bytes(layout) / (2 * kv_heads);
        const Buffer memory(*device_, 32 * page_bytes);
        std::vector<std::byte*> pages;
        for (std::size_t i = 0; i < 32; ++i) pages.push_back(memory.data() + i * page_bytes);
        std::vector<std::byte> there(box.bytes(layout));
        const auto bytes = static_cast<double>(there.size());
        line(
            "export of 2000 keys, 2 layers",
            {seconds_of(4, [&] { device_->kv_export_box(layout, pages, box, there.data(), head_bytes); }), bytes, 0.0});
        line(
            "import of 2000 keys, 2 layers",
            {seconds_of(4, [&] { device_->kv_import_box(layout, pages, box, there.data(), head_bytes); }), bytes, 0.0});
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
            line("gate_mul 14336, " + std::to_string(n) + " rows",
                 {seconds_of(
                      100,
                      [&] { device_->gate_mul(Gate::silu, x.as<float>(), n, 14336, DType::bf16, out.data(), 14336); }),
                  count * 14336 * 10, 0.0});
            line("add 4096, " + std::to_string(n) + " rows",
                 {seconds_of(100, [&] { device_->add(out.as<float>(), x.as<float>(), n * 4096); }), count * 4096 * 12,
                  0.0});
        }
    }

    /// Choosing tokens from rows of logits with a few likely tokens and many unlikely ones.
    void choices() {
        constexpr std::int64_t vocab = 128256, max_rows = 64;
        std::vector<float> values(static_cast<std::size_t>(vocab * max_rows));
        std::uint32_t state = 1;
        for (float& value : values) {
            value = 0.0F;
            for (int i = 0; i < 6; ++i) value += static_cast<float>((state = state * 1664525U + 1013904223U) >> 8);
            value *= 4.0F * 0x1p-24F;  // roughly normal, spread 2.8
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
            for (const std::int64_t num_rows : {std::int64_t{1}, max_rows}) {
                std::vector<Choice> rows(static_cast<std::size_t>(num_rows), kind);
                for (std::int64_t r = 0; r < num_rows; ++r) rows[static_cast<std::size_t>(r)].row = r;
                std::vector<std::int32_t> tokens(rows.size());
                const double seconds = seconds_of(
                    20, [&] { device_->token_chooser()->choose(logits.as<float>(), vocab, vocab, rows, tokens); });
                const auto left = std::count(tokens.begin(), tokens.end(), -1);
                line(std::string("choose, ") + name + ", " + std::to_string(num_rows) + " rows" +
                         (left > 0 ? ", " + std::to_string(left) + " left to the host" : ""),
                     {seconds, static_cast<double>(num_rows * vocab * 4), 0.0});
            }
        }
        draws(logits.as<float>(), vocab);
    }

    /// Drawing levels of draft trees, compared with the path without `draw`: downloading the rows.
    void draws(float* logits, std::int64_t vocab) {
        constexpr std::int64_t count = 4, num_rows = 12;
        std::vector<Choice> rows(num_rows);
        for (std::int64_t r = 0; r < num_rows; ++r) rows[static_cast<std::size_t>(r)].row = r;
        std::vector<Drawn> drawn(num_rows * (1 + count));
        const auto bytes = static_cast<double>(num_rows * vocab * 4);
        const std::string what = std::to_string(num_rows) + " rows";
        line("draw 4 a row, " + what,
             {seconds_of(20, [&] { device_->token_chooser()->draw(logits, vocab, vocab, rows, count, drawn); }), bytes,
              0.0});
        const Staging here(*device_, static_cast<std::size_t>(num_rows * vocab * 4));
        line(
            "rows to the host, " + what,
            {seconds_of(
                 20,
                 [&] { device_->download(here.data(), reinterpret_cast<const std::byte*>(logits), here.num_bytes()); }),
             bytes, 0.0});
        decisions(logits, vocab);
    }

    /// Deciding a tree's nodes by a sampling rule: 12 with drafts, and 12 leaves.
    void decisions(float* logits, std::int64_t vocab) {
        constexpr std::int64_t count = 3, num_drafted = 12, num_nodes = 24;
        std::vector<Buffer> kept;
        std::vector<Choice> rows(num_drafted);
        for (std::int64_t r = 0; r < num_drafted; ++r) {
            kept.emplace_back(*device_, KeptDistribution::num_bytes(vocab));
            rows[static_cast<std::size_t>(r)] = {.row = num_nodes + r, .keep = kept.back().data()};
        }
        std::vector<Drawn> drawn(num_drafted * (1 + count));
        const auto bytes = static_cast<double>(num_drafted * vocab * 4);
        line("draw 3 a row and keep it, 12 rows",
             {seconds_of(20, [&] { device_->token_chooser()->draw(logits, vocab, vocab, rows, count, drawn); }),
              2 * bytes, 0.0});
        std::vector<std::vector<DraftTrial>> trials(num_nodes);
        std::vector<NodeTrials> nodes;
        for (std::size_t n = 0; n < num_nodes; ++n) {
            for (std::size_t i = 1; n < num_drafted && i <= count; ++i)
                trials[n].push_back({drawn[n * (1 + count) + i].token, kept[n].data(), 0.99});
            nodes.push_back({.choice = {.row = static_cast<std::int64_t>(n)}, .trials = trials[n], .number = 0.5});
        }
        std::vector<Decided> decided(num_nodes);
        for (const TrialRule rule : {TrialRule::recursive, TrialRule::k_seq}) {
            const auto decide = [&] { device_->token_chooser()->decide(logits, vocab, vocab, rule, nodes, decided); };
            line(std::string("decide 24 nodes, 12 of 3 drafts, ") + (rule == TrialRule::k_seq ? "k-seq" : "recursive"),
                 {seconds_of(20, decide), 2 * bytes, 0.0});
        }
    }

  private:
    friend class LayerBench;
    struct Timed {
        double seconds, bytes, operations;
    };

    /// Median seconds per call of `calls` consecutive calls of `run`.
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

    /// Fills memory with small bf16 numbers, whatever its type: on zeros a GPU runs faster than on real data.
    void fill(const Buffer& memory) {
        const std::vector<std::uint16_t> piece = random_bf16(8 << 20);
        const std::size_t first = std::min(piece.size() * 2, memory.num_bytes());
        device_->upload(memory.data(), piece.data(), first);
        for (std::size_t at = first; at < memory.num_bytes(); at += first)
            device_->copy_within(memory.data() + at, memory.data(), std::min(first, memory.num_bytes() - at));
    }

    /// Enough copies of a random matrix to exceed the L2 cache. `gated`: for gated_matmul.
    std::vector<Matrix> matrices_of(DType dtype, std::int64_t outputs, std::int64_t inputs, bool gated = false) {
        const std::vector<std::uint16_t> values = random_bf16(outputs * inputs);
        const WeightRows rows{
            reinterpret_cast<const std::byte*>(values.data()), DType::bf16, outputs, inputs, 0, inputs};
        std::vector<Matrix> matrices;
        matrices.push_back(gated ? device_->pack_gated(dtype, {&rows, 1}, 8, inputs / 8)
                                 : device_->pack(dtype, {&rows, 1}, 8, inputs / 8));
        const std::size_t bytes = matrices.front().data.num_bytes();
        while (static_cast<double>(matrices.size() * bytes) < 300e6) {
            const Matrix& first = matrices.front();
            Buffer data(*device_, bytes);
            device_->copy_within(data.data(), first.data.data(), bytes);
            matrices.push_back({.dtype = first.dtype,
                                .num_outputs = first.num_outputs,
                                .num_inputs = first.num_inputs,
                                .num_slices = first.num_slices,
                                .slice_length = first.slice_length,
                                .gated = gated,
                                .data = std::move(data)});
        }
        return matrices;
    }
    Buffer random_inputs(std::int64_t count) {
        const std::vector<std::uint16_t> values = random_bf16(count);
        Buffer buffer(*device_, values.size() * 2);
        device_->upload(buffer.data(), values.data(), buffer.num_bytes());
        return buffer;
    }

    Timed product(DType dtype, std::int64_t outputs, std::int64_t inputs, std::int64_t num_rows) {
        const std::vector<Matrix> matrices = matrices_of(dtype, outputs, inputs);
        const Buffer x = random_inputs(num_rows * inputs);
        const Buffer y(*device_, static_cast<std::size_t>(num_rows * outputs) * 4);
        const Prompt prompt(*device_, num_rows);
        std::size_t next = 0;
        const double seconds = seconds_of(static_cast<int>(2 * matrices.size()), [&] {
            device_->layer_matmul(matrices[next++ % matrices.size()], x.data(), inputs, num_rows, y.as<float>());
        });
        return {seconds, static_cast<double>(matrices.front().data.num_bytes()),
                2.0 * static_cast<double>(outputs * inputs * num_rows)};
    }

    Buffer memory_of(std::size_t num_bytes, bool far) {
        return far ? Buffer::in_host_memory(*device_, num_bytes) : Buffer(*device_, num_bytes);
    }
    /// A chain of `nodes` scratch slots after a context in pages.
    struct Chain {
        Chain(Bench& bench, const KvLayout& layout, std::int64_t context, std::int64_t nodes, bool far = false)
            : memory(bench.memory_of(
                  static_cast<std::size_t>((context + 63) / 64 + 1) * bench.device_->kv_page_bytes(layout), far)),
              path(static_cast<std::size_t>(nodes)) {
            bench.fill(memory);
            const std::size_t page_bytes = bench.device_->kv_page_bytes(layout);
            for (std::size_t at = 0; at < memory.num_bytes(); at += page_bytes) pages.push_back(memory.data() + at);
            scratch.push_back(pages.back());
            pages.pop_back();
            sequence = {pages, scratch};
            std::iota(path.begin(), path.end(), 0);
            for (std::int64_t n = 0; n < nodes; ++n) {
                rows.push_back({0, context + n, context, path.data()});
                slots.push_back({scratch[0], static_cast<std::int32_t>(n)});
            }
        }
        Chain(const Chain&) = delete;
        Chain& operator=(const Chain&) = delete;

        Buffer memory;
        std::vector<std::byte*> pages, scratch;
        AttentionSequence sequence;
        std::vector<std::int32_t> path;
        std::vector<AttentionRow> rows;
        std::vector<KvSlot> slots;
    };

    Timed attention_of(DType dtype, std::int64_t context, std::int64_t nodes, bool far = false) {
        constexpr std::int64_t layers = 4;  // used one after another, so that they exceed the L2 cache
        const KvLayout layout{.dtype = dtype, .num_layers = layers, .num_kv_heads = kv_heads, .head_dim = head_dim};
        const Chain chain(*this, layout, context, nodes, far);
        device_->begin_pass({.sequences = {&chain.sequence, 1}, .rows = chain.rows, .slots = {}});
        const Buffer q = random_floats(nodes * q_heads * head_dim);
        const Buffer out(*device_, static_cast<std::size_t>(nodes * q_heads * head_dim) * 2);
        std::int64_t layer = 0;
        const double seconds = seconds_of(2 * layers, [&] {
            device_->attention(layout, layer++ % layers, q.data(), q_heads, nullptr, DType::bf16, out.data(),
                               q_heads * head_dim);
        });
        const double bytes = static_cast<double>(context) * static_cast<double>(layout.position_bytes()) / layers;
        return {seconds, bytes, 4.0 * static_cast<double>(context * nodes * q_heads * head_dim)};
    }

    void line(const std::string& what, const Timed& timed) const {
        std::printf("%-44s %10.1f us %8.0f GB/s %5.2f of a copy %8.1f TFLOP/s %5.2f of the peak\n", what.c_str(),
                    timed.seconds * 1e6, timed.bytes / timed.seconds * 1e-9,
                    timed.bytes / timed.seconds / copy_bandwidth_, timed.operations / timed.seconds * 1e-12,
                    timed.operations / timed.seconds / peak_);
        std::fflush(stdout);
    }

    std::unique_ptr<Device> device_;
    Buffer small_{*device_, 64};
    bool quick_;
    std::int64_t min_rows_;  ///< of the matmuls
    double copy_bandwidth_ = 0.0, peak_ = 0.0;
};

}  // namespace longhaul::kernels
