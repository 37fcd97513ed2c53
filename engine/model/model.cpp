#include "engine/model/model.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/rope.hpp"
#include "engine/model/weights.hpp"
#include "engine/parallel/device_group.hpp"

namespace longhaul::engine {
namespace {

using kernels::AttentionRow;
using kernels::AttentionSequence;
using kernels::Buffer;
using kernels::DType;
using kernels::KvSlot;

/// Grows, never shrinks: activations of the widest pass so far.
class Scratch {
  public:
    explicit Scratch(kernels::Device& device) : device_(device) {}
    std::byte* bytes(std::size_t num_bytes) {
        if (buffer_.num_bytes() < num_bytes) {
            buffer_ = Buffer();
            buffer_ = Buffer(device_, num_bytes);
        }
        return buffer_.data();
    }
    float* floats(std::int64_t count) {
        return reinterpret_cast<float*>(bytes(static_cast<std::size_t>(count) * sizeof(float)));
    }

  private:
    kernels::Device& device_;
    Buffer buffer_;
};

/// Says so where matrices hold more than bf16 keeps, whatever type config.json names.
void note_rounding(const SafetensorsFolder& tensors, std::vector<std::string>& notices) {
    for (const auto& [name, view] : tensors.tensors()) {
        if (view.shape.size() != 2 || view.dtype == TensorType::bf16) continue;
        notices.push_back("model: " + view.dtype_name + " weights (" + name +
                          ") are rounded to bf16; precision = fp32 keeps them exactly");
        return;
    }
}

const char* precision_name(Precision precision) {
    constexpr std::array names{"bf16", "fp32", "int8", "int4"};
    return names[static_cast<std::size_t>(precision)];
}

std::string hexadecimal(std::uint64_t number) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
    return digits;
}

/// Every rank's lines on the first one, each once. Collective.
void gather_lines(Group& group, std::vector<std::string>& lines) {
    ByteWriter writer;
    for (const std::string& line : lines) writer.put(line);
    for (const std::vector<std::byte>& bytes : group.gather(writer.bytes())) {
        ByteReader reader(bytes);
        while (!reader.empty()) {
            std::string line = reader.get_string();
            if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
        }
    }
}

/// The rows between blocks, f32 [rows, hidden], and what the last block gave: the next norm adds it.
struct Residual {
    float* x;
    const float* to_add = nullptr;
};

}  // namespace

struct Model::State {
    State(const ModelConfig& model_config, Precision model_precision, kernels::Device& on, Group& of,
          std::optional<DType> kv_dtype)
        : config(model_config),
          precision(model_precision),
          device(on),
          host_memory(!on.own_memory()),
          group(of),
          split(config, of.rank(), of.size()),
          act(kernels::act_type(weight_types(precision).layers)),
          rope(config),
          layout(kv_layout_of(config, split, kv_dtype.value_or(act))),
          hidden(on),
          normed(on),
          projected(on),
          queries(on),
          attended(on),
          sum(on),
          logits_local(on),
          gathered(on),
          whole(on),
          logits(on, config.vocab_size) {
        layout.pages_together = on.kv_pages_together(layout);
    }

    ModelConfig config;
    Precision precision;
    kernels::Device& device;
    bool host_memory;  ///< is the device's
    Group& group;
    std::unique_ptr<DeviceGroup> sums;  ///< of the group
    Split split;
    DType act;
    RopeTable rope;
    kernels::KvLayout layout;
    std::unique_ptr<PackedFile> packed;  ///< what `weights` may lie in
    Weights weights;
    LoadReport load_report;
    std::uint64_t fingerprint = 0;
    std::vector<std::string> notices;
    std::function<void()> layer_hook;

    Scratch hidden, normed, projected, queries, attended, sum;
    Scratch logits_local, gathered, whole;  ///< this rank's part, all ranks' parts, the rows of these
    std::vector<float> cos, sin, logits_whole;
    kernels::Staging logits_here;  ///< this rank's part, on the host, where the device has memory of its own
    Logits logits;
    std::vector<std::int32_t> table_rows, position_rows, wanted, part_rows;
    std::vector<KvSlot> slots;
    std::vector<AttentionRow> attention_rows;
    std::vector<AttentionSequence> attention_sequences;
    std::int64_t first_prompt_row = 0, num_prompt_rows = 0;  ///< of the pass

