// The RoPE parameters of config.json.
#include <cmath>

#include "engine/model/architectures.hpp"
#include "engine/model/config_section.hpp"

namespace longhaul::engine::detail {
namespace {

RopeScaling scaling_of(const Section& rope, const ModelConfig& model) {
    const std::string_view key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
    const std::string type = rope.text_or(key, "default");
    if (type == "default" || (type == "mrope" && architecture_of(model).folder.may_be_mrope))
        return RopeScaling::standard;
    if (type == "linear") return RopeScaling::linear;
    if (type == "llama3") return RopeScaling::llama3;
    if (type == "longrope" || type == "su") return RopeScaling::longrope;
    if (type == "yarn" && architecture_of(model).folder.yarn_is_longrope) return RopeScaling::longrope;
    if (type == "yarn") return RopeScaling::yarn;
    rope.refuse(key, R"("default", "linear", "llama3", "yarn" or "longrope")");
}

void read_llama3(const Section& rope, RopeConfig& config) {
    if (rope.find("low_freq_factor") == nullptr) rope.refuse("low_freq_factor", "a number");
    if (rope.find("high_freq_factor") == nullptr) rope.refuse("high_freq_factor", "a number");
    config.low_freq_factor = rope.positive_or("low_freq_factor", 1.0, 1e6);
    config.high_freq_factor = rope.positive_or("high_freq_factor", 4.0, 1e6, config.low_freq_factor);
}

/// A YaRN parameter for which Hugging Face treats 0 and null as absent.
double yarn_number(const Section& rope, std::string_view key, double fallback) {
    const double value = get_double_or(rope.json, key, 0.0, rope.file, rope.within);
    return value == 0.0 ? fallback : rope.positive_or(key, fallback, 1e6);
}

double ratio_of_lengths(const ModelConfig& model, const RopeConfig& config) {
    return static_cast<double>(model.max_positions) / static_cast<double>(config.original_max_positions);
}

void read_yarn(const Section& rope, const ModelConfig& model, RopeConfig& config) {
    config.beta_fast = yarn_number(rope, "beta_fast", 32.0);
    config.beta_slow = yarn_number(rope, "beta_slow", 1.0);
    if (config.beta_fast < config.beta_slow) {
        rope.refuse("beta_fast", "at least beta_slow = " + describe(Json(config.beta_slow)));
    }
    config.mscale = yarn_number(rope, "mscale", 0.0);
    config.mscale_all_dim = yarn_number(rope, "mscale_all_dim", 0.0);
    config.truncate = get_bool_or(rope.json, "truncate", true, rope.file, rope.within);
    if (rope.find("factor") == nullptr) config.factor = ratio_of_lengths(model, config);
}

/// A factor for each rotated pair of dimensions.
std::vector<double> factors_of(const Section& rope, std::string_view key, std::int64_t count) {
    const std::string expected = "an array of " + std::to_string(count) + " numbers above 0, one per rotated pair";
    const Json* list = rope.find(key);
    if (list == nullptr || !list->is_array() || std::ssize(*list) != count) rope.refuse(key, expected);
    std::vector<double> factors;
    for (const Json& one : *list) {
        if (!one.is_number() || !(one.get<double>() > 0) || one.get<double>() > 1e6)
            throw InputError(rope.file, rope.field(key), expected, describe(one));
        factors.push_back(one.get<double>());
    }
    return factors;
}

void read_longrope(const Section& rope, const ModelConfig& model, RopeConfig& config) {
    if (config.original_max_positions < 2)  // its logarithm divides
        throw InputError(rope.file, rope.field("original_max_position_embeddings"), "at least 2 positions",
                         std::to_string(config.original_max_positions));
    const std::int64_t pairs = config.rotated_dims(model.head_dim) / 2;
    config.short_factors = factors_of(rope, "short_factor", pairs);
    config.long_factors = factors_of(rope, "long_factor", pairs);
    if (rope.find("factor") == nullptr) config.factor = ratio_of_lengths(model, config);
}

/// The share of a head that is rotated, as dimensions.
void read_rotated_dims(const Section& rope, const Section& top, const ModelConfig& model, RopeConfig& config) {
    if (model.has_latent_attention()) {
        config.rotary_dims = model.latent.rope_dim;
        return;
    }
    constexpr std::string_view key = "partial_rotary_factor";
    const Architecture& of = architecture_of(model);
    const std::string_view as_number = of.folder.rotary_dims_key;
    if (!as_number.empty() && rope.find(key) == nullptr && top.find(key) == nullptr) {
        const std::int64_t dims = top.size_or(as_number, model.head_dim, model.head_dim);
        if (dims % 2 != 0) top.refuse(as_number, "an even number of dimensions");
        if (dims < model.head_dim) config.rotary_dims = dims;
        return;
    }
    const bool may_be_partial = of.sizes.rotated_share > 0.0;
    const bool inside = rope.find(key) != nullptr;
    const Section& section = inside ? rope : top;
    const std::string_view share_key = inside ? key : of.folder.rotated_share_key;
    const double share = section.positive_or(share_key, may_be_partial ? of.sizes.rotated_share : 1.0, 1.0);
    if (share == 1.0) return;
    if (!may_be_partial) section.refuse(share_key, "1: all of a head rotated");
    const auto dims = static_cast<std::int64_t>(static_cast<double>(model.head_dim) * share);
    if (dims < 2 || dims % 2 != 0)
        section.refuse(share_key, "a share of head_dim = " + std::to_string(model.head_dim) +
                                      " that gives an even number of dimensions");
    config.rotary_dims = dims;
}

}  // namespace

Section rope_section(const Section& top) {
    static const Json empty = Json::object();
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        const Json* found = top.find(name);
        if (found != nullptr && !found->is_object()) top.refuse(name, "an object");
        if (found != nullptr && !found->empty()) return {*found, top.file, top.field(name)};
    }
    return {empty, top.file, top.field("rope_parameters")};
}

