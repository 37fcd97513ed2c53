// `longhaul inspect`: shows the contents of a folder with a model, a LoRA adapter, a draft layer or draft heads, or of
// a checkpoint. Builds one description and prints it as a table or as JSON.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/draft/draft_layer.hpp"
#include "engine/draft/draft_layer_config.hpp"
#include "engine/draft/heads.hpp"
#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/adapter.hpp"
#include "engine/model/config.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/safetensors.hpp"
#include "runner/commands/commands.hpp"
#include "runner/job/command_line.hpp"
#include "runner/launch/engine_options.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;  // ordered, because it is printed

const char* scaling_name(engine::RopeScaling scaling) {
    switch (scaling) {
        case engine::RopeScaling::standard:
            return "default";
        case engine::RopeScaling::linear:
            return "linear";
        case engine::RopeScaling::llama3:
            return "llama3";
        case engine::RopeScaling::yarn:
            return "yarn";
        case engine::RopeScaling::longrope:
            return "longrope";
        case engine::RopeScaling::proportional:
            return "proportional";
        case engine::RopeScaling::none:
            return "none";
    }
    return "unknown";
}

Json describe_rope(const engine::RopeConfig& rope) {
    Json json{{"scaling", scaling_name(rope.scaling)}, {"theta", rope.theta}};
    if (rope.scaling != engine::RopeScaling::standard) json["factor"] = rope.factor;
    if (rope.original_max_positions > 0) json["original_max_positions"] = rope.original_max_positions;
    if (rope.query_growth != 0.0) json["query_growth"] = rope.query_growth;
    return json;
}

/// Layers with the same window and heads, and those with linear attention, which have a state.
Json describe_groups(const engine::ModelConfig& config) {
    Json groups = Json::array();
    for (const auto& group : config.layer_groups()) {
        groups.push_back({{"layers", 0}});
        if (group.linear) {
            groups.back()["attention"] = "linear";
            continue;
        }
        groups.back()["window"] = group.window;
        groups.back()["rope"] = describe_rope(group.rope);
        if (group.heads.num_kv_heads != config.num_kv_heads) groups.back()["kv_heads"] = group.heads.num_kv_heads;
        if (group.heads.dim != config.head_dim) groups.back()["head_dim"] = group.heads.dim;
    }
    const std::vector<std::int64_t> group_of = config.groups_of_layers();
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        Json& group = groups[static_cast<std::size_t>(group_of[static_cast<std::size_t>(at)])];
        const auto add_to = [&](const char* count) { group[count] = group.value(count, std::int64_t{0}) + 1; };
        add_to("layers");
        if (config.layer(at).shares_kv) add_to("sharing_kv");
    }
    return groups;
}

/// Of a mixture of experts: the layers that have any have the same.
Json describe_experts(const engine::ModelConfig& config) {
    std::int64_t layers = 0;
    engine::ExpertConfig experts;
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        if (config.layer(at).experts.count == 0) continue;
        experts = config.layer(at).experts;
        ++layers;
    }
    Json json{{"layers", layers},
              {"count", experts.count},
              {"per_token", experts.per_token},
              {"normalized", experts.normalized},
              {"intermediate_size", config.expert_intermediate_size}};
    if (experts.num_groups > 1) {
        json["groups"] = experts.num_groups;
        json["best_groups"] = experts.best_groups;
    }
    if (config.shared_intermediate_size > 0) json["shared_intermediate_size"] = config.shared_intermediate_size;
    if (experts.latent_size > 0) json["latent_size"] = experts.latent_size;
    json["active_parameters"] = engine::num_active_parameters(config);
    return json;
}

Json describe_tokenizer(const engine::Tokenizer& tokenizer) {
    Json json{{"vocab_size", tokenizer.vocab_size()}, {"adds_bos", tokenizer.adds_bos()}};
    json["bos_id"] = tokenizer.bos_id() ? Json(*tokenizer.bos_id()) : Json();
    json["fingerprint"] = engine::hex(tokenizer.fingerprint());
    return json;
}

Json describe_latents(const engine::LatentConfig& latent) {
    return {{"query_rank", latent.query_rank},
            {"kv_rank", latent.kv_rank},
            {"nope_dim", latent.nope_dim},
            {"rope_dim", latent.rope_dim},
            {"value_dim", latent.value_dim}};
}