    void load(const SafetensorsFolder& tensors, const std::filesystem::path& packed_folder);
    bool adopt_packed(const SafetensorsFolder& tensors, const std::vector<WeightPlan>& plans,
                      const std::filesystem::path& folder);
    void note_bad(const SafetensorsFolder& tensors, const std::vector<std::string>& names);

    void prepare(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences);
    void find_prompt_rows(std::span<const ForwardRow> rows);
    [[nodiscard]] std::int32_t position_row(const ForwardRow& row) const;
    void embed(std::int64_t num_rows, float* x);
    const std::byte* rounded(const float* x, std::int64_t width, std::int64_t num_rows);
    const std::byte* normalised(const Norm& norm, Residual& rows, std::int64_t num_rows);
    const std::byte* enter_block(const Norm& norm, Residual& rows, std::int64_t num_rows);
    void leave_block(const Norm& norm, const Buffer& bias, float* part, std::int64_t num_rows, Residual& rows);
    void add(Residual& rows, std::int64_t num_rows);
    std::byte* queries_of(std::int64_t num_rows);
    const std::byte* attend(std::int64_t layer, std::int64_t num_rows);
    void attention_block(std::int64_t layer, std::int64_t num_rows, Residual& rows);
    void mlp_block(const LayerWeights& w, std::int64_t num_rows, Residual& rows);
    void run_layers(std::int64_t first, std::int64_t end, std::int64_t num_rows, float* x);
    void connect();
    void finish();
    const float* to_host(const float* local, std::int64_t count);
    bool keep_on_device(float* local, std::int64_t num_rows);
    std::span<const float> bring_to_host(const float* local, std::int64_t num_rows);
    const std::byte* head_input(float* rows, std::int64_t num_rows);
    void head(float* x);
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

std::unique_ptr<Model> Model::load(const std::filesystem::path& folder, Precision precision, kernels::Device& device,
                                   Group& group, std::optional<kernels::DType> kv_dtype,
                                   const std::filesystem::path& packed_folder) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_ptr<State> state;
    const auto load = [&] {
        state = std::make_unique<State>(ModelConfig::load(folder), precision, device, group, kv_dtype);
        const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
        const std::vector<std::string> faults = tensor_faults(state->config, tensors);
        if (!faults.empty()) throw Error(faults.front());
        state->fingerprint = model_fingerprint(state->config, tensors.fingerprint());
        state->load(tensors, packed_folder);
        if (precision == Precision::bf16) note_rounding(tensors, state->notices);
        state->load_report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    agree(group, [&] {
        try {
            load();
        } catch (const std::bad_alloc&) {
            throw Error(
                "model: expected enough memory for the weights, got an allocation failure; use more ranks or a "
                "smaller model");
        }
    });
    state->connect();
    if (group.size() > 1) gather_lines(group, state->notices);
    return std::unique_ptr<Model>(new Model(std::move(state)));
}

std::unique_ptr<Model> Model::random(const ModelConfig& config, Precision precision, kernels::Device& device,
                                     Group& group, std::uint64_t seed, std::optional<kernels::DType> kv_dtype) {
    auto state = std::make_unique<State>(config, precision, device, group, kv_dtype);
    RandomSource source(seed);
    load_weights(plan_weights(config, state->split, weight_types(precision), state->weights), device, source);
    state->fingerprint = model_fingerprint(state->config, seed);
    state->connect();
    return std::unique_ptr<Model>(new Model(std::move(state)));
}

/// Collective.
void Model::State::connect() {
    std::string notice;
    sums = make_device_group(device, group, notice);
    if (!notice.empty()) notices.push_back(std::move(notice));
}

void Model::State::load(const SafetensorsFolder& tensors, const std::filesystem::path& packed_folder) {
    const std::vector<WeightPlan> plans = plan_weights(config, split, weight_types(precision), weights);
    if (!packed_folder.empty() && adopt_packed(tensors, plans, packed_folder)) return;
    FolderSource source(tensors);
    load_weights(plans, device, source);
    note_bad(tensors, source.bad_tensors());
    load_report.how = "packed from the model's files";
}

/// Weights from a packed file, written first where there is none; false: none can be had.
bool Model::State::adopt_packed(const SafetensorsFolder& tensors, const std::vector<WeightPlan>& plans,
                                const std::filesystem::path& folder) {
    const std::string layout_name(device.packed_layout());
    const std::string part = std::to_string(split.rank) + "of" + std::to_string(split.size);
    const std::string name =
        hexadecimal(fingerprint) + "-" + precision_name(precision) + "-" + layout_name + "-" + part;
    const PackedKey key{.text = name + ", numerics " + std::to_string(kernels::numerics_version),
                        .model_changed = tensors.last_change()};
    const std::filesystem::path path = folder / (name + ".packed");
    load_report.how = "mapped from " + path.string();
    const auto write = [&](PackedFileWriter& file) {
        load_report.how = "packed into " + path.string();
        FolderSource source(tensors);
        write_weights(plans, device, source, file);
        return source.bad_tensors();
    };
    try {
        packed = open_or_write(path, key, device.threads(), write, notices);
        adopt_weights(plans, device, *packed);
        note_bad(tensors, packed->notes());
        if (device.own_memory()) packed.reset();  // it was copied
        return true;
    } catch (const PackedFileError& error) {
        notices.push_back("packed-weights: " + std::string(error.what()) + "; this start goes without");
        return false;
    }
}

void Model::State::note_bad(const SafetensorsFolder& tensors, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
        const auto view = tensors.tensors().find(name);
        if (view == tensors.tensors().end()) continue;
        notices.push_back(view->second.file + ": " + name + ": holds NaN or infinity; the text will be of no use");
    }
}

