// Folders of draft layers for tests (EAGLE, Lyanna), and goldens of PyTorch for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/json.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine::testing {

/// Of a layer for the tiny model.
constexpr const char* layer_config =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4,
        "hidden_act": "silu", "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"})";

/// The config with `to` in place of `from`.
inline std::string config_with(const std::string& from, const std::string& to) {
    std::string config = layer_config;
    return config.replace(config.find(from), from.size(), to);
}

/// A layer in the layout of EAGLE 1: random, but its fusion passes the state on, so that it guesses better than chance.
inline std::vector<HeadTensor> layer_tensors() {
    constexpr std::int64_t width = 64, intermediate = 96, kv_width = 32;
    RandomTensors random(width);
    random.add_matrix("fc.weight", width, 2 * width);
    std::vector<float>& fusion = random.tensors.back().values;
    for (std::int64_t i = 0; i < width; ++i) fusion[static_cast<std::size_t>(i * 2 * width + width + i)] += 1;
    random.add_bias("fc.bias", width);
    const std::string layer = "layers.0.";
    random.add_matrix(layer + "self_attn.q_proj.weight", width, width);
    random.add_matrix(layer + "self_attn.k_proj.weight", kv_width, width);
    random.add_matrix(layer + "self_attn.v_proj.weight", kv_width, width);
    random.add_matrix(layer + "self_attn.o_proj.weight", width, width);
    random.add_gain(layer + "post_attention_layernorm.weight", width);
    random.add_matrix(layer + "mlp.gate_proj.weight", intermediate, width);
    random.add_matrix(layer + "mlp.up_proj.weight", intermediate, width);
    random.add_matrix(layer + "mlp.down_proj.weight", width, intermediate);
    return std::move(random.tensors);
}

/// Token info of rank 4 for the tokens `hot`, or for all if there are none.
inline std::vector<HeadTensor> with_token_info(std::vector<HeadTensor> tensors, std::vector<std::int64_t> hot = {}) {
    constexpr std::int64_t width = 64, rank = 4;
    const std::int64_t count = hot.empty() ? 96 : std::ssize(hot);
    RandomTensors random(width);
    random.add_matrix("token_info.down.weight", rank, width, 8);
    random.add_matrix("token_info.up.weight", count, rank, 8);
    random.add_gain("token_info.norm.weight", count);
    std::move(random.tensors.begin(), random.tensors.end(), std::back_inserter(tensors));
    if (!hot.empty()) tensors.push_back({"hot_tokens", {count}, {}, std::move(hot)});
    return tensors;
}

inline Job layer_job(const char* method, VerifyRule verify, const TensorsFolder& layer) {
    Job job{base_options()};
    job.options.draft.method = method;
    job.options.draft.tree = "4x3:8";
    job.options.verify = verify;
    job.layer = layer.path();
    job.generation.max_tokens = 150;
    return job;
}

/// A layer whose output is always the target's state after `prompt`, so that it is right about the token after it.
inline std::vector<HeadTensor> tensors_that_know(const std::vector<std::int32_t>& prompt) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    PagePool pool(*device, model->kv_layout(), std::int64_t{1} << 30);
    KvSequence kv(pool);
    EXPECT_TRUE(kv.reserve(std::ssize(prompt)));
    std::vector<ForwardRow> rows;
    for (const std::int32_t token : prompt) rows.push_back(text_row(token, std::ssize(rows)));
    const std::vector<Tap> taps{{.at = Tap::At::normed_hidden, .rows = {static_cast<std::int32_t>(rows.size()) - 1}}};
    const KvView view = kv.view();
    const PassResult result = model->forward({.rows = rows, .sequences = std::span(&view, 1), .taps = taps});
    std::vector<HeadTensor> tensors = layer_tensors();
    for (HeadTensor& tensor : tensors) {
        if (tensor.name.find("norm") == std::string::npos) std::fill(tensor.values.begin(), tensor.values.end(), 0.0F);
        if (tensor.name == "fc.bias")
            std::copy_n(result.taps.front().data(), tensor.values.size(), tensor.values.begin());
    }
    return tensors;
}

/// Paths of a tree with their probabilities.
inline std::map<std::vector<std::int32_t>, float> paths_of(const std::vector<std::int32_t>& tokens,
                                                           const std::vector<std::int32_t>& parents,
                                                           const std::vector<float>& probabilities) {
    std::map<std::vector<std::int32_t>, float> paths;
    for (std::size_t node = 1; node < tokens.size(); ++node) {
        std::vector<std::int32_t> path;
        for (auto at = static_cast<std::int32_t>(node); at > 0; at = parents[at]) path.push_back(tokens[at]);
        std::reverse(path.begin(), path.end());
        paths[path] = probabilities[node];
    }
    return paths;
}

