#include "engine/model/model.hpp"

#include <stdexcept>
#include <utility>

#include "engine/model/compute_context.hpp"
#include "engine/model/decoder_layers.hpp"
#include "engine/model/embedding.hpp"
#include "engine/model/model_loading.hpp"
#include "engine/model/output_head.hpp"
#include "engine/model/split.hpp"
#include "engine/model/taps.hpp"
#include "engine/parallel/device_group.hpp"

namespace longhaul::engine {

struct Model::State {
    /// Collective.
    State(std::unique_ptr<LoadedModel> model, kernels::Device& on, Group& of)
        : loaded(std::move(model)),
          device(on),
          group(of),
          sums(connect()),
          context(on, *sums, loaded->act),
          embedding(context, loaded->config, loaded->split, loaded->weights),
          layers(context, loaded->config, loaded->split, loaded->weights.layers, loaded->layouts),
          head(context, of, loaded->config, loaded->split, loaded->weights),
          hidden_pool(std::make_shared<MemoryPool<kernels::Buffer>>(on)),
          hidden(on) {}

    std::unique_ptr<LoadedModel> loaded;
    kernels::Device& device;
    Group& group;
    std::unique_ptr<DeviceGroup> sums;  ///< collectives of the group
    ComputeContext context;
    Embedding embedding;
    DecoderLayers layers;
    OutputHead head;
    PooledBuffer::Pool hidden_pool;
    Scratch hidden;  ///< the residual stream
    std::vector<std::int32_t> wanted;