/// Row of the table of learned positions. A tree may reach beyond the last one, where no text does: what its nodes
/// there read does not matter.
std::int32_t Model::State::position_row(const ForwardRow& row) const {
    const std::int64_t last = config.max_positions - 1;
    if (row.position > last && row.path.empty()) {
        throw UsageError("context: expected at most " + std::to_string(config.max_positions) +
                         " positions, as this model has learned, got " + std::to_string(row.position + 1));
    }
    return static_cast<std::int32_t>(std::min(row.position, last) + ModelConfig::first_position_row);
}

void Model::State::prepare(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences) {
    const std::int64_t half = config.head_dim / 2;
    const std::size_t num_rows = rows.size();
    cos.resize(num_rows * static_cast<std::size_t>(half));
    sin.resize(cos.size());
    table_rows.clear();
    position_rows.clear();
    wanted.clear();
    slots.clear();
    attention_rows.clear();
    attention_sequences.clear();
    find_prompt_rows(rows);
    for (const KvSequence* sequence : sequences)
        attention_sequences.push_back({sequence->pages(), sequence->scratch_pages()});
    for (std::size_t r = 0; r < num_rows; ++r) {
        const ForwardRow& row = rows[r];
        const KvSequence& sequence = *sequences[static_cast<std::size_t>(row.sequence)];
        rope.fill(row.position, cos.data() + static_cast<std::int64_t>(r) * half,
                  sin.data() + static_cast<std::int64_t>(r) * half);
        const std::int64_t local = row.token_id - split.rank * split.vocab;
        table_rows.push_back(local >= 0 && local < split.vocab ? static_cast<std::int32_t>(local) : -1);
        if (config.learned_positions) position_rows.push_back(position_row(row));
        slots.push_back(row.path.empty() ? sequence.position_slot(row.position)
                                         : sequence.scratch_slot(row.path.back()));
        attention_rows.push_back({row.sequence, row.position, row.in_pages, row.path.data()});
        if (row.wants_logits) wanted.push_back(static_cast<std::int32_t>(r));
    }
    device.begin_pass({.sequences = attention_sequences,
                       .rows = attention_rows,
                       .slots = slots,
                       .cos = cos.data(),
                       .sin = sin.data(),
                       .num_angles = half,
                       .first_prompt_row = first_prompt_row,
                       .num_prompt_rows = num_prompt_rows});
}

void Model::State::find_prompt_rows(std::span<const ForwardRow> rows) {
    const auto of_prompt = [](const ForwardRow& row) { return row.of_prompt; };
    const auto first = std::find_if(rows.begin(), rows.end(), of_prompt);
    const auto end = std::find_if_not(first, rows.end(), of_prompt);
    if (std::any_of(end, rows.end(), of_prompt)) throw std::logic_error("rows of prompts do not stand together");
    first_prompt_row = first - rows.begin();
    num_prompt_rows = end - first;
    if (num_prompt_rows == 0) first_prompt_row = 0;
}

