#include "runner/bench/timed_device.hpp"

#include <algorithm>
#include <chrono>

namespace longhaul::runner {

using kernels::AttentionRow;
using kernels::AttentionSequence;
using kernels::DType;
using kernels::KvLayout;
using kernels::KvSlot;
using kernels::Matrix;
using kernels::WeightRows;

void TimedDevice::timed(const std::string& part, double bytes, double flops, const std::function<void()>& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    inner_.finish();
    DevicePart& books = parts_[part];
    books.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++books.calls;
    books.bytes += bytes;
    books.flops += flops;
}

void TimedDevice::upload(std::byte* to, const void* from_host, std::size_t num_bytes) {
    timed("copies", 0, 0, [&] { inner_.upload(to, from_host, num_bytes); });
}

void TimedDevice::download(void* to_host, const std::byte* from, std::size_t num_bytes) {
    timed("copies", 0, 0, [&] { inner_.download(to_host, from, num_bytes); });
}

void TimedDevice::copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) {
    timed("copies", 0, 0, [&] { inner_.copy_within(to, from, num_bytes); });
}

Matrix TimedDevice::pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) {
    return inner_.pack(dtype, parts, num_slices, slice_length);
}

Matrix TimedDevice::pack_gated(DType dtype, std::span<const WeightRows> parts, int num_slices,
                               std::int64_t slice_length) {
    return inner_.pack_gated(dtype, parts, num_slices, slice_length);
}

void TimedDevice::embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    timed("embedding", 0, 0, [&] { inner_.embed(table, rows, dim, out); });
}

void TimedDevice::matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) {
    timed_matmul(w, num_rows, [&] { inner_.matmul(w, x, x_stride, num_rows, y); });
}

void TimedDevice::matmuls(std::span<const kernels::MatmulCall> calls, std::int64_t x_stride) {
    if (calls.empty()) return;
    const Matrix& w = *calls.front().w;
    const std::string part = std::to_string(w.num_outputs) + " x " + std::to_string(w.num_inputs);
    double bytes = 0, rows = 0;
    for (const kernels::MatmulCall& call : calls) {
        bytes += static_cast<double>(call.w->data.num_bytes());
        rows += static_cast<double>(call.num_rows);
    }
    timed("matmuls of experts, " + part, bytes, 2.0 * rows * static_cast<double>(w.num_outputs * w.num_inputs),
          [&] { inner_.matmuls(calls, x_stride); });
}

void TimedDevice::layer_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                               float* y) {
    timed_matmul(w, num_rows, [&] { inner_.layer_matmul(w, x, x_stride, num_rows, y); });
}

void TimedDevice::timed_matmul(const Matrix& w, std::int64_t num_rows, const std::function<void()>& run) {
    const std::string part = "matmul " + std::to_string(w.num_outputs) + " x " + std::to_string(w.num_inputs);
    timed(part, static_cast<double>(w.data.num_bytes()),
          2.0 * static_cast<double>(w.num_outputs * w.num_inputs * num_rows), run);
}

void TimedDevice::gated_matmul(const Matrix& w, kernels::Gate gate, const std::byte* x, std::int64_t x_stride,
                               std::int64_t num_rows, float* sums, DType act, std::byte* out, std::int64_t out_stride) {
    timed_matmul(w, num_rows, [&] { inner_.gated_matmul(w, gate, x, x_stride, num_rows, sums, act, out, out_stride); });
}

void TimedDevice::gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    timed("copies", 0, 0, [&] { inner_.gather(x, rows, dim, out); });
}

void TimedDevice::gather_listed(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim,
                                float* out) {
    timed("copies", 0, 0, [&] { inner_.gather_listed(x, rows, num_rows, dim, out); });
}

void TimedDevice::weighted_sums(const float* x, std::span<const kernels::WeightedRow> terms, std::int64_t per_row,
                                std::int64_t dim, float* out) {
    timed("weighted sums", 0, 0, [&] { inner_.weighted_sums(x, terms, per_row, dim, out); });
}

