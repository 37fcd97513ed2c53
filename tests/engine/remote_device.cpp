#include "tests/engine/remote_device.hpp"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace longhaul::engine::testing {

using kernels::Buffer;
using kernels::DType;
using kernels::KvLayout;
using kernels::KvSlot;
using kernels::Matrix;
using kernels::WeightedRow;
using Lock = std::lock_guard<std::recursive_mutex>;

RemoteDevice::~RemoteDevice() {
    for (const auto& [address, block] : blocks_) {
        inner_->release(block.inner, block.num_bytes);
        ::munmap(const_cast<std::byte*>(address), block.mapped_bytes);
    }
}

template <typename T>
T* RemoteDevice::inner(T* data) const {
    if (data == nullptr) return nullptr;
    const auto* address = reinterpret_cast<const std::byte*>(data);
    const Lock lock(mutex_);
    auto block = blocks_.upper_bound(address);
    if (block == blocks_.begin()) throw std::logic_error("the device was given an address of the host");
    --block;
    const auto offset = static_cast<std::size_t>(address - block->first);
    if (offset > block->second.num_bytes) throw std::logic_error("the device was given an address of the host");
    return reinterpret_cast<T*>(block->second.inner + offset);
}

Matrix RemoteDevice::inner_matrix(const Matrix& matrix) const {
    return {.dtype = matrix.dtype,
            .num_outputs = matrix.num_outputs,
            .num_inputs = matrix.num_inputs,
            .num_slices = matrix.num_slices,
            .slice_length = matrix.slice_length,
            .gated = matrix.gated,
            .data = Buffer::borrowed(inner(matrix.data.data()), matrix.data.num_bytes())};
}

void RemoteDevice::later(std::function<void()> operation) {
    const Lock lock(mutex_);
    queue_.push_back(std::move(operation));
}

void RemoteDevice::run_queue() const {
    for (const auto& operation : std::exchange(queue_, {})) operation();
}

void RemoteDevice::finish() {
    const Lock lock(mutex_);
    run_queue();
}

std::byte* RemoteDevice::allocate(std::size_t num_bytes) {
    if (allocates) allocates(num_bytes);
    return map_block(inner_->allocate(num_bytes), num_bytes);
}

std::byte* RemoteDevice::allocate_in_host_memory(std::size_t num_bytes) {
    if (host_allocates) host_allocates();
    return map_block(
        inner_->can_use_host_memory() ? inner_->allocate_in_host_memory(num_bytes) : inner_->allocate(num_bytes),
        num_bytes);
}

std::byte* RemoteDevice::map_block(std::byte* inner, std::size_t num_bytes) {
    constexpr std::size_t page = 4096;
    const std::size_t mapped_bytes = (num_bytes + page) / page * page;
    void* address = ::mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    const Lock lock(mutex_);
    blocks_[static_cast<std::byte*>(address)] = {inner, num_bytes, mapped_bytes};
    return static_cast<std::byte*>(address);
}

void RemoteDevice::release(std::byte* data, std::size_t num_bytes) noexcept {
    if (releases) releases(num_bytes);
    const Lock lock(mutex_);
    run_queue();
    const auto block = blocks_.find(data);
    inner_->release(block->second.inner, num_bytes);
    ::munmap(data, block->second.mapped_bytes);
    blocks_.erase(block);
}

void RemoteDevice::upload(std::byte* to, const void* from_host, std::size_t num_bytes) {
    const auto* from = static_cast<const std::byte*>(from_host);
    later([this, to = inner(to), bytes = std::vector<std::byte>(from, from + num_bytes)] {
        inner_->upload(to, bytes.data(), bytes.size());
    });
}

void RemoteDevice::download(void* to_host, const std::byte* from, std::size_t num_bytes) {
    if (downloads) downloads(num_bytes);
    const Lock lock(mutex_);
    run_queue();
    inner_->download(to_host, inner(from), num_bytes);
}