void Model::State::embed(std::int64_t num_rows, float* x) {
    const std::int64_t width = config.embedding_width();
    const bool projected_in = static_cast<bool>(weights.project_in.data);
    float* embedded = projected_in ? sum.floats(num_rows * width) : x;
    device.embed(weights.embedding, table_rows, width, embedded);
    sums->all_reduce(embedded, num_rows * width);
    if (projected_in) {
        device.matmul(weights.project_in, rounded(embedded, width, num_rows), kernels::padded_inputs(width), num_rows,
                      x);
    }
    if (!config.learned_positions) return;
    float* learned = sum.floats(num_rows * config.hidden_size);
    device.embed(weights.positions, position_rows, config.hidden_size, learned);
    device.add(x, learned, num_rows * config.hidden_size);
}

// What products read, act [num_rows, padded width]: the rows as they are ...
const std::byte* Model::State::rounded(const float* x, std::int64_t width, std::int64_t num_rows) {
    const std::int64_t stride = kernels::padded_inputs(width);
    std::byte* out = normed.bytes(static_cast<std::size_t>(num_rows * stride) * kernels::bytes_of(act));
    device.round_rows(x, num_rows, width, act, out, stride);
    return out;
}

// ... or normed, with what is still to be added ...
const std::byte* Model::State::normalised(const Norm& norm, Residual& rows, std::int64_t num_rows) {
    const std::int64_t stride = split.padded_hidden;
    std::byte* out = normed.bytes(static_cast<std::size_t>(num_rows * stride) * kernels::bytes_of(act));
    const auto eps = static_cast<float>(config.norm_eps);
    const auto* gain = norm.gain.as<float>();
    if (config.layer_norm) {
        add(rows, num_rows);
        device.layer_norm(rows.x, gain, norm.bias.as<float>(), eps, num_rows, config.hidden_size, act, out, stride);
    } else if (const float* to_add = std::exchange(rows.to_add, nullptr)) {
        device.add_rms_norm(rows.x, to_add, gain, eps, num_rows, config.hidden_size, act, out, stride);
    } else {
        device.rms_norm(rows.x, gain, eps, num_rows, config.hidden_size, act, out, stride);
    }
    return out;
}

// ... as the block that they enter wants them.
const std::byte* Model::State::enter_block(const Norm& norm, Residual& rows, std::int64_t num_rows) {
    return config.norm_after ? rounded(rows.x, config.hidden_size, num_rows) : normalised(norm, rows, num_rows);
}

// What is to be added: the ranks' sum of what stands in `part`, and the bias; then the norm, where it comes last.
void Model::State::leave_block(const Norm& norm, const Buffer& bias, float* part, std::int64_t num_rows,
                               Residual& rows) {
    const std::int64_t hidden_size = config.hidden_size;
    sums->all_reduce(part, num_rows * hidden_size);
    if (bias) device.add_bias(part, bias.as<float>(), num_rows, hidden_size);
    rows.to_add = part;
    if (!config.norm_after) return;
    add(rows, num_rows);
    device.layer_norm(rows.x, norm.gain.as<float>(), norm.bias.as<float>(), static_cast<float>(config.norm_eps),
                      num_rows, hidden_size, DType::f32, reinterpret_cast<std::byte*>(rows.x), hidden_size);
}

void Model::State::add(Residual& rows, std::int64_t num_rows) {
    const float* to_add = std::exchange(rows.to_add, nullptr);
    if (to_add != nullptr) device.add(rows.x, to_add, num_rows * config.hidden_size);
}

std::byte* Model::State::queries_of(std::int64_t num_rows) {
    return queries.bytes(static_cast<std::size_t>(num_rows * split.num_heads * config.head_dim) *
                         kernels::bytes_of(layout.query_type()));
}

// Of the queries that stand in their buffer.
const std::byte* Model::State::attend(std::int64_t layer, std::int64_t num_rows) {
    const std::int64_t width = weights.layers[static_cast<std::size_t>(layer)].output.num_inputs;
    std::byte* heads = attended.bytes(static_cast<std::size_t>(num_rows * width) * kernels::bytes_of(act));
    device.attention(layout, layer, queries_of(num_rows), split.num_heads, act, heads, width);
    return heads;
}

