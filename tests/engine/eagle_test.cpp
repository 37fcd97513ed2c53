// EAGLE in a whole replica: drafts of a layer on the target's hidden states change the speed, never the text of
// `coupled`; `recursive` gives one text, whatever the batch, the split and the interruptions. Also the shape of its
// trees, and folders with faults.
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/draft/drafter.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/json.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/replica_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using EagleTexts = std::map<std::int64_t, std::vector<std::int32_t>>;

constexpr const char* layer_config =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4,
        "hidden_act": "silu", "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"})";

/// The config with `to` in place of `from`.
std::string config_with(const std::string& from, const std::string& to) {
    std::string config = layer_config;
    return config.replace(config.find(from), from.size(), to);
}

/// A layer in the layout of EAGLE 1: random, but its fusion passes the state on, so that it guesses better than chance.
std::vector<HeadTensor> layer_tensors() {
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

struct LayerFolder : TensorsFolder {
    explicit LayerFolder(const std::string& config = layer_config) : TensorsFolder(layer_tensors(), config) {}
};

Job eagle_job(VerifyRule verify, const TensorsFolder& layer) {
    Job job{base_options()};
    job.options.draft.method = "eagle";
    job.options.draft.tree = "4x3:8";
    job.options.verify = verify;
    job.layer = layer.path();
    job.generation.max_tokens = 150;
    return job;
}

EagleTexts plain_eagle_texts(Job job) {
    job.options.draft.method = "ar";
    return tokens_of(launch(job).items);
}

TEST(Eagle, CoupledGivesTheTextOfPlainDecoding) {
    const LayerFolder layer;
    for (const char* tree : {"1", "3", "4x3:8", "10x4:20"}) {
        for (const std::int64_t batch : {1, 4}) {
            Job job = eagle_job(VerifyRule::coupled, layer);
            job.options.draft.tree = tree;
            job.options.batch = batch;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain_eagle_texts(job)) << tree << ", batch " << batch;
            EXPECT_GT(result.sum.accepted, 20) << tree;
        }
    }
    Job split = eagle_job(VerifyRule::coupled, layer);
    for (const int ranks : {2, 4}) {
        split.ranks = ranks;
        EXPECT_EQ(tokens_of(launch(split).items), plain_eagle_texts(split)) << ranks << " ranks";
    }
    for (const Precision precision : {Precision::fp32, Precision::int8}) {
        Job job = eagle_job(VerifyRule::coupled, layer);
        job.precision = precision;
        EXPECT_EQ(tokens_of(launch(job).items), plain_eagle_texts(job));
    }
}

TEST(Eagle, CoupledGoesOnAfterInterruptions) {
    const LayerFolder layer;
    Job job = eagle_job(VerifyRule::coupled, layer);
    const auto folder = std::filesystem::temp_directory_path() / ("eagle_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    job.options.draft.tree = "16x2:32";
    const JobResult result = launch_in_parts({job}, folder, 97);
    EXPECT_EQ(tokens_of(result.items), plain_eagle_texts(job));
    EXPECT_GT(result.sum.resumes, 1);
    std::int64_t accepted = 0;
    for (const auto& [index, item] : result.items) accepted += item.statistics.accepted;
    EXPECT_GT(accepted, launch(job).sum.accepted / 2) << "after a resume it drafts as well as before";
    std::filesystem::remove_all(folder);
}

// The layer's keys and values are computed in other portions each time: chunks of a prompt, accepted tokens, all of a
// text after a resume. The drafts decide the text, so it shows that they are the same.
TEST(Eagle, RecursiveGivesOneTextWhateverTheBatchTheSplitAndTheInterruptions) {
    const LayerFolder layer;
    Job job = eagle_job(VerifyRule::recursive, layer);
    const EagleTexts alone = expect_one_text(job);
    EXPECT_NE(alone, plain_eagle_texts(job)) << "an independent draw";
    job.ranks = 4;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "4 ranks";
    job.ranks = 1;
    job.options.batch = 3;
    job.options.prefill_chunk = 7;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "other chunks";
    job.options.kv_memory_bytes = std::int64_t{400} << 10;  // sequences are preempted
    job.options.batch = 8;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "short memory";
}

/// A layer whose output is always the target's state after `prompt`, so that it is right about the token after it.
std::vector<HeadTensor> tensors_that_know(const std::vector<std::int32_t>& prompt) {
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

TEST(Eagle, TextsAreDistributedAsTheTargets) {
    const std::vector<std::int32_t> prompt{0, 1, 4, 9, 17, 26};
    const TensorsFolder layer(tensors_that_know(prompt), layer_config);
    for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive}) {
        Job job = eagle_job(rule, layer);
        job.options.draft.tree = "3x2:6";
        expect_distribution_of_target(job, prompt, 2000);
    }
}

