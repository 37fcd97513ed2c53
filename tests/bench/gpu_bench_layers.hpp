// The layers of a model as the engine runs them (engine/model/decoder_layers.cpp), for gpu_bench.cpp: all operations of
// a pass together, and each by itself. What the pass takes beyond the sum of its operations are gaps between kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/bench/gpu_bench.hpp"

namespace longhaul::kernels {

/// The layers of a model with bf16 weights and activations.
struct Layers {
    const char* name;
    std::int64_t count, hidden, q_heads, kv_heads, head_dim, feed_forward, vocab;
    [[nodiscard]] std::int64_t heads_width() const { return q_heads * head_dim; }
    [[nodiscard]] std::int64_t qkv_width() const { return (q_heads + 2 * kv_heads) * head_dim; }
    [[nodiscard]] KvLayout kv() const {
        return {.dtype = DType::bf16, .num_layers = count, .num_kv_heads = kv_heads, .head_dim = head_dim};
    }
};
inline constexpr Layers layers_8b{"8b", 32, 4096, q_heads, kv_heads, head_dim, 14336, 128256};
inline constexpr Layers layers_1b{"1b", 16, 2048, 32, 8, 64, 8192, 128256};

/// Rows behind `context` positions: the next ones of a prompt, or a tree in which node i is below node (i - 1) / 2.
struct LayerRows {
    std::int64_t context, count;
    bool of_prompt;
};

class LayerBench {
  public:
    LayerBench(Bench& bench, const Layers& layers, std::int64_t max_rows)
        : bench_(bench),
          device_(*bench.device_),
          l_(layers),
          qkv_(bench.matrices_of(DType::bf16, l_.qkv_width(), l_.hidden)),
          output_(bench.matrices_of(DType::bf16, l_.hidden, l_.heads_width())),
          gate_up_(bench.matrices_of(DType::bf16, 2 * l_.feed_forward, l_.hidden, true)),
          down_(bench.matrices_of(DType::bf16, l_.hidden, l_.feed_forward)),
          gain_(bench.random_floats(l_.hidden)),
          x_(bench.random_floats(max_rows * l_.hidden)),
          normed_(bench.random_inputs(max_rows * l_.hidden)),
          wide_(bench.random_floats(max_rows * 2 * l_.feed_forward)),
          queries_(bench.random_inputs(max_rows * l_.heads_width())),
          attended_(bench.random_inputs(max_rows * l_.feed_forward)),
          sum_(bench.random_floats(max_rows * l_.hidden)) {}

    /// All layers of a pass, from its start. `how`: the label for the way they are launched.
    void pass(const LayerRows& rows, const std::string& how) {
        const Pass pass(*this, rows);
        const double seconds = bench_.seconds_of(1, [&] {
            pass.begin();
            run_layers(rows);
        });
        bench_.line("layers of " + std::string(l_.name) + ", " + std::to_string(rows.count) + " rows, " + how,
                    {seconds, static_cast<double>(l_.count) * weight_bytes(), 0.0});
    }

    /// Each operation of a layer, and what they are together.
    void profile(const LayerRows& rows) {
        const Pass pass(*this, rows);
        pass.begin();
        const std::string what = (rows.of_prompt ? "prompt " : "tree ") + std::to_string(rows.count) + " rows, ";
        const std::string all = std::to_string(l_.count) + " layers";
        Bench::Timed sum{};
        for (const Part& part : parts(rows)) {
            std::int64_t layer = 0;
            const double seconds = bench_.seconds_of(static_cast<int>(l_.count), [&] { part.run(layer++ % l_.count); });
            bench_.line(what + part.name, {seconds, part.bytes, part.operations});
            sum.seconds += seconds * static_cast<double>(l_.count);
            sum.bytes += part.bytes * static_cast<double>(l_.count);
            sum.operations += part.operations * static_cast<double>(l_.count);
        }
        bench_.line(what + "sum of " + all, sum);
        sum.seconds = bench_.seconds_of(1, [&] { run_layers(rows); });
        bench_.line(what + all, sum);
        sum.seconds = bench_.seconds_of(1, [&] {
            pass.begin();
            run_layers(rows);
        });
        bench_.line(what + "start and " + all, sum);
    }

