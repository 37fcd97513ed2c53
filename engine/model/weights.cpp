#include "engine/model/weights.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

using kernels::Buffer;
using kernels::DType;
using kernels::Matrix;
using kernels::WeightRows;

DType to_dtype(TensorType type) {
    return type == TensorType::bf16 ? DType::bf16 : type == TensorType::f16 ? DType::f16 : DType::f32;
}

float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
    const std::uint32_t exponent = half >> 10 & 31U;
    const std::uint32_t fraction = half & 0x3ffU;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
    if (exponent == 0)
        return std::copysign(static_cast<float>(fraction) * 0x1p-24F, std::bit_cast<float>(sign | 0x3f800000U));
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

float element(const std::byte* data, TensorType type, std::int64_t i) {
    if (type == TensorType::f32) {
        float value;
        std::memcpy(&value, data + i * 4, sizeof value);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, data + i * 2, sizeof bits);
    return type == TensorType::f16 ? half_to_float(bits) : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Rows [first, first + count) of a tensor; what lies beyond it are rows of zeros.
struct RowRange {
    WeightRows rows, zeros;
};

RowRange take_rows(const WeightRows& whole, std::int64_t first, std::int64_t count) {
    RowRange range;
    const std::int64_t present = std::clamp<std::int64_t>(whole.num_rows - first, 0, count);
    range.rows = whole;
    range.rows.num_rows = present;
    range.rows.data = whole.data + std::min(first, whole.num_rows) * whole.row_stride *
                                       static_cast<std::int64_t>(kernels::bytes_of(whole.dtype));
    range.zeros = whole;
    range.zeros.data = nullptr;
    range.zeros.num_rows = count - present;
    return range;
}

WeightRows take_columns(WeightRows rows, std::int64_t first, std::int64_t count) {
    rows.first_column = std::min(first, rows.num_columns);  // a last rank may hold padding alone
    rows.num_columns = std::clamp<std::int64_t>(rows.num_columns - first, 0, count);
    return rows;
}

Buffer upload(kernels::Device& device, const std::vector<float>& values) {
    Buffer buffer(device, values.size() * sizeof(float));
    device.upload(buffer.data(), values.data(), values.size() * sizeof(float));
    return buffer;
}

/// Loads one rank's part of the model.
class Loader {
  public:
    Loader(const ModelConfig& config, const Split& split, WeightTypes types, kernels::Device& device,
           TensorSource& source)
        : config_(config), split_(split), types_(types), device_(device), source_(source) {}

    Weights load() {
        Weights weights;
        weights.embedding = vocabulary_parallel("model.embed_tokens.weight");
        for (std::int64_t i = 0; i < config_.num_layers; ++i)
            weights.layers.push_back(layer("model.layers." + std::to_string(i) + "."));
        weights.final_norm = upload(device_, source_.vector("model.norm.weight", config_.hidden_size));
        if (!config_.tied_embeddings) weights.head = vocabulary_parallel("lm_head.weight");
        return weights;
    }

  private:
    LayerWeights layer(const std::string& prefix) {
        LayerWeights w;
        w.attention_norm = upload(device_, source_.vector(prefix + "input_layernorm.weight", config_.hidden_size));
        w.mlp_norm = upload(device_, source_.vector(prefix + "post_attention_layernorm.weight", config_.hidden_size));
        w.qkv = qkv(prefix + "self_attn.");
        w.output = row_parallel(prefix + "self_attn.o_proj.weight", config_.num_heads * config_.head_dim,
                                split_.num_heads * config_.head_dim);
        w.gate_up = gate_up(prefix + "mlp.");
        w.down = row_parallel(prefix + "mlp.down_proj.weight", config_.intermediate_size, split_.intermediate);
        biases(prefix, w);
        return w;
    }

    Matrix column_parallel(DType dtype, std::span<const WeightRows> parts) {
        return device_.pack(dtype, parts, kernels::num_slices, split_.padded_hidden / kernels::num_slices);
    }

    Matrix vocabulary_parallel(const std::string& name) {
        const RowRange range = take_rows(source_.matrix(name, config_.vocab_size, config_.hidden_size),
                                         split_.rank * split_.vocab, split_.vocab);
        Matrix matrix = column_parallel(types_.tables, std::array{range.rows, range.zeros});
        source_.done(name);
        return matrix;
    }

    Matrix qkv(const std::string& prefix) {
        const std::int64_t dim = config_.head_dim;
        const auto q = take_rows(source_.matrix(prefix + "q_proj.weight", config_.num_heads * dim, config_.hidden_size),
                                 split_.first_head * dim, split_.num_heads * dim);
        const auto k =
            take_rows(source_.matrix(prefix + "k_proj.weight", config_.num_kv_heads * dim, config_.hidden_size),
                      split_.first_kv_head * dim, split_.num_kv_heads * dim);
        const auto v =
            take_rows(source_.matrix(prefix + "v_proj.weight", config_.num_kv_heads * dim, config_.hidden_size),
                      split_.first_kv_head * dim, split_.num_kv_heads * dim);
        Matrix matrix = column_parallel(types_.layers, std::array{q.rows, k.rows, v.rows});
        for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) source_.done(prefix + name);
        return matrix;
    }

    Matrix gate_up(const std::string& prefix) {
        const std::int64_t first = split_.rank * split_.intermediate;
        const auto gate =
            take_rows(source_.matrix(prefix + "gate_proj.weight", config_.intermediate_size, config_.hidden_size),
                      first, split_.intermediate);
        const auto up =
            take_rows(source_.matrix(prefix + "up_proj.weight", config_.intermediate_size, config_.hidden_size), first,
                      split_.intermediate);
        Matrix matrix = column_parallel(types_.layers, std::array{gate.rows, gate.zeros, up.rows, up.zeros});
        for (const char* name : {"gate_proj.weight", "up_proj.weight"}) source_.done(prefix + name);
        return matrix;
    }

    /// `inputs` of the whole model, `local_inputs` of each rank: this rank sums its slices, the all-reduce the rest.
    Matrix row_parallel(const std::string& name, std::int64_t inputs, std::int64_t local_inputs) {
        const std::int64_t slice_length = kernels::padded_inputs(inputs) / kernels::num_slices;
        const WeightRows rows =
            take_columns(source_.matrix(name, config_.hidden_size, inputs), split_.rank * local_inputs, local_inputs);
        Matrix matrix = device_.pack(types_.layers, std::array{rows},
                                     kernels::num_slices / static_cast<int>(split_.size), slice_length);
        source_.done(name);
        return matrix;
    }

    void biases(const std::string& prefix, LayerWeights& w) {
        const std::int64_t dim = config_.head_dim;
        if (config_.attention_bias || config_.qkv_bias_only) {
            std::vector<float> bias;
            const auto add = [&](const char* name, std::int64_t all, std::int64_t first, std::int64_t count) {
                const std::vector<float> whole = source_.vector(prefix + "self_attn." + name, all * dim);
                bias.insert(bias.end(), whole.begin() + first * dim, whole.begin() + (first + count) * dim);
            };
            add("q_proj.bias", config_.num_heads, split_.first_head, split_.num_heads);
            add("k_proj.bias", config_.num_kv_heads, split_.first_kv_head, split_.num_kv_heads);
            add("v_proj.bias", config_.num_kv_heads, split_.first_kv_head, split_.num_kv_heads);
            w.qkv_bias = upload(device_, bias);
        }
        if (config_.attention_bias)
            w.output_bias = upload(device_, source_.vector(prefix + "self_attn.o_proj.bias", config_.hidden_size));
        if (!config_.mlp_bias) return;
        std::vector<float> bias;
        for (const char* name : {"gate_proj.bias", "up_proj.bias"}) {
            std::vector<float> whole = source_.vector(prefix + "mlp." + name, config_.intermediate_size);
            whole.resize(static_cast<std::size_t>(split_.size * split_.intermediate), 0.0F);
            const auto first = whole.begin() + split_.rank * split_.intermediate;
            bias.insert(bias.end(), first, first + split_.intermediate);
        }
        w.gate_up_bias = upload(device_, bias);
        w.down_bias = upload(device_, source_.vector(prefix + "mlp.down_proj.bias", config_.hidden_size));
    }

    const ModelConfig& config_;
    const Split& split_;
    WeightTypes types_;
    kernels::Device& device_;
    TensorSource& source_;
};