/// A distribution over tokens 0, 1, … with these probabilities.
Distribution distribution(const std::vector<double>& q) {
    Distribution p;
    for (std::size_t i = 0; i < q.size(); ++i) {
        p.ids.push_back(static_cast<std::int32_t>(i));
        p.log_weights.push_back(std::log(q[i]));
        p.q.push_back(q[i]);
    }
    return p;
}

// All children are candidates, also those of a level that are not expanded; the best of all levels are kept.
TEST(DynamicTree, KeepsTheBestOfAllCandidates) {
    TokenTree tree;
    tree.reset(9);
    const auto method = make_dynamic_tree({.width = 2, .depth = 2, .max_nodes = 4});
    const auto growth = method->begin(tree, Noise{1, Noise::Kind::silent}, 5, 2);
    std::vector<Distribution> root{distribution({0.6, 0.3, 0.1})};
    growth->grow(root);
    ASSERT_EQ(growth->wanted().size(), 2U);
    std::vector<Distribution> next{distribution({0.5, 0.4, 0.1}), distribution({0.9, 0.05, 0.05})};
    growth->grow(next);
    EXPECT_TRUE(growth->wanted().empty());
    // Joint probabilities: 0.6, 0.3; 0.30 and 0.24 below the first; 0.27 and 0.015 below the second.
    EXPECT_EQ(tree.token, (std::vector<std::int32_t>{9, 0, 1, 0, 0}));
    EXPECT_EQ(tree.parent, (std::vector<std::int32_t>{-1, 0, 0, 1, 2}));
    EXPECT_FLOAT_EQ(tree.probability[3], 0.3F);
    EXPECT_FLOAT_EQ(tree.probability[4], 0.27F);
}

// The demo's trained layer: chains of its drafts are right more often than not, in chains and more so in trees.
TEST(Eagle, TheDemosLayerGains) {
    Job job{base_options()};
    job.model = LONGHAUL_DEMO_MODEL;
    job.items = 2;
    for (std::int64_t item = 0; item < 2; ++item) job.prompts[item] = {310, 1022, 262, 700, 11};
    job.generation.sampling.penalty_window = 0;
    job.generation.sampling.repetition_penalty = 1;
    job.generation.max_tokens = 120;
    const EagleTexts plain = plain_eagle_texts(job);
    job.options.draft.method = "eagle";
    job.layer = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "eagle";
    for (const auto& [tree, least] : {std::pair("3", 1.8), {"4x3:8", 2.0}}) {
        job.options.draft.tree = tree;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), plain) << tree;
        EXPECT_GT(static_cast<double>(result.sum.decode_tokens) / static_cast<double>(result.sum.target_calls), least);
    }
}