    /// The last operations of a pass: the norm and the matrix of all tokens.
    void head(std::int64_t num_rows) {
        const std::vector<Matrix> head = bench_.matrices_of(DType::bf16, l_.vocab, l_.hidden);
        const Buffer logits(device_, static_cast<std::size_t>(num_rows * l_.vocab) * 4);
        const double seconds = bench_.seconds_of(4, [&] {
            device_.rms_norm(x_.as<float>(), gain_.as<float>(), 1e-5F, num_rows, l_.hidden, DType::bf16, normed_.data(),
                             l_.hidden);
            device_.matmul(head.front(), normed_.data(), l_.hidden, num_rows, logits.as<float>());
        });
        bench_.line("tree " + std::to_string(num_rows) + " rows, head",
                    {seconds, matmul_bytes(head, num_rows, 4 * l_.vocab), matmul_operations(head, num_rows)});
    }

  private:
    /// An operation of a layer; the bytes that it must move, activations included.
    struct Part {
        const char* name;
        double bytes, operations;
        std::function<void(std::int64_t layer)> run;
    };

    /// Keys and values of all layers, and the rows that read and write them.
    class Pass {
      public:
        Pass(LayerBench& of, const LayerRows& rows)
            : device_(of.device_),
              rows_of_(rows),
              head_dim_(of.l_.head_dim),
              memory_(device_, static_cast<std::size_t>((rows.context + rows.count) / page + 2 + rows.count / page) *
                                   device_.kv_page_bytes(of.l_.kv())),
              paths_(static_cast<std::size_t>(rows.count)),
              angles_(static_cast<std::size_t>(rows.count * head_dim_ / 2), 0.5F) {
            of.bench_.fill(memory_);
            const std::size_t page_bytes = device_.kv_page_bytes(of.l_.kv());
            for (std::size_t at = 0; at < memory_.num_bytes(); at += page_bytes) {
                const bool is_scratch = std::ssize(pages_) > (rows.context + (rows.of_prompt ? rows.count : 0)) / page;
                (is_scratch ? scratch_ : pages_).push_back(memory_.data() + at);
            }
            sequence_ = {pages_, scratch_};
            for (std::int64_t i = 0; i < rows.count; ++i) add(i);
        }
        Pass(const Pass&) = delete;
        Pass& operator=(const Pass&) = delete;

        void begin() const {
            device_.begin_pass({.sequences = {&sequence_, 1},
                                .rows = rows_,
                                .slots = slots_,
                                .angles = {&rotation_, 1},
                                .num_angles = head_dim_ / 2,
                                .num_prompt_rows = rows_of_.of_prompt ? rows_of_.count : 0});
        }

      private:
        static constexpr std::int64_t page = KvLayout::page_tokens;

        /// The root of a tree is in the pages, the other nodes are in scratch slots.
        void add(std::int64_t i) {
            if (rows_of_.of_prompt || i == 0) {
                const std::int64_t position = rows_of_.context + i;
                rows_.push_back({0, position, position + 1, nullptr});
                slots_.push_back(slot(pages_, position));
                return;
            }
            std::vector<std::int32_t>& path = paths_[static_cast<std::size_t>(i)];
            path = paths_[static_cast<std::size_t>((i - 1) / 2)];
            path.push_back(static_cast<std::int32_t>(i - 1));
            rows_.push_back({0, rows_of_.context + std::ssize(path), rows_of_.context + 1, path.data()});
            slots_.push_back(slot(scratch_, i - 1));
        }
        static KvSlot slot(const std::vector<std::byte*>& pages, std::int64_t index) {
            return {pages[static_cast<std::size_t>(index / page)], static_cast<std::int32_t>(index % page)};
        }

        Device& device_;
        LayerRows rows_of_;
        std::int64_t head_dim_;
        Buffer memory_;
        std::vector<std::byte*> pages_, scratch_;
        AttentionSequence sequence_;
        std::vector<std::vector<std::int32_t>> paths_;
        std::vector<float> angles_;
        PassAngles rotation_{.cos = angles_.data(), .sin = angles_.data()};
        std::vector<AttentionRow> rows_;
        std::vector<KvSlot> slots_;
    };