void RemoteDevice::copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) {
    later([=, this, to = inner(to), from = inner(from)] { inner_->copy_within(to, from, num_bytes); });
}

Matrix RemoteDevice::pack(DType dtype, std::span<const kernels::WeightRows> parts, int num_slices,
                          std::int64_t slice_length) {
    return taken(inner_->pack(dtype, parts, num_slices, slice_length));
}

Matrix RemoteDevice::pack_gated(DType dtype, std::span<const kernels::WeightRows> parts, int num_slices,
                                std::int64_t slice_length) {
    return taken(inner_->pack_gated(dtype, parts, num_slices, slice_length));
}

Matrix RemoteDevice::taken(Matrix matrix) {
    std::vector<std::byte> bytes(matrix.data.num_bytes());
    inner_->download(bytes.data(), matrix.data.data(), bytes.size());
    matrix.data = adopt(bytes.data(), bytes.size());
    return matrix;
}

Buffer RemoteDevice::adopt(const std::byte* data, std::size_t num_bytes) {
    Buffer buffer(*this, num_bytes);
    upload(buffer.data(), data, num_bytes);
    return buffer;
}

void RemoteDevice::embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    later([this, table = std::make_shared<Matrix>(inner_matrix(table)),
           rows = std::vector<std::int32_t>(rows.begin(), rows.end()), dim,
           out = inner(out)] { inner_->embed(*table, rows, dim, out); });
}

void RemoteDevice::matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows, float* y) {
    later([=, this, w = std::make_shared<Matrix>(inner_matrix(w)), x = inner(x), y = inner(y)] {
        inner_->matmul(*w, x, x_stride, num_rows, y);
    });
}

void RemoteDevice::layer_matmul(const Matrix& w, const std::byte* x, std::int64_t x_stride, std::int64_t num_rows,
                                float* y) {
    later([=, this, w = std::make_shared<Matrix>(inner_matrix(w)), x = inner(x), y = inner(y)] {
        inner_->layer_matmul(*w, x, x_stride, num_rows, y);
    });
}

void RemoteDevice::gated_matmul(const Matrix& w, kernels::Gate gate, const std::byte* x, std::int64_t x_stride,
                                std::int64_t num_rows, float* sums, DType act, std::byte* out,
                                std::int64_t out_stride) {
    later([=, this, w = std::make_shared<Matrix>(inner_matrix(w)), x = inner(x), sums = inner(sums), out = inner(out)] {
        inner_->gated_matmul(*w, gate, x, x_stride, num_rows, sums, act, out, out_stride);
    });
}

void RemoteDevice::gather(const float* x, std::span<const std::int32_t> rows, std::int64_t dim, float* out) {
    later([this, x = inner(x), rows = std::vector<std::int32_t>(rows.begin(), rows.end()), dim, out = inner(out)] {
        inner_->gather(x, rows, dim, out);
    });
}

void RemoteDevice::gather_listed(const float* x, const std::int32_t* rows, std::int64_t num_rows, std::int64_t dim,
                                 float* out) {
    later([=, this, x = inner(x), rows = inner(rows), out = inner(out)] {
        inner_->gather_listed(x, rows, num_rows, dim, out);
    });
}

void RemoteDevice::weighted_sums(const float* x, std::span<const WeightedRow> terms, std::int64_t per_row,
                                 std::int64_t dim, float* out) {
    later([=, this, x = inner(x), terms = std::vector<WeightedRow>(terms.begin(), terms.end()), out = inner(out)] {
        inner_->weighted_sums(x, terms, per_row, dim, out);
    });
}

void RemoteDevice::add(float* x, const float* y, std::int64_t count) {
    later([this, x = inner(x), y = inner(y), count] { inner_->add(x, y, count); });
}

void RemoteDevice::scale(float* x, float factor, std::int64_t count) {
    later([=, this, x = inner(x)] { inner_->scale(x, factor, count); });
}

void RemoteDevice::soft_cap(float* x, float cap, std::int64_t count) {
    later([=, this, x = inner(x)] { inner_->soft_cap(x, cap, count); });
}