/// drafts.json of a folder of tests/data (parity/README.md there), computed by PyTorch; the target, a folder of
/// parity or the same one, which has read the golden's text except its last token; and the layer.
class LayerGolden {
  public:
    LayerGolden(const std::string& name, const char* method)
        : folder(std::filesystem::path(LONGHAUL_TEST_DATA) / name),
          json(read_json(folder / "drafts.json")),
          tokens(json["tokens"].get<std::vector<std::int32_t>>()),
          device(kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1)),
          group(make_local_group()),
          model(Model::load(target_folder(), Precision::fp32, *device, *group)),
          layer(folder, *model, find_draft_method(method)),
          pool_(*device, model->kv_layouts(), std::int64_t{1} << 30),
          layer_pool_(*device, layer.kv_layout(), std::int64_t{1} << 30),
          kv(pool_),
          layer_kv(layer_pool_) {
        EXPECT_TRUE(kv.reserve(size()));
        EXPECT_TRUE(layer_kv.reserve(size() + 8));
        std::vector<ForwardRow> rows;
        std::vector<Tap> taps = layer.taps();
        for (std::int64_t position = 0; position + 1 < size(); ++position) {
            rows.push_back(text_row(tokens[position], position));
            for (Tap& tap : taps) tap.rows.push_back(static_cast<std::int32_t>(position));
        }
        const KvView view = kv.view();
        target.emplace(model->forward({.rows = rows, .sequences = std::span(&view, 1), .taps = taps}));
        kv.set_committed(size() - 1);
    }

    [[nodiscard]] std::int64_t size() const { return std::ssize(tokens); }
    [[nodiscard]] std::filesystem::path target_folder() const {
        if (!json.contains("target")) return folder;
        return std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / json["target"].get<std::string>();
    }

    /// The layer's output for the last pair of the text, after all pairs before it.
    [[nodiscard]] HiddenStates first_state() {
        std::vector<ForwardRow> pairs;
        for (std::int64_t position = 0; position + 1 < size(); ++position)
            pairs.push_back(text_row(tokens[position + 1], position));
        const KvView view = layer_kv.view();
        std::vector<std::int32_t> all(pairs.size());
        std::iota(all.begin(), all.end(), 0);
        const HiddenStates states = layer.states_of(target->taps, all);
        const HiddenStates out = layer.forward(pairs, std::span(&view, 1), states);
        HiddenStates last = model->hidden_states(1);
        const std::int32_t row = static_cast<std::int32_t>(pairs.size()) - 1;
        device->gather(out.data(), std::span(&row, 1), out.width(), last.data());
        return last;
    }

    /// Logits of the layer's output `state`: those of the golden's step, and no others.
    void expect_logits(const HiddenStates& state, std::size_t step) {
        Logits logits = layer.logits(state);
        const std::span<const float> got = logits.row(0);
        const auto expected = json["logits"][step].get<std::vector<float>>();
        const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const std::size_t token = json.contains("token_ids") ? json["token_ids"][i].get<std::size_t>() : i;
            ASSERT_NEAR(got[token], expected[i], 1e-4 * (*high - *low)) << "step " << step << ", token " << token;
        }
        EXPECT_EQ(std::count(got.begin(), got.end(), absent_logit), std::ssize(got) - std::ssize(expected));
    }

    /// Logits of the golden's chain, whose steps read the layer's own outputs.
    void expect_chain() {
        HiddenStates state = first_state();
        const auto chain = json["chain"].get<std::vector<std::int32_t>>();
        const KvView view = layer_kv.view();
        for (std::size_t step = 0; step < json["logits"].size(); ++step) {
            expect_logits(state, step);
            const ForwardRow next = text_row(chain[step], size() - 1 + static_cast<std::int64_t>(step));
            state = layer.forward(std::span(&next, 1), std::span(&view, 1), state);
        }
    }

    /// The drafter, and its sequence that has observed the text.
    struct Drafting {
        std::unique_ptr<Drafter> drafter;
        std::unique_ptr<SequenceDrafter> sequence;
    };
    [[nodiscard]] Drafting drafting(const DraftOptions& options) {
        Drafting made{make_drafter({options, model.get()}), nullptr};
        made.sequence = made.drafter->make_sequence({});
        const Observation seen{.sequence = made.sequence.get(),
                               .context = tokens,
                               .path = {},
                               .first_row = 0,
                               .num_rows = size() - 1,
                               .first_position = 0};
        made.drafter->observe(std::span(&seen, 1), target->taps);
        return made;
    }
    /// Its tree for `context` at temperature 0, made in `model_passes` passes of the layer.
    [[nodiscard]] TokenTree propose(const Drafting& drafting, std::span<const std::int32_t> context,
                                    std::int64_t model_passes) {
        TokenTree tree;
        tree.reset(context.back());
        const SamplingParams greedy{.temperature = 0};
        Proposal proposal{.sequence = drafting.sequence.get(),
                          .context = context,
                          .noise = {0, Noise::Kind::silent},
                          .sampling = &greedy,
                          .kv = &kv,
                          .text_depth = 9,
                          .max_depth = 9,
                          .tree = &tree};
        drafting.drafter->propose(std::span(&proposal, 1));
        EXPECT_EQ(proposal.model_passes, model_passes);
        return tree;
    }

    std::filesystem::path folder;
    Json json;
    std::vector<std::int32_t> tokens;
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<Group> group;
    std::unique_ptr<Model> model;
    DraftLayer layer;

  private:
    KvPool pool_;
    PagePool layer_pool_;

  public:
    KvSequence kv, layer_kv;
    std::optional<PassResult> target;
};

/// `tree`: tokens, parents and probabilities as drafts.json has them, in any order.
inline void expect_tree(const TokenTree& got, const Json& tree) {
    const auto expected =
        paths_of(tree["tokens"].get<std::vector<std::int32_t>>(), tree["parents"].get<std::vector<std::int32_t>>(),
                 tree["probabilities"].get<std::vector<float>>());
    const auto paths = paths_of(got.token, got.parent, got.probability);
    ASSERT_EQ(paths.size(), expected.size());
    for (const auto& [path, probability] : expected) {
        ASSERT_TRUE(paths.contains(path));
        EXPECT_NEAR(paths.at(path), probability, 1e-4);
    }
}

}  // namespace longhaul::engine::testing