RopeConfig read_rope(const Section& rope, const Section& top, const ModelConfig& model, double default_theta) {
    RopeConfig config;
    // Must be above 1: the frequencies are powers of theta, and YaRN divides by its logarithm.
    constexpr std::string_view theta = "rope_theta";
    config.theta = rope.find(theta) != nullptr
                       ? rope.positive_or(theta, default_theta, 1e30, 1.0)
                       : top.positive_or(architecture_of(model).folder.theta_key, default_theta, 1e30, 1.0);
    read_rotated_dims(rope, top, model, config);
    config.scaling = scaling_of(rope, model);
    if (config.scaling == RopeScaling::standard) return config;
    const bool knows_factor = config.scaling == RopeScaling::yarn || config.scaling == RopeScaling::longrope;
    if (!knows_factor && rope.find("factor") == nullptr) rope.refuse("factor", "a number");
    config.factor = rope.positive_or("factor", 1.0, 1e6);
    config.original_max_positions = rope.size_or("original_max_position_embeddings", model.max_positions, max_context);
    if (top.find("original_max_position_embeddings") !=
        nullptr) {  // takes precedence over the one inside, as in Hugging Face
        config.original_max_positions = top.size("original_max_position_embeddings", max_context);
    }
    if (knows_factor && rope.find("attention_factor") != nullptr)
        config.attention_factor = rope.positive_or("attention_factor", 1.0, 1e6);
    if (config.scaling == RopeScaling::llama3) read_llama3(rope, config);
    if (config.scaling == RopeScaling::yarn) read_yarn(rope, model, config);
    if (config.scaling == RopeScaling::longrope) read_longrope(rope, model, config);
    return config;
}

RopeConfig read_proportional_rope(const Section& rope, std::int64_t head_dim, double default_theta) {
    RopeConfig config;
    config.head_dim = head_dim;
    config.theta = rope.positive_or("rope_theta", default_theta, 1e30, 1.0);
    const std::string type = rope.text_or("rope_type", "proportional");
    if (type == "default") return config;
    if (type != "proportional") rope.refuse("rope_type", R"("default" or "proportional")");
    config.scaling = RopeScaling::proportional;
    config.factor = rope.positive_or("factor", 1.0, 1e6);
    constexpr std::string_view key = "partial_rotary_factor";
    const double share = rope.positive_or(key, 1.0, 1.0);
    config.rotary_dims = 2 * static_cast<std::int64_t>(std::floor(share * static_cast<double>(head_dim) / 2.0));
    if (config.rotary_dims == 0)
        rope.refuse(key, "a share that gives two or more of " + std::to_string(head_dim) + " dimensions");
    return config;
}

}  // namespace longhaul::engine::detail