void RemoteDevice::add_bias(float* x, const float* bias, std::int64_t num_rows, std::int64_t dim) {
    later([=, this, x = inner(x), bias = inner(bias)] { inner_->add_bias(x, bias, num_rows, dim); });
}

void RemoteDevice::add_columns(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride,
                               const std::int32_t* columns, std::int64_t num_rows, std::int64_t width) {
    later([=, this, x = inner(x), y = inner(y), columns = inner(columns)] {
        inner_->add_columns(x, x_stride, y, y_stride, columns, num_rows, width);
    });
}

void RemoteDevice::rms_norm(const float* x, const float* gain, float eps, std::int64_t num_rows, std::int64_t dim,
                            DType act, std::byte* out, std::int64_t out_stride) {
    later([=, this, x = inner(x), gain = inner(gain), out = inner(out)] {
        inner_->rms_norm(x, gain, eps, num_rows, dim, act, out, out_stride);
    });
}

void RemoteDevice::layer_norm(const float* x, const float* gain, const float* bias, float eps, std::int64_t num_rows,
                              std::int64_t dim, DType act, std::byte* out, std::int64_t out_stride) {
    later([=, this, x = inner(x), gain = inner(gain), bias = inner(bias), out = inner(out)] {
        inner_->layer_norm(x, gain, bias, eps, num_rows, dim, act, out, out_stride);
    });
}

void RemoteDevice::activate(kernels::Activation f, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                            std::byte* out, std::int64_t out_stride) {
    later([=, this, x = inner(x), out = inner(out)] { inner_->activate(f, x, num_rows, width, act, out, out_stride); });
}

void RemoteDevice::round_rows(const float* x, std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                              std::int64_t out_stride) {
    later([=, this, x = inner(x), out = inner(out)] { inner_->round_rows(x, num_rows, width, act, out, out_stride); });
}

void RemoteDevice::gate_mul(kernels::Gate gate, const float* x, std::int64_t num_rows, std::int64_t width, DType act,
                            std::byte* out, std::int64_t out_stride) {
    later([=, this, x = inner(x), out = inner(out)] {
        inner_->gate_mul(gate, x, num_rows, width, act, out, out_stride);
    });
}

void RemoteDevice::output_gate(kernels::OutputGate f, const float* gate, std::int64_t gate_stride, const float* x,
                               std::int64_t num_rows, std::int64_t width, DType act, std::byte* out,
                               std::int64_t out_stride) {
    later([=, this, gate = inner(gate), x = inner(x), out = inner(out)] {
        inner_->output_gate(f, gate, gate_stride, x, num_rows, width, act, out, out_stride);
    });
}

// The spans of the pass are read when the queue runs, up to the next begin_pass.
void RemoteDevice::begin_pass(const kernels::PassRows& pass) {
    if (pass_begins) pass_begins();
    finish();
    later([this, pass] { begin_inner_pass(pass); });
}

void RemoteDevice::begin_inner_pass(const kernels::PassRows& pass) {
    pass_ = {};
    pass_.groups.resize(static_cast<std::size_t>(pass.num_groups()));
    for (std::int64_t g = 0; g < pass.num_groups(); ++g) {
        kernels::GroupRows rows = pass.group(g);
        InnerPass::Group& moved = pass_.groups[static_cast<std::size_t>(g)];
        const auto moved_pages = [&](std::span<std::byte* const> pages) -> std::span<std::byte* const> {
            return moved.pages.emplace_back(inner_pages(pages));
        };
        moved.pages.reserve(2 * rows.sequences.size());
        for (const kernels::AttentionSequence& sequence : rows.sequences)
            moved.sequences.push_back({moved_pages(sequence.pages), moved_pages(sequence.scratch_pages)});
        for (const KvSlot& slot : rows.slots) moved.slots.push_back({inner(slot.page), slot.slot});
        rows.sequences = moved.sequences;
        rows.slots = moved.slots;
        pass_.rows.push_back(rows);
    }
    kernels::PassRows moved = pass;
    moved.sequences = pass_.rows.front().sequences;
    moved.slots = pass_.rows.front().slots;
    moved.more_groups = std::span<const kernels::GroupRows>(pass_.rows).subspan(1);
    inner_->begin_pass(moved);
}