/// Settings that a model and a draft layer have in common.
void describe_shape(const engine::ModelConfig& config, Json& json) {
    json["hidden_size"] = config.hidden_size;
    const auto has_dense_mlp = [](const engine::LayerConfig& layer) {
        return layer.has_mlp && layer.experts.count == 0;
    };
    if (std::any_of(config.layers.begin(), config.layers.end(), has_dense_mlp))
        json["intermediate_size"] = config.intermediate_size;
    json["query_heads"] = config.num_heads;
    json["kv_heads"] = config.num_kv_heads;
    json["head_dim"] = config.head_dim;
    if (config.has_latent_attention()) json["latent_attention"] = describe_latents(config.latent);
    json["vocab_size"] = config.vocab_size;
}

Json kv_bytes_per_token(const engine::ModelConfig& config) {
    const auto bytes = [&](kernels::DType dtype) {
        return engine::position_bytes(engine::kv_layouts_of(config, engine::Split(config, 0, 1), dtype));
    };
    return {{"bf16", bytes(kernels::DType::bf16)}, {"fp32", bytes(kernels::DType::f32)}};
}

/// Linear attention: its heads, and what a sequence keeps of any length.
Json describe_linear_attention(const engine::ModelConfig& config) {
    const engine::LinearAttentionConfig& linear = config.linear;
    const kernels::DeltaShape shape = linear.shape(1);
    const auto layouts = engine::kv_layouts_of(config, engine::Split(config, 0, 1), kernels::DType::bf16);
    const std::int64_t layers = engine::state_layout(layouts)->num_layers;
    const bool is_mamba = linear.rule == kernels::StateRule::sum;  // heads of a group have one query and key
    return {{"rule", is_mamba ? "mamba2" : "gated delta"},
            {"key_heads", is_mamba ? linear.num_groups : linear.num_key_heads},
            {"value_heads", linear.num_value_heads},
            {"key_dim", linear.key_dim},
            {"value_dim", linear.value_dim},
            {"convolution", linear.taps},
            {"state_bytes", shape.sequence_floats(layers) * std::int64_t{sizeof(float)}}};
}

Json describe_weights(const fs::path& folder) {
    const auto tensors = engine::SafetensorsFolder::open(folder);
    std::int64_t bytes = 0;
    for (const auto& [name, view] : tensors.tensors()) bytes += view.num_bytes;
    return {
        {"tensors", tensors.tensors().size()}, {"bytes", bytes}, {"fingerprint", engine::hex(tensors.fingerprint())}};
}

std::int64_t num_unrotated_layers(const engine::ModelConfig& config) {
    std::int64_t count = 0;
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const engine::LayerConfig& layer = config.layer(at);
        if (!layer.linear && layer.rope.scaling == engine::RopeScaling::none) ++count;
    }
    return count;
}

Json describe_model(const fs::path& folder) {
    const auto config = engine::ModelConfig::load(folder);
    const auto tokenizer = load_tokenizer(folder, config);
    Json json{{"kind", "model"},
              {"folder", folder.string()},
              {"model_type", config.model_type},
              {"parameters", engine::num_parameters(config)},
              {"dtype", config.dtype}};
    if (!config.quantization.empty()) json["quantization"] = config.quantization;
    json["layers"] = config.num_layers;
    if (config.num_blocks() != config.num_layers) json["layers_in_files"] = config.num_blocks();
    describe_shape(config, json);
    if (config.has_experts()) json["experts"] = describe_experts(config);
    json["tied_embeddings"] = config.tied_embeddings;
    if (engine::holds_mtp_layer(folder)) json["mtp_layer"] = true;
    json["context"] = config.max_positions;
    json["eos_ids"] = config.eos_ids;
    if (config.learned_positions) {
        json["positions"] = "learned";
    } else {
        json["rope"] = describe_rope(config.rope());
        if (const std::int64_t count = num_unrotated_layers(config); count > 0) json["unrotated_layers"] = count;
    }
    if (const auto groups = config.layer_groups(); groups.size() > 1 || groups.front().window > 0)
        json["layer_groups"] = describe_groups(config);
    if (config.has_linear_attention()) json["linear_attention"] = describe_linear_attention(config);
    json["kv_bytes_per_token"] = kv_bytes_per_token(config);
    json["weights"] = describe_weights(folder);
    json["tokenizer"] = describe_tokenizer(*tokenizer);
    return json;
}

/// Of all tensors of a folder.
std::int64_t num_parameters(const engine::SafetensorsFolder& folder) {
    std::int64_t parameters = 0;
    for (const auto& [name, view] : folder.tensors())
        parameters += std::accumulate(view.shape.begin(), view.shape.end(), std::int64_t{1}, std::multiplies<>());
    return parameters;
}