std::int64_t bytes(const Matrix& matrix) {
    return static_cast<std::int64_t>(matrix.data.num_bytes());
}

}  // namespace

Split::Split(const ModelConfig& config, int group_rank, int group_size) : rank(group_rank), size(group_size) {
    const auto refuse = [&](const std::string& why) {
        throw UsageError("tensor-parallel: expected a degree that splits the model, got " + std::to_string(size) +
                         ": " + why);
    };
    if (config.num_heads % size != 0) refuse(std::to_string(config.num_heads) + " query heads do not divide by it");
    if (config.num_kv_heads % size != 0 && size % config.num_kv_heads != 0) {
        refuse(std::to_string(config.num_kv_heads) + " KV heads neither divide by it nor divide it");
    }
    if (size > 1 && config.num_heads * config.head_dim % 16 != 0) {
        refuse("the heads' total width " + std::to_string(config.num_heads * config.head_dim) +
               " is not a multiple of 16");
    }
    num_heads = config.num_heads / size;
    first_head = rank * num_heads;
    num_kv_heads = std::max<std::int64_t>(config.num_kv_heads / size, 1);
    first_kv_head = rank * config.num_kv_heads / size;
    writes_kv = rank == 0 || (rank - 1) * config.num_kv_heads / size != first_kv_head;
    padded_hidden = kernels::padded_inputs(config.hidden_size);
    intermediate = kernels::padded_inputs(config.intermediate_size) / size;
    vocab = (config.vocab_size + size - 1) / size;
}