std::vector<std::byte*> RemoteDevice::inner_pages(std::span<std::byte* const> pages) const {
    std::vector<std::byte*> list;
    for (std::byte* page : pages) list.push_back(inner(page));
    return list;
}

void RemoteDevice::head_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                             const kernels::HeadGains& gains, float eps) {
    const kernels::HeadGains there{inner(gains.q), inner(gains.k), gains.v == nullptr ? nullptr : inner(gains.v)};
    later([=, this, qkv = inner(qkv)] { inner_->head_norm(layout, qkv, num_rows, q_heads, there, eps); });
}

void RemoteDevice::head_squares(const KvLayout& layout, const float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                                const kernels::WholeHeads& of, float* squares) {
    later([=, this, qkv = inner(qkv), squares = inner(squares)] {
        inner_->head_squares(layout, qkv, num_rows, q_heads, of, squares);
    });
}

void RemoteDevice::whole_norm(const KvLayout& layout, float* qkv, std::int64_t num_rows, std::int64_t q_heads,
                              const kernels::WholeHeads& of, const float* squares, const float* q_gain,
                              const float* k_gain, float eps) {
    later([=, this, qkv = inner(qkv), squares = inner(squares), q_gain = inner(q_gain), k_gain = inner(k_gain)] {
        inner_->whole_norm(layout, qkv, num_rows, q_heads, of, squares, q_gain, k_gain, eps);
    });
}

void RemoteDevice::rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                              std::byte* q_out) {
    later(
        [=, this, qkv = inner(qkv), q_out = inner(q_out)] { inner_->rope_store(layout, layer, qkv, q_heads, q_out); });
}

void RemoteDevice::attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                             const float* sinks, DType act, std::byte* out, std::int64_t out_stride) {
    later([=, this, q = inner(q), sinks = sinks == nullptr ? nullptr : inner(sinks), out = inner(out)] {
        inner_->attention(layout, layer, q, q_heads, sinks, act, out, out_stride);
    });
}

void RemoteDevice::rank_positions(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                                  const kernels::PositionRange& range, std::int32_t* positions) {
    later([=, this, q = inner(q), pages = inner_pages(range.pages), positions = inner(positions)] {
        inner_->rank_positions(layout, layer, q, q_heads, {pages, range.first, range.end, range.count}, positions);
    });
}

void RemoteDevice::gather_positions(const KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                                    const std::int32_t* positions, std::int64_t count, std::span<std::byte* const> to,
                                    std::int64_t first_slot) {
    later([=, this, from = inner_pages(from), positions = inner(positions), to = inner_pages(to)] {
        inner_->gather_positions(layout, layer, from, positions, count, to, first_slot);
    });
}

void RemoteDevice::kv_move(const KvLayout& layout, KvSlot from, KvSlot to) {
    from.page = inner(from.page);
    to.page = inner(to.page);
    later([=, this] { inner_->kv_move(layout, from, to); });
}

void RemoteDevice::kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                             bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const {
    if (export_begins) export_begins();
    const Lock lock(mutex_);
    run_queue();
    inner_->kv_export(layout, inner(page), layer, kv_head, values, first, count, to_host);
}

void RemoteDevice::kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                             bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) {
    const std::size_t num_bytes = static_cast<std::size_t>(count) * layout.token_bytes();
    later([=, this, page = inner(page), bytes = std::vector<std::byte>(from_host, from_host + num_bytes)] {
        inner_->kv_import(layout, page, layer, kv_head, values, first, count, bytes.data());
    });
}