// x += Wo attention(rope(Wqkv norm(x)))
void Model::State::attention_block(std::int64_t layer, std::int64_t num_rows, Residual& rows) {
    const LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
    const std::byte* input = enter_block(w.attention_norm, rows, num_rows);
    float* qkv = projected.floats(num_rows * w.qkv.num_outputs);
    std::byte* q = queries_of(num_rows);
    if (w.qkv_bias) {
        device.layer_matmul(w.qkv, input, split.padded_hidden, num_rows, qkv);
        device.add_bias(qkv, w.qkv_bias.as<float>(), num_rows, w.qkv.num_outputs);
        device.rope_store(layout, layer, qkv, split.num_heads, q);
    } else {
        device.qkv_matmul(w.qkv, input, split.padded_hidden, num_rows, qkv, layout, layer, split.num_heads, q);
    }
    const std::byte* heads = attend(layer, num_rows);

    float* out = sum.floats(num_rows * config.hidden_size);
    device.layer_matmul(w.output, heads, w.output.num_inputs, num_rows, out);
    leave_block(w.attention_norm, w.output_bias, out, num_rows, rows);
}

// x += Wdown (silu(Wgate norm(x)) * Wup norm(x)), or x += Wdown relu(Wup norm(x))
void Model::State::mlp_block(const LayerWeights& w, std::int64_t num_rows, Residual& rows) {
    const std::byte* input = enter_block(w.mlp_norm, rows, num_rows);
    float* gate_up = projected.floats(num_rows * w.gate_up.num_outputs);
    const std::int64_t width = split.intermediate;
    std::byte* active = attended.bytes(static_cast<std::size_t>(num_rows * width) * kernels::bytes_of(act));
    if (w.gate_up.gated) {
        device.gated_matmul(w.gate_up, input, split.padded_hidden, num_rows, gate_up, act, active, width);
    } else {
        device.layer_matmul(w.gate_up, input, split.padded_hidden, num_rows, gate_up);
        if (w.gate_up_bias) device.add_bias(gate_up, w.gate_up_bias.as<float>(), num_rows, w.gate_up.num_outputs);
        const auto activate = config.gated_mlp ? &kernels::Device::silu_mul : &kernels::Device::relu;
        (device.*activate)(gate_up, num_rows, width, act, active, width);
    }
    float* out = sum.floats(num_rows * config.hidden_size);
    device.layer_matmul(w.down, active, width, num_rows, out);
    leave_block(w.mlp_norm, w.down_bias, out, num_rows, rows);
}

void Model::State::run_layers(std::int64_t first, std::int64_t end, std::int64_t num_rows, float* x) {
    Residual rows{.x = x};
    for (std::int64_t layer = first; layer < end; ++layer) {
        attention_block(layer, num_rows, rows);
        mlp_block(weights.layers[static_cast<std::size_t>(layer)], num_rows, rows);
        if (layer_hook) layer_hook();
    }
    add(rows, num_rows);
}

// What the head reads of f32 rows, act [num_rows, padded embedding].
const std::byte* Model::State::head_input(float* rows, std::int64_t num_rows) {
    Residual whole_rows{.x = rows};
    const std::byte* input = enter_block(weights.final_norm, whole_rows, num_rows);
    if (!weights.project_out.data) return input;
    const std::int64_t width = config.embedding_width();
    float* embedded = projected.floats(num_rows * width);
    device.matmul(weights.project_out, input, split.padded_hidden, num_rows, embedded);
    return rounded(embedded, width, num_rows);
}

/// Waits for the device: what a caller measures is what was computed, and a sum that will never come is an error here.
void Model::State::finish() {
    sums->finish();
    device.finish();
}

const float* Model::State::to_host(const float* local, std::int64_t count) {
    if (host_memory) return local;
    const std::size_t num_bytes = static_cast<std::size_t>(count) * sizeof(float);
    if (logits_here.num_bytes() < num_bytes) logits_here = kernels::Staging(device, num_bytes);
    device.download(logits_here.data(), reinterpret_cast<const std::byte*>(local), num_bytes);
    return logits_here.floats();
}

// Where the device chooses tokens, and has the whole vocabulary or can get it without the host: the ranks' parts of a
// row become neighbours.
bool Model::State::keep_on_device(float* local, std::int64_t num_rows) {
    if (device.token_chooser() == nullptr) return false;
    float* rows = local;
    if (split.size > 1) {
        const std::int64_t part_size = num_rows * split.vocab;
        float* parts = gathered.floats(part_size * split.size);
        if (!sums->all_gather(local, parts, part_size)) return false;
        part_rows.clear();
        for (std::int64_t r = 0; r < num_rows; ++r) {
            for (std::int64_t part = 0; part < split.size; ++part)
                part_rows.push_back(static_cast<std::int32_t>(part * num_rows + r));
        }
        rows = whole.floats(part_size * split.size);
        device.gather(parts, part_rows, split.vocab, rows);
    }
    logits.set_on_device(rows, num_rows, split.vocab * split.size);
    return true;
}