void TimedDevice::add(float* x, const float* y, std::int64_t count) {
    timed("additions", 0, 0, [&] { inner_.add(x, y, count); });
}

void TimedDevice::scale(float* x, float factor, std::int64_t count) {
    timed("additions", 0, 0, [&] { inner_.scale(x, factor, count); });
}

void TimedDevice::soft_cap(float* x, float cap, std::int64_t count) {
    timed("soft cap", 0, 0, [&] { inner_.soft_cap(x, cap, count); });
}

void TimedDevice::add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) {
    timed("additions", 0, 0, [&] { inner_.add_bias(x, bias, num_rows, dim); });
}

void TimedDevice::rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                           DType act, std::byte* out, std::int64_t out_stride) {
    timed("norms", 0, 0, [&] { inner_.rms_norm(x, gain, eps, num_rows, dim, act, out, out_stride); });
}

void TimedDevice::add_rms_norm(float* x, const float* y, const float* gain, float eps, std::int64_t num_rows,
                               std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    timed("norms", 0, 0, [&] { inner_.add_rms_norm(x, y, gain, eps, num_rows, dim, act, out, out_stride); });
}

void TimedDevice::layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                             std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    timed("norms", 0, 0, [&] { inner_.layer_norm(x, gain, bias, eps, num_rows, dim, act, out, out_stride); });
}

void TimedDevice::activate(kernels::Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                           std::byte* out, std::int64_t out_stride) {
    timed("activation", 0, 0, [&] { inner_.activate(f, x, num_rows, width, act, out, out_stride); });
}

void TimedDevice::round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                             std::int64_t out_stride) {
    timed("copies", 0, 0, [&] { inner_.round_rows(x, num_rows, width, act, out, out_stride); });
}

void TimedDevice::gate_mul(kernels::Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                           std::byte* out, std::int64_t out_stride) {
    timed("gate", 0, 0, [&] { inner_.gate_mul(gate, x, num_rows, width, act, out, out_stride); });
}

void TimedDevice::output_gate(kernels::OutputGate f, const float* gate, std::int64_t gate_stride, const float* x,
                              std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                              std::int64_t out_stride) {
    timed("gate", 0, 0, [&] { inner_.output_gate(f, gate, gate_stride, x, num_rows, width, act, out, out_stride); });
}

void TimedDevice::mix(const KvLayout& layout, std::int64_t layer, const kernels::DeltaWeights& weights,
                      const float* inputs, std::int64_t inputs_stride, const float* gates, float* out) {
    constexpr double read_and_written = 2;
    const kernels::DeltaShape& shape = layout.delta;
    timed("linear attention",
          read_and_written * static_cast<double>(shape.num_key_heads * shape.head_floats()) * sizeof(float), 0,
          [&] { inner_.delta_rule()->mix(layout, layer, weights, inputs, inputs_stride, gates, out); });
}

std::size_t TimedDevice::kv_page_bytes(const KvLayout& layout) const {
    return inner_.kv_page_bytes(layout);
}

std::int64_t TimedDevice::kv_pages_together(const KvLayout& layout) const {
    return inner_.kv_pages_together(layout);
}

void TimedDevice::begin_pass(const kernels::PassRows& pass) {
    pass_ = pass;
    inner_.begin_pass(pass);
}

void TimedDevice::head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                            const kernels::HeadGains& gains, float eps) {
    timed("norms", 0, 0, [&] { inner_.head_norm(layout, qkv, num_rows, q_heads, gains, eps); });
}

void TimedDevice::head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                               const kernels::WholeHeads& of, float* squares) {
    timed("norms", 0, 0, [&] { inner_.head_squares(layout, qkv, num_rows, q_heads, of, squares); });
}

void TimedDevice::whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                             const kernels::WholeHeads& of, const float* squares, const float* q_gain,
                             const float* k_gain, float eps) {
    timed("norms", 0, 0, [&] { inner_.whole_norm(layout, qkv, num_rows, q_heads, of, squares, q_gain, k_gain, eps); });
}