void RemoteDevice::kv_export_box(const KvLayout& layout, std::span<std::byte* const> pages, const kernels::KvBox& box,
                                 std::byte* to_host, std::size_t head_stride) const {
    if (export_begins) export_begins();
    const Lock lock(mutex_);
    run_queue();
    inner_->kv_export_box(layout, inner_pages(pages), box, to_host, head_stride);
}

void RemoteDevice::kv_import_box(const KvLayout& layout, std::span<std::byte* const> pages, const kernels::KvBox& box,
                                 const std::byte* from_host, std::size_t head_stride) {
    const auto num_heads = static_cast<std::size_t>(box.num_layers * box.num_heads);
    const std::size_t num_bytes = (num_heads - 1) * head_stride + box.bytes(layout) / num_heads;
    later([=, this, pages = inner_pages(pages), bytes = std::vector<std::byte>(from_host, from_host + num_bytes)] {
        inner_->kv_import_box(layout, pages, box, bytes.data(), head_stride);
    });
}

void RemoteDevice::Delta::mix(const KvLayout& layout, std::int64_t layer, const kernels::DeltaWeights& weights,
                              const float* inputs, std::int64_t inputs_stride, const float* gates, float* out) {
    const kernels::DeltaWeights there{.filter = device_.inner(weights.filter),
                                      .log_rate = device_.inner(weights.log_rate),
                                      .step_bias = device_.inner(weights.step_bias),
                                      .filter_bias = device_.inner(weights.filter_bias),
                                      .skip = device_.inner(weights.skip)};
    device_.later(
        [=, &device = device_, inputs = device_.inner(inputs), gates = device_.inner(gates), out = device_.inner(out)] {
            device.inner_->delta_rule()->mix(layout, layer, there, inputs, inputs_stride, gates, out);
        });
}

void RemoteDevice::Delta::accept(const KvLayout& layout, std::byte* state, std::span<std::byte* const> scratch_pages,
                                 std::span<const std::int32_t> slots) {
    device_.later([&device = device_, layout, state = device_.inner(state), pages = device_.inner_pages(scratch_pages),
                   slots = std::vector<std::int32_t>(slots.begin(), slots.end())] {
        device.inner_->delta_rule()->accept(layout, state, pages, slots);
    });
}

void RemoteDevice::Chooser::choose(float* logits, std::int64_t stride, std::int64_t vocab_size,
                                   std::span<const kernels::Choice> choices, std::span<std::int32_t> tokens) {
    const Lock lock(device_.mutex_);
    device_.run_queue();
    device_.inner_->token_chooser()->choose(device_.inner(logits), stride, vocab_size, choices, tokens);
}

void RemoteDevice::Chooser::draw(float* logits, std::int64_t stride, std::int64_t vocab_size,
                                 std::span<const kernels::Choice> choices, std::int64_t count,
                                 std::span<kernels::Drawn> drawn) {
    const Lock lock(device_.mutex_);
    device_.run_queue();
    std::vector<kernels::Choice> there(choices.begin(), choices.end());
    for (kernels::Choice& choice : there) choice.keep = device_.inner(choice.keep);
    device_.inner_->token_chooser()->draw(device_.inner(logits), stride, vocab_size, there, count, drawn);
}

void RemoteDevice::Chooser::decide(float* logits, std::int64_t stride, std::int64_t vocab_size, kernels::TrialRule rule,
                                   std::span<const kernels::NodeTrials> nodes, std::span<kernels::Decided> decided) {
    const Lock lock(device_.mutex_);
    device_.run_queue();
    std::vector<std::vector<kernels::DraftTrial>> trials;
    std::vector<kernels::NodeTrials> there(nodes.begin(), nodes.end());
    for (kernels::NodeTrials& node : there) {
        trials.emplace_back(node.trials.begin(), node.trials.end());
        for (kernels::DraftTrial& trial : trials.back()) trial.drawn_from = device_.inner(trial.drawn_from);
        node.trials = trials.back();
    }
    device_.inner_->token_chooser()->decide(device_.inner(logits), stride, vocab_size, rule, there, decided);
}

}  // namespace longhaul::engine::testing