    static const Matrix& of(const std::vector<Matrix>& all, std::int64_t layer) {
        return all[static_cast<std::size_t>(layer) % all.size()];
    }
    [[nodiscard]] double weight_bytes() const {
        double bytes = 0.0;
        for (const auto* matrices : {&qkv_, &output_, &gate_up_, &down_})
            bytes += static_cast<double>(matrices->front().data.num_bytes());
        return bytes;
    }
    static double matmul_bytes(const std::vector<Matrix>& matrices, std::int64_t rows, std::int64_t row_bytes) {
        const Matrix& w = matrices.front();
        return static_cast<double>(w.data.num_bytes()) + static_cast<double>(rows * (w.num_inputs * 2 + row_bytes));
    }
    static double matmul_operations(const std::vector<Matrix>& matrices, std::int64_t rows) {
        const Matrix& w = matrices.front();
        return 2.0 * static_cast<double>(rows * w.num_outputs * w.num_inputs);
    }
    /// The positions that the rows see, added up; a node of a tree sees the context and, roughly, its depth.
    static double seen(const LayerRows& rows) {
        const auto count = static_cast<double>(rows.count), context = static_cast<double>(rows.context);
        return count * (context + (rows.of_prompt ? count / 2 : 5));
    }

    /// The operations of a layer, in order.
    std::vector<Part> parts(const LayerRows& rows) {
        const std::int64_t n = rows.count;
        const auto bytes = [n](std::int64_t of_row) { return static_cast<double>(n * of_row); };
        const std::int64_t kv_bytes = l_.kv().position_bytes() / l_.count;
        const double norm_bytes = bytes(l_.hidden * 14), heads = static_cast<double>(l_.heads_width());
        return {{"norm before attention", norm_bytes, 0.0, [this, n](std::int64_t) { add_norm(n); }},
                {"qkv matmul", matmul_bytes(qkv_, n, l_.qkv_width() * 4), matmul_operations(qkv_, n),
                 [this, n](std::int64_t layer) {
                     device_.layer_matmul(of(qkv_, layer), normed_.data(), l_.hidden, n, wide_.as<float>());
                 }},
                {"rope and store", bytes(l_.qkv_width() * 4 + l_.heads_width() * 2 + kv_bytes), 0.0,
                 [this](std::int64_t layer) {
                     device_.rope_store(l_.kv(), layer, wide_.as<float>(), l_.q_heads, queries_.data());
                 }},
                {"attention", static_cast<double>((rows.context + n) * kv_bytes) + bytes(l_.heads_width() * 4),
                 4.0 * heads * seen(rows),
                 [this](std::int64_t layer) {
                     device_.attention(l_.kv(), layer, queries_.data(), l_.q_heads, nullptr, DType::bf16,
                                       attended_.data(), l_.heads_width());
                 }},
                {"output matmul", matmul_bytes(output_, n, l_.hidden * 4), matmul_operations(output_, n),
                 [this, n](std::int64_t layer) {
                     device_.layer_matmul(of(output_, layer), attended_.data(), l_.heads_width(), n, sum_.as<float>());
                 }},
                {"norm before feed-forward", norm_bytes, 0.0, [this, n](std::int64_t) { add_norm(n); }},
                {"gate, up matmul", matmul_bytes(gate_up_, n, l_.feed_forward * 2), matmul_operations(gate_up_, n),
                 [this, n](std::int64_t layer) {
                     device_.gated_matmul(of(gate_up_, layer), Gate::silu, normed_.data(), l_.hidden, n,
                                          wide_.as<float>(), DType::bf16, attended_.data(), l_.feed_forward);
                 }},
                {"down matmul", matmul_bytes(down_, n, l_.hidden * 4), matmul_operations(down_, n),
                 [this, n](std::int64_t layer) {
                     device_.layer_matmul(of(down_, layer), attended_.data(), l_.feed_forward, n, sum_.as<float>());
                 }}};
    }
    void add_norm(std::int64_t num_rows) {
        device_.add_rms_norm(x_.as<float>(), sum_.as<float>(), gain_.as<float>(), 1e-5F, num_rows, l_.hidden,
                             DType::bf16, normed_.data(), l_.hidden);
    }
    void run_layers(const LayerRows& rows) {
        const std::vector<Part> layer = parts(rows);
        for (std::int64_t index = 0; index < l_.count; ++index)
            for (const Part& part : layer) part.run(index);
    }
    Bench& bench_;
    Device& device_;
    Layers l_;
    std::vector<Matrix> qkv_, output_, gate_up_, down_;
    Buffer gain_, x_, normed_, wide_, queries_, attended_, sum_;
};

}  // namespace longhaul::kernels