void TimedDevice::rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                             std::byte* q_out) {
    timed("rotation and store", 0, 0, [&] { inner_.rope_store(layout, layer, qkv, q_heads, q_out); });
}

void TimedDevice::qkv_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                             float* qkv, const KvLayout& layout, std::int64_t layer, std::int64_t q_heads,
                             std::byte* q_out) {
    timed_matmul(w, num_rows, [&] { inner_.qkv_matmul(w, x, x_stride, num_rows, qkv, layout, layer, q_heads, q_out); });
}

void TimedDevice::attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                            const float* sinks, DType act, std::byte* out, std::int64_t out_stride) {
    std::vector<std::int64_t> read(pass_.sequences.size());  // positions that each sequence's rows read from pages
    double seen = 0;
    for (const AttentionRow& row : pass_.rows) {
        std::int64_t& positions = read[row.sequence];
        positions = std::max(positions, row.in_pages);
        seen += static_cast<double>(row.position + 1);
    }
    double bytes = 0;
    for (const std::int64_t positions : read) {
        const auto pages = (positions + KvLayout::page_tokens - 1) / KvLayout::page_tokens;
        bytes += static_cast<double>(pages) * static_cast<double>(inner_.kv_page_bytes(layout)) /
                 static_cast<double>(layout.num_layers);
    }
    timed("attention", bytes, 4.0 * seen * static_cast<double>(q_heads * layout.head_dim),
          [&] { inner_.attention(layout, layer, q, q_heads, sinks, act, out, out_stride); });
}

void TimedDevice::rank_positions(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                                 const kernels::PositionRange& range, std::int32_t* positions) {
    const auto keys = static_cast<double>((range.end - range.first) * layout.num_kv_heads);
    timed("rank of positions", keys * static_cast<double>(layout.token_bytes()), 0,
          [&] { inner_.rank_positions(layout, layer, q, q_heads, range, positions); });
}

void TimedDevice::gather_positions(const KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                                   const std::int32_t* positions, std::int64_t count, std::span<std::byte* const> to,
                                   std::int64_t first_slot) {
    const auto pairs = static_cast<double>(count * layout.num_kv_heads);
    timed("copies of ranked positions", 4 * pairs * static_cast<double>(layout.token_bytes()), 0,
          [&] { inner_.gather_positions(layout, layer, from, positions, count, to, first_slot); });
}

void TimedDevice::kv_move(const KvLayout& layout, KvSlot from, KvSlot to) {
    timed("moves of keys and values", 0, 0, [&] { inner_.kv_move(layout, from, to); });
}

void TimedDevice::kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                            bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const {
    inner_.kv_export(layout, page, layer, kv_head, values, first, count, to_host);
}

void TimedDevice::kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                            bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) {
    inner_.kv_import(layout, page, layer, kv_head, values, first, count, from_host);
}

void TimedDevice::Chooser::choose(float* logits, std::int64_t stride, std::int64_t vocab_size,
                                  std::span<const kernels::Choice> choices, std::span<std::int32_t> tokens) {
    device_.timed("choosing tokens", 0, 0,
                  [&] { device_.inner_.token_chooser()->choose(logits, stride, vocab_size, choices, tokens); });
}

void TimedDevice::Chooser::draw(float* logits, std::int64_t stride, std::int64_t vocab_size,
                                std::span<const kernels::Choice> choices, std::int64_t count,
                                std::span<kernels::Drawn> drawn) {
    device_.timed("drawing tokens", 0, 0,
                  [&] { device_.inner_.token_chooser()->draw(logits, stride, vocab_size, choices, count, drawn); });
}

void TimedDevice::Chooser::decide(float* logits, std::int64_t stride, std::int64_t vocab_size, kernels::TrialRule rule,
                                  std::span<const kernels::NodeTrials> nodes, std::span<kernels::Decided> decided) {
    device_.timed("deciding nodes", 0, 0,
                  [&] { device_.inner_.token_chooser()->decide(logits, stride, vocab_size, rule, nodes, decided); });
}

}  // namespace longhaul::runner