/// A draft layer, which has no tokenizer of its own. Whether it fits a target shows only beside that target.
Json describe_draft_layer(const fs::path& folder, const std::string& method) {
    const std::string file = (folder / "config.json").string();
    const Json fields = engine::draft_layer_fields(folder).json;
    const auto config = engine::ModelConfig::load(folder, fields);
    const auto tensors = engine::SafetensorsFolder::open(folder);
    const auto num_rows = [&](const std::string& name) {
        const auto found = tensors.tensors().find(name);
        return found == tensors.tensors().end() || found->second.shape.empty() ? 0 : found->second.shape.front();
    };
    const bool own_head = !engine::eagle3_prefix(tensors).empty();
    Json json{{"kind", "draft layer"},
              {"folder", folder.string()},
              {"draft", method},
              {"layout", own_head            ? "EAGLE-3"
                         : method == "eagle" ? "EAGLE 1 and 2"
                                             : method},
              {"parameters", num_parameters(tensors)},
              {"dtype", config.dtype}};
    describe_shape(config, json);
    if (own_head) json["draft_vocab_size"] = num_rows("lm_head.weight");
    if (method != "eagle") {
        json["token_info_rank"] = engine::get_int_or(fields, "token_info_rank", 0, 0, config.vocab_size, file);
        json["hot_tokens"] = tensors.contains("hot_tokens") ? Json(num_rows("hot_tokens")) : Json("all");
    }
    json["rope"] = describe_rope(config.rope());
    json["kv_bytes_per_token"] = kv_bytes_per_token(config);
    json["weights"] = describe_weights(folder);
    return json;
}

/// Whether the folder holds draft heads without the model they belong to.
bool holds_heads_alone(const fs::path& folder) {
    const auto config = engine::try_parse_json(engine::read_file(folder / "config.json", std::int64_t{1} << 24));
    return config.is_object() && config.contains("medusa_heads") && !config.contains("num_hidden_layers");
}

/// Draft heads. Whether they fit a target shows only beside that target.
Json describe_heads(const fs::path& folder) {
    const std::string file = (folder / "config.json").string();
    engine::ModelConfig target;
    target.hidden_size = engine::get_int(engine::read_json(file), "hidden_size", 1, std::int64_t{1} << 17, file);
    const auto heads = engine::HeadsConfig::load(folder, target);
    const std::string chained = heads.chained ? (*heads.chained ? "tokenswift" : "medusa") : "medusa or tokenswift";
    Json json{{"kind", "draft heads"}, {"folder", folder.string()}, {"draft", chained}, {"heads", heads.num_heads}};
    json["chained"] = heads.chained ? Json(*heads.chained) : Json("not recorded");
    json["hidden_size"] = heads.hidden_size;
    json["parameters"] = num_parameters(engine::SafetensorsFolder::open(folder));
    json["weights"] = describe_weights(folder);
    return json;
}

/// A LoRA adapter. Whether it fits a model shows only beside that model (`check`).
Json describe_adapter(const fs::path& folder) {
    const auto adapter = engine::Adapter::open(folder);
    Json json{{"kind", "LoRA adapter"}, {"folder", folder.string()}, {"matrices", adapter.pairs().size()}};
    const auto list = [&](auto value_of) {
        std::set<Json> values;
        for (const auto& [module, pair] : adapter.pairs()) values.insert(value_of(module, pair));
        return values.size() == 1 ? *values.begin() : Json(values);
    };
    json["rank"] = list([](const auto&, const auto& pair) { return Json(pair.rank); });
    json["scale"] = list([](const auto&, const auto& pair) { return Json(pair.scale); });
    json["modules"] = list([](const auto& module, const auto&) { return Json(module.substr(module.rfind('.') + 1)); });
    json["parameters"] = num_parameters(adapter.tensors());
    json["fingerprint"] = engine::hex(adapter.fingerprint());
    return json;
}

/// Half-open range [first, end).
Json range(std::int64_t first, std::int64_t end) {
    return {{"first", first}, {"end", end}};
}

Json describe_item(const engine::ItemDelta& item) {
    const std::int64_t tokens = item.tokens.size();
    const auto width = std::max<std::int64_t>(item.drafter.row_width, 1);
    return {{"key", item.key},
            {"prompt_tokens", item.prompt_tokens},
            {"tokens", range(item.first_token, item.first_token + tokens)},
            {"kv_positions", range(item.kv_begin, item.kv_end)},
            {"drafter", item.drafter.kind},
            {"drafter_rows", static_cast<std::int64_t>(item.drafter.rows.size()) / width},
            {"previous_commit", item.previous_commit}};
}