std::int64_t Weights::resident_bytes() const {
    return streamed_bytes() + (head.data ? bytes(embedding) : 0);
}

std::int64_t Weights::streamed_bytes() const {
    std::int64_t sum = bytes(head_or_embedding());
    for (const LayerWeights& w : layers) sum += bytes(w.qkv) + bytes(w.output) + bytes(w.gate_up) + bytes(w.down);
    return sum;
}

Weights load_weights(const ModelConfig& config, const Split& split, WeightTypes types, kernels::Device& device,
                     TensorSource& source) {
    return Loader(config, split, types, device, source).load();
}

void FolderSource::warn_about_nan(const TensorView& view, const std::string& name) {
    // NaN and infinity have all exponent bits set; a pass over the bytes that are read for packing anyway.
    bool bad = false;
    if (view.dtype == TensorType::f32) {
        const std::int64_t count = view.num_bytes / 4;
        for (std::int64_t i = 0; i < count; ++i) {
            std::uint32_t bits;
            std::memcpy(&bits, view.data + i * 4, sizeof bits);
            bad |= (bits & 0x7f800000U) == 0x7f800000U;
        }
    } else {
        const std::uint16_t exponent = view.dtype == TensorType::bf16 ? 0x7f80 : 0x7c00;
        const std::int64_t count = view.num_bytes / 2;
        for (std::int64_t i = 0; i < count; ++i) {
            std::uint16_t bits;
            std::memcpy(&bits, view.data + i * 2, sizeof bits);
            bad |= (bits & exponent) == exponent;
        }
    }
    if (bad) notices_.push_back(view.file + ": " + name + ": holds NaN or infinity; the text will be of no use");
}

kernels::WeightRows FolderSource::matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const TensorView& view = folder_.require(name, {rows, columns});
    warn_about_nan(view, name);
    return {view.data, to_dtype(view.dtype), rows, columns, 0, columns};
}

std::vector<float> FolderSource::vector(const std::string& name, std::int64_t size) {
    const TensorView& view = folder_.require(name, {size});
    warn_about_nan(view, name);
    std::vector<float> values(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = element(view.data, view.dtype, i);
    return values;
}

void FolderSource::done(const std::string& name) {
    folder_.drop_pages(folder_.tensors().at(name));
}

kernels::WeightRows RandomSource::matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    std::uint64_t state = seed_ ^ std::hash<std::string>{}(name);
    std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * columns));
    const float scale = 1.7F / std::sqrt(static_cast<float>(columns));
    for (std::uint16_t& value : values) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const float uniform = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31F;
        value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(uniform * scale) >> 16);
    }
    held_.push_back(std::move(values));
    return {reinterpret_cast<const std::byte*>(held_.back().data()), DType::bf16, rows, columns, 0, columns};
}

std::vector<float> RandomSource::vector(const std::string&, std::int64_t size) {
    return std::vector<float>(static_cast<std::size_t>(size), 1.0F);
}

// Called once a tensor after packing: the tensors of one matrix are asked for, packed, then all done.
void RandomSource::done(const std::string&) {
    held_.clear();
}

}  // namespace longhaul::engine