/// drafts.json of a folder of tests/data/eagle (tests/data/parity/README.md), computed by PyTorch.
struct EagleGolden {
    explicit EagleGolden(const std::string& name) : folder(LONGHAUL_TEST_DATA "/eagle/" + name) {
        const Json json = read_json(folder / "drafts.json");
        target = std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / json["target"].get<std::string>();
        tokens = json["tokens"].get<std::vector<std::int32_t>>();
        chain = json["chain"].get<std::vector<std::int32_t>>();
        logits = json["logits"].get<std::vector<std::vector<float>>>();
        tree_tokens = json["tree"]["tokens"].get<std::vector<std::int32_t>>();
        tree_parents = json["tree"]["parents"].get<std::vector<std::int32_t>>();
        tree_probabilities = json["tree"]["probabilities"].get<std::vector<float>>();
    }
    std::filesystem::path folder, target;
    std::vector<std::int32_t> tokens, chain, tree_tokens, tree_parents;
    std::vector<std::vector<float>> logits;
    std::vector<float> tree_probabilities;
};

/// Paths of a tree with their probabilities.
std::map<std::vector<std::int32_t>, float> paths_of(const std::vector<std::int32_t>& tokens,
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

TEST(Eagle, LayersInPublishedLayoutsGiveTheLogitsAndTreesOfPyTorch) {
    for (const std::string name : {"eagle1-llama", "eagle2-qwen2"}) {
        SCOPED_TRACE(name);
        const EagleGolden golden(name);
        const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
        const auto group = make_local_group();
        const auto model = Model::load(golden.target, Precision::fp32, *device, *group);
        DraftLayer layer(golden.folder, *model);
        const std::int64_t size = std::ssize(golden.tokens);
        PagePool pool(*device, model->kv_layout(), std::int64_t{1} << 30);
        KvSequence kv(pool);
        ASSERT_TRUE(kv.reserve(size));
        std::vector<ForwardRow> rows;
        Tap tap{.at = Tap::At::normed_hidden, .rows = {}};
        for (std::int64_t position = 0; position + 1 < size; ++position) {
            rows.push_back(text_row(golden.tokens[position], position));
            tap.rows.push_back(static_cast<std::int32_t>(position));
        }
        const KvView view = kv.view();
        const PassResult target =
            model->forward({.rows = rows, .sequences = std::span(&view, 1), .taps = std::span(&tap, 1)});
        kv.set_committed(size - 1);

        // Row by row: the pairs of the text, then the chain.
        PagePool layer_pool(*device, layer.kv_layout(), std::int64_t{1} << 30);
        KvSequence layer_kv(layer_pool);
        ASSERT_TRUE(layer_kv.reserve(size + 4));
        const KvView layer_view = layer_kv.view();
        std::vector<ForwardRow> pairs;
        for (std::int64_t position = 0; position + 1 < size; ++position)
            pairs.push_back(text_row(golden.tokens[position + 1], position));
        HiddenStates state = layer.forward(pairs, std::span(&layer_view, 1), target.taps.front());
        std::vector<std::int32_t> last{static_cast<std::int32_t>(pairs.size()) - 1};
        for (std::size_t step = 0; step < golden.logits.size(); ++step) {
            HiddenStates one = model->hidden_states(1);
            device->gather(state.data(), last, state.width(), one.data());
            static const Norm none;
            Logits logits = model->logits(one, &none);
            const std::span<const float> got = logits.row(0);
            const std::vector<float>& expected = golden.logits[step];
            const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
            for (std::size_t v = 0; v < expected.size(); ++v)
                ASSERT_NEAR(got[v], expected[v], 1e-4 * (*high - *low)) << "step " << step << ", token " << v;
            const ForwardRow next = text_row(golden.chain[step], size - 1 + static_cast<std::int64_t>(step));
            state = layer.forward(std::span(&next, 1), std::span(&layer_view, 1), one);
            last = {0};
        }

        // The drafter's tree at temperature 0.
        DraftOptions options;
        options.method = "eagle";
        options.tree = "3x3:8";
        options.layer = &layer;
        const auto drafter = make_drafter({options, model.get()});
        const auto sequence = drafter->make_sequence({});
        const Observation seen{.sequence = sequence.get(),
                               .context = golden.tokens,
                               .path = {},
                               .first_row = 0,
                               .num_rows = size - 1,
                               .first_position = 0};
        drafter->observe(std::span(&seen, 1), target.taps);
        TokenTree tree;
        tree.reset(golden.tokens.back());
        const SamplingParams greedy{.temperature = 0};
        Proposal proposal{.sequence = sequence.get(),
                          .context = golden.tokens,
                          .noise = {0, Noise::Kind::silent},
                          .sampling = &greedy,
                          .kv = &kv,
                          .text_depth = 9,
                          .max_depth = 9,
                          .tree = &tree};
        drafter->propose(std::span(&proposal, 1));
        const auto expected = paths_of(golden.tree_tokens, golden.tree_parents, golden.tree_probabilities);
        const auto got = paths_of(tree.token, tree.parent, tree.probability);
        ASSERT_EQ(got.size(), expected.size());
        for (const auto& [path, probability] : expected) {
            ASSERT_TRUE(got.contains(path));
            EXPECT_NEAR(got.at(path), probability, 1e-4);
        }
        EXPECT_EQ(proposal.draft_calls, 3);
    }
}

TEST(Eagle, FoldersWithFaultsAreRefusedInOneLine) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    const auto message = [&](const std::filesystem::path& folder) -> std::string {
        try {
            DraftLayer layer(folder, *model);
        } catch (const Error& error) {
            return error.what();
        }
        return "(no error)";
    };
    EXPECT_EQ(message(LayerFolder().path()), "(no error)");
    const LayerFolder other_width(config_with(R"("hidden_size": 64)", R"("hidden_size": 32)"));
    EXPECT_NE(message(other_width.path()).find("config.json: hidden_size: expected 64, got 32"), std::string::npos)
        << message(other_width.path());
    const LayerFolder other_vocabulary(config_with(R"("vocab_size": 96)", R"("vocab_size": 100)"));
    EXPECT_NE(message(other_vocabulary.path()).find("config.json: vocab_size: expected 96, got 100"),
              std::string::npos);
    EXPECT_NE(
        message(tiny_model).find("config.json: num_hidden_layers: expected 1, got 2; draft = eagle takes a draft"),
        std::string::npos);
    const LayerFolder with_bias(config_with("}", R"(, "qkv_bias": true})"));
    EXPECT_NE(message(with_bias.path()).find("layers.0.self_attn.q_proj.bias"), std::string::npos)
        << message(with_bias.path());
    const LayerFolder other_heads(config_with(R"("num_key_value_heads": 4)", R"("num_key_value_heads": 8)"));
    EXPECT_NE(message(other_heads.path()).find("layers.0.self_attn.k_proj.weight"), std::string::npos);
    const LayerFolder third(config_with("}", R"(, "draft_vocab_size": 40})"));
    EXPECT_NE(message(third.path())
                  .find("draft_vocab_size: expected a layer of EAGLE 1 or 2, which has none, got 40; "
                        "layers of EAGLE-3 are not in this version"),
              std::string::npos);
    EXPECT_NE(message(LONGHAUL_TEST_DATA "/parity/opt-post-norm-bf16").find("got a layer of OPT"), std::string::npos);
    const auto opt = Model::load(LONGHAUL_TEST_DATA "/parity/opt-bf16", Precision::bf16, *device, *group);
    EXPECT_THROW(DraftLayer(LayerFolder().path(), *opt), InputError);
    std::vector<HeadTensor> tensors = layer_tensors();
    tensors[3].values[5] = std::nanf("");
    const TensorsFolder not_finite(tensors, layer_config);
    EXPECT_NE(message(not_finite.path()).find("layers.0.self_attn.k_proj.weight: expected finite weights"),
              std::string::npos)
        << message(not_finite.path());
}

}  // namespace
}  // namespace longhaul::engine