// The vocabulary's parts are brought together in the order of the ids.
std::span<const float> Model::State::bring_to_host(const float* local, std::int64_t num_rows) {
    const std::int64_t vocab = config.vocab_size;
    const std::int64_t part_size = num_rows * split.vocab;
    const float* here = to_host(local, part_size);
    if (split.size == 1) return {here, static_cast<std::size_t>(part_size)};  // no padding: the rows are the vocabulary
    std::vector<float> parts(static_cast<std::size_t>(part_size * split.size));
    group.all_gather(here, parts.data(), part_size);
    logits_whole.resize(static_cast<std::size_t>(num_rows * vocab));
    for (std::int64_t part = 0; part < split.size; ++part) {
        const std::int64_t first = part * split.vocab;
        const std::int64_t count = std::clamp<std::int64_t>(vocab - first, 0, split.vocab);
        for (std::int64_t r = 0; r < num_rows; ++r) {
            std::copy_n(parts.data() + part * part_size + r * split.vocab, count,
                        logits_whole.data() + r * vocab + first);
        }
    }
    return logits_whole;
}

// Logits of the wanted rows alone.
void Model::State::head(float* x) {
    const auto num_rows = static_cast<std::int64_t>(wanted.size());
    if (num_rows == 0) {
        logits.set_on_host({});
        return finish();
    }
    float* rows = x;
    if (wanted.back() != num_rows - 1) {  // not the first ones: as a rule all are wanted
        rows = sum.floats(num_rows * config.hidden_size);
        device.gather(x, wanted, config.hidden_size, rows);
    }
    const std::byte* input = head_input(rows, num_rows);
    float* local = logits_local.floats(num_rows * split.vocab);
    device.matmul(weights.head_or_embedding(), input, kernels::padded_inputs(config.embedding_width()), num_rows,
                  local);
    if (keep_on_device(local, num_rows)) return finish();
    sums->finish();
    logits.set_on_host(bring_to_host(local, num_rows));
}

Logits& Model::forward(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences) {
    State& s = *state_;
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    s.logits.set_on_host({});
    if (num_rows == 0) return s.logits;
    s.prepare(rows, sequences);
    float* x = s.hidden.floats(num_rows * s.config.hidden_size);
    s.embed(num_rows, x);
    s.run_layers(0, s.config.num_layers, num_rows, x);
    s.head(x);
    return s.logits;
}

void Model::forward_layers(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences, std::int64_t first,
                           std::int64_t count) {
    State& s = *state_;
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    s.prepare(rows, sequences);
    s.run_layers(first, first + count, num_rows, s.hidden.floats(num_rows * s.config.hidden_size));
    s.finish();
}

void Model::forward_attention(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences,
                              std::int64_t layer) {
    state_->prepare(rows, sequences);
    state_->attend(layer, static_cast<std::int64_t>(rows.size()));
    state_->finish();
}

void Model::forward_head(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences) {
    State& s = *state_;
    s.prepare(rows, sequences);
    s.head(s.hidden.floats(static_cast<std::int64_t>(rows.size()) * s.config.hidden_size));
}

void Model::set_layer_hook(std::function<void()> hook) {
    state_->layer_hook = std::move(hook);
}

const ModelConfig& Model::config() const {
    return state_->config;
}
Precision Model::precision() const {
    return state_->precision;
}
const kernels::KvLayout& Model::kv_layout() const {
    return state_->layout;
}
std::int64_t Model::first_kv_head() const {
    return state_->split.first_kv_head;
}
bool Model::writes_kv() const {
    return state_->split.writes_kv;
}
std::int64_t Model::resident_weight_bytes() const {
    return state_->weights.resident_bytes();
}
std::int64_t Model::streamed_weight_bytes() const {
    return state_->weights.streamed_bytes();
}
std::int64_t Model::head_bytes() const {
    return static_cast<std::int64_t>(state_->weights.head_or_embedding().data.num_bytes());
}
std::uint64_t Model::fingerprint() const {
    return state_->fingerprint;
}
kernels::Device& Model::device() const {
    return state_->device;
}
Group& Model::group() const {
    return state_->group;
}
const LoadReport& Model::load_report() const {
    return state_->load_report;
}
const std::vector<std::string>& Model::notices() const {
    return state_->notices;
}

}  // namespace longhaul::engine