Json describe_commit(const fs::path& path) {
    const engine::Commit commit = engine::read_commit(path);
    const engine::CheckpointIdentity& identity = commit.identity;
    Json json{{"kind", "checkpoint"},
              {"file", path.string()},
              {"replica", commit.replica},
              {"epoch", commit.epoch},
              {"round", commit.round}};
    json["identity"] = {{"job", identity.job},
                        {"model", identity.model},
                        {"tokenizer", identity.tokenizer},
                        {"numerics_version", identity.numerics_version},
                        {"kv_dtype", identity.kv_dtype},
                        {"layers", identity.num_layers},
                        {"kv_heads", identity.num_kv_heads},
                        {"head_dim", identity.head_dim}};
    json["items"] = Json::array();
    for (const engine::ItemDelta& item : commit.items) json["items"].push_back(describe_item(item));
    json["kv_files"] = Json::array();
    for (const engine::KvFile& file : commit.kv_files) {
        json["kv_files"].push_back({{"name", file.name},
                                    {"bytes", file.num_bytes},
                                    {"checksum", engine::hex(file.checksum)},
                                    {"kv_heads", range(file.first_kv_head, file.first_kv_head + file.num_kv_heads)}});
    }
    return json;
}

/// A value as text on one line: "a, b", "x 1, y 2".
std::string one_line(const Json& value) {
    if (value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty())) return "none";
    if (value.is_string()) return engine::printable(value.get<std::string>(), 300);
    if (!value.is_structured()) return engine::json_text(value);
    std::string line;
    for (const auto& [key, entry] : value.items()) {
        if (!line.empty()) line += ", ";
        if (value.is_object()) line += key + " ";
        // Brackets show which members belong to a nested object.
        line += entry.is_object() ? "(" + one_line(entry) + ")" : one_line(entry);
    }
    return line.empty() ? "none" : line;
}

std::string table_of(const Json& description) {
    std::string text;
    for (const auto& [key, value] : description.items()) {
        std::string name = key;
        std::replace(name.begin(), name.end(), '_', ' ');
        const bool list = value.is_array() && !value.empty() && value.front().is_object();
        text += name + std::string(name.size() < 20 ? 20 - name.size() : 1, ' ') +
                (list ? std::to_string(value.size()) : one_line(value)) + "\n";
        for (std::size_t i = 0; list && i < value.size(); ++i) text += "  " + one_line(value[i]) + "\n";
    }
    return text;
}

Json describe_folder(const fs::path& folder) {
    std::error_code error;
    if (fs::exists(folder / "adapter_config.json", error) && !fs::exists(folder / "config.json", error))
        return describe_adapter(folder);
    const std::string method = engine::method_of_draft_layer(folder);
    if (method.empty() && holds_heads_alone(folder)) return describe_heads(folder);
    return method.empty() ? describe_model(folder) : describe_draft_layer(folder, method);
}

[[noreturn]] void refuse_path(const fs::path& path, const std::string& got) {
    throw UsageError(InputError::format(
        path.string(), "", "a model folder, the folder of a draft layer, or a checkpoint file (.h5)", got, ""));
}

Json describe(const fs::path& path) {
    std::error_code error;
    if (fs::status(path, error).type() == fs::file_type::not_found) refuse_path(path, "a path that does not exist");
    if (fs::is_directory(path, error)) {
        if (fs::exists(path / "job.cfg", error) && !fs::exists(path / "config.json", error)) {
            throw UsageError(InputError::format(path.string(), "", "a model folder or a checkpoint file",
                                                "a run folder", "`longhaul status` shows it"));
        }
        return describe_folder(path);
    }
    if (path.filename() == "config.json" || path.extension() == ".safetensors")
        return describe_folder(fs::absolute(path).parent_path());
    if (path.extension() != ".h5") refuse_path(path, "another file");
    // R-EPOCH-ROUND.T.h5 holds the KV cache of rank T; R-EPOCH-ROUND.h5 is the commit.
    const std::string stem = path.stem().string();
    if (path.extension() == ".h5" && stem.find('.') != std::string::npos) {
        throw UsageError(InputError::format(path.string(), "", "a commit", "keys and values of one rank",
                                            "inspect " + stem.substr(0, stem.find('.')) + ".h5, which lists them"));
    }
    return describe_commit(path);
}

}  // namespace

int inspect_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("inspect"));
    const Json description = describe(line.places.front());
    const std::string text = line.has("json") ? engine::json_text(description, 2) + "\n" : table_of(description);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return static_cast<int>(ExitCode::done);
}

}  // namespace longhaul::runner