    std::unique_ptr<DeviceGroup> connect() {
        std::string notice;
        auto connected = make_device_group(device, group, notice);
        if (!notice.empty()) loaded->notices.push_back(std::move(notice));
        return connected;
    }
    float* residual(std::span<const ForwardRow> rows) {
        return hidden.floats(std::ssize(rows) * loaded->config.hidden_size);
    }
    Logits logits_of(std::span<const ForwardRow> rows, const float* x);
};

Model::Model(std::unique_ptr<LoadedModel> loaded, kernels::Device& device, Group& group)
    : state_(std::make_unique<State>(std::move(loaded), device, group)) {}
Model::~Model() = default;

std::unique_ptr<Model> Model::load(const std::filesystem::path& folder, Precision precision, kernels::Device& device,
                                   Group& group, std::optional<kernels::DType> kv_dtype,
                                   const std::filesystem::path& packed_folder, const std::filesystem::path& adapter) {
    std::unique_ptr<Model> model(
        new Model(load_model(folder, precision, device, group, kv_dtype, packed_folder, adapter), device, group));
    if (group.size() > 1) gather_lines(group, model->state_->loaded->notices);
    return model;
}

std::unique_ptr<Model> Model::random(const ModelConfig& config, Precision precision, kernels::Device& device,
                                     Group& group, std::uint64_t seed, std::optional<kernels::DType> kv_dtype) {
    return std::unique_ptr<Model>(
        new Model(random_model(config, precision, device, group, seed, kv_dtype), device, group));
}

/// Logits of the rows with wants_logits only.
Logits Model::State::logits_of(std::span<const ForwardRow> rows, const float* x) {
    wanted.clear();
    for (std::size_t r = 0; r < rows.size(); ++r) {
        if (rows[r].wants_logits) wanted.push_back(static_cast<std::int32_t>(r));
    }
    const std::int64_t num_wanted = std::ssize(wanted);
    if (num_wanted > 0 &&
        wanted.back() != num_wanted - 1) {  // unless the wanted rows come first; usually all are wanted
        float* gathered = context.sum.floats(num_wanted * loaded->config.hidden_size);
        device.gather(x, wanted, loaded->config.hidden_size, gathered);
        x = gathered;
    }
    return head.logits(x, num_wanted, loaded->weights.final_norm);
}

PassResult Model::forward(const Pass& pass) {
    State& s = *state_;
    const ModelConfig& config = s.loaded->config;
    const std::int64_t num_rows = std::ssize(pass.rows);
    TapCollector taps(s.context, s.hidden_pool, pass.taps, num_rows, config.hidden_size, config.num_layers);
    if (num_rows == 0) return {Logits(s.device, config.vocab_size), taps.take()};
    s.layers.begin(pass.rows, pass.sequences);
    float* x = s.residual(pass.rows);
    s.embedding.enter(pass.rows, pass.states, x);
    s.layers.run(0, config.num_layers, x,
                 {.taps = &taps,
                  .layer_embeddings = s.embedding.of_layers(pass.rows, x),
                  .before_attention = pass.before_attention});
    taps.after_layers(x, s.loaded->weights.final_norm);
    return {s.logits_of(pass.rows, x), taps.take()};
}

HiddenStates Model::embed(std::span<const ForwardRow> rows) {
    HiddenStates states = hidden_states(std::ssize(rows));
    if (!rows.empty()) state_->embedding.enter(rows, nullptr, states.data());
    return states;
}

Logits Model::logits(const HiddenStates& rows, const Norm* norm) {
    if (rows.num_rows() > 0 && rows.width() != config().hidden_size)
        throw std::logic_error("hidden states of another width than the head reads");
    return state_->head.logits(rows.data(), rows.num_rows(),
                               norm != nullptr ? *norm : state_->loaded->weights.final_norm);
}

HiddenStates Model::hidden_states(std::int64_t num_rows) {
    return {state_->hidden_pool, num_rows, config().hidden_size};
}

ComputeContext& Model::context() {
    return state_->context;
}

void Model::forward_layers(const Pass& pass, std::int64_t first, std::int64_t count) {
    State& s = *state_;
    s.layers.begin(pass.rows, pass.sequences);
    float* x = s.residual(pass.rows);
    const bool has_layer_embeddings = config().layer_embedding_size > 0;
    if (config().has_experts() || has_layer_embeddings) s.embedding.enter(pass.rows, pass.states, x);
    s.layers.run(first, first + count, x, {.layer_embeddings = s.embedding.of_layers(pass.rows, x)});
    s.context.finish();
}

void Model::forward_attention(const Pass& pass, std::int64_t layer) {
    state_->layers.begin(pass.rows, pass.sequences);
    state_->layers.attend(layer);
    state_->context.finish();
}

void Model::forward_head(const Pass& pass) {
    state_->layers.begin(pass.rows, pass.sequences);
    static_cast<void>(state_->logits_of(pass.rows, state_->residual(pass.rows)));
}

void Model::set_layer_hook(std::function<void()> hook) {
    state_->layers.set_hook(std::move(hook));
}

const ModelConfig& Model::config() const {
    return state_->loaded->config;
}
Precision Model::precision() const {
    return state_->loaded->precision;
}
std::span<const kernels::KvLayout> Model::kv_layouts() const {
    return state_->loaded->layouts;
}
const Split& Model::split() const {
    return state_->loaded->split;
}
std::int64_t Model::first_kv_head(std::size_t group) const {
    return split().first_kv_head_of(config().layer_groups().at(group).heads);
}
std::int64_t Model::resident_weight_bytes() const {
    return state_->loaded->weights.resident_bytes();
}
std::int64_t Model::streamed_weight_bytes(std::int64_t rows) const {
    return state_->loaded->weights.streamed_bytes(state_->loaded->config, rows);
}
std::int64_t Model::head_bytes() const {
    return static_cast<std::int64_t>(state_->loaded->weights.head_or_embedding().data.num_bytes());
}
std::uint64_t Model::fingerprint() const {
    return state_->loaded->fingerprint;
}
std::uint64_t Model::adapter_fingerprint() const {
    return state_->loaded->adapter_fingerprint;
}
kernels::Device& Model::device() const {
    return state_->device;
}
Group& Model::group() const {
    return state_->group;
}
const LoadReport& Model::load_report() const {
    return state_->loaded->report;
}
const std::vector<std::string>& Model::notices() const {
    return state_->loaded->notices;
}

}  // namespace longhaul::engine
