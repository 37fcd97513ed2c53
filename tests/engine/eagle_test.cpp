// EAGLE 1 to 3 in a whole replica: drafts of a layer on the target's hidden states change the speed, never the text of
// `coupled`; `recursive` gives one text, whatever the batch, the split and the interruptions. Also the shape of its
// trees, and folders with faults.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "engine/draft/drafter.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/error.hpp"
#include "engine/json.hpp"
#include "tests/engine/draft_layer_harness.hpp"
#include "tests/engine/replica_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using EagleTexts = std::map<std::int64_t, std::vector<std::int32_t>>;

TEST(Eagle, CoupledGivesTheTextOfPlainDecoding) {
    const TensorsFolder layer(layer_tensors(), layer_config);
    for (const char* tree : {"1", "3", "4x3:8", "10x4:20"}) {
        for (const std::int64_t batch : {1, 4}) {
            Job job = layer_job("eagle", VerifyRule::coupled, layer);
            job.options.draft.tree = tree;
            job.options.batch = batch;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain_texts(job)) << tree << ", batch " << batch;
            EXPECT_GT(result.sum.accepted, 20) << tree;
        }
    }
    Job sized = layer_job("eagle", VerifyRule::coupled, layer);
    sized.options.draft.tree = "auto";
    EXPECT_EQ(tokens_of(launch(sized).items), plain_texts(sized));
    Job split = layer_job("eagle", VerifyRule::coupled, layer);
    for (const int ranks : {2, 4}) {
        for (const auto parallel : {DraftLayer::Parallel::sharded, DraftLayer::Parallel::replicated}) {
            split.ranks = ranks;
            split.layer_parallel = parallel;
            const JobResult result = launch(split);
            EXPECT_EQ(tokens_of(result.items), plain_texts(split)) << ranks << " ranks";
            EXPECT_GT(result.sum.accepted, 20) << ranks << " ranks";
        }
    }
    for (const Precision precision : {Precision::fp32, Precision::int8}) {
        Job job = layer_job("eagle", VerifyRule::coupled, layer);
        job.precision = precision;
        EXPECT_EQ(tokens_of(launch(job).items), plain_texts(job));
    }
}

TEST(Eagle, CoupledGoesOnAfterInterruptions) {
    const TensorsFolder layer(layer_tensors(), layer_config);
    Job job = layer_job("eagle", VerifyRule::coupled, layer);
    const auto folder = std::filesystem::temp_directory_path() / ("eagle_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    job.options.draft.tree = "16x2:32";
    const JobResult result = launch_in_parts({job}, folder, 97);
    EXPECT_EQ(tokens_of(result.items), plain_texts(job));
    EXPECT_GT(result.sum.resumes, 1);
    std::int64_t accepted = 0;
    for (const auto& [index, item] : result.items) accepted += item.statistics.accepted;
    EXPECT_GT(accepted, launch(job).sum.accepted / 2) << "after a resume it drafts as well as before";
    std::filesystem::remove_all(folder);
}

// The layer's keys and values are computed in other portions each time: chunks of a prompt, accepted tokens, all of a
// text after a resume. The drafts decide the text, so it shows that they are the same.
TEST(Eagle, RecursiveGivesOneTextWhateverTheBatchTheSplitAndTheInterruptions) {
    const TensorsFolder layer(layer_tensors(), layer_config);
    Job job = layer_job("eagle", VerifyRule::recursive, layer);
    const EagleTexts alone = expect_one_text(job);
    EXPECT_NE(alone, plain_texts(job)) << "an independent draw";
    job.ranks = 4;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "4 ranks";
    job.layer_parallel = DraftLayer::Parallel::replicated;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "4 ranks, each with the whole layer";
    job.ranks = 1;
    job.options.batch = 3;
    job.options.prefill_chunk = 7;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "other chunks";
    job.options.kv_memory_bytes = std::int64_t{400} << 10;  // sequences are preempted
    job.options.batch = 8;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "short memory";
}

TEST(Eagle, TextsAreDistributedAsTheTargets) {
    const std::vector<std::int32_t> prompt{0, 1, 4, 9, 17, 26};
    const TensorsFolder layer(tensors_that_know(prompt), layer_config);
    for (const VerifyRule::Value rule : {VerifyRule::coupled, VerifyRule::recursive}) {
        Job job = layer_job("eagle", rule, layer);
        job.options.draft.tree = "3x2:6";
        expect_distribution_of_target(job, prompt, 2000);
    }
}

/// A layer of EAGLE-3 for the golden's target, trained for nothing: the golden's.
Job eagle3_job(VerifyRule verify) {
    Job job{base_options()};
    job.model = LONGHAUL_TEST_DATA "/parity/llama-8-layers";
    job.layer = LONGHAUL_TEST_DATA "/eagle/eagle3-llama";
    job.options.draft.method = "eagle";
    job.options.draft.tree = "8x2:16";
    job.options.verify = verify;
    job.generation.max_tokens = 100;
    return job;
}

TEST(Eagle3, CoupledGivesTheTextOfPlainDecoding) {
    Job job = eagle3_job(VerifyRule::coupled);
    const EagleTexts plain = plain_texts(job);
    for (const std::int64_t batch : {1, 4}) {
        for (const int ranks : {1, 2, 4}) {
            job.options.batch = batch;
            job.ranks = ranks;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain) << "batch " << batch << ", " << ranks << " ranks";
            EXPECT_GT(result.sum.accepted, 5);
        }
    }
    job.ranks = 1;
    for (const Precision precision : {Precision::fp32, Precision::int8}) {
        job.precision = precision;
        EXPECT_EQ(tokens_of(launch(job).items), plain_texts(job));
    }
}

TEST(Eagle3, RecursiveGivesOneTextWhateverTheBatchTheSplitAndTheInterruptions) {
    Job job = eagle3_job(VerifyRule::recursive);
    const EagleTexts alone = expect_one_text(job);
    EXPECT_NE(alone, plain_texts(job));
    job.options.prefill_chunk = 7;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "other chunks";
}

TEST(Eagle3, FoldersWithFaultsAreRefusedInOneLine) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    const auto model = Model::load(eagle3_job(VerifyRule::coupled).model, Precision::bf16, *device, *group);
    const std::filesystem::path good = LONGHAUL_TEST_DATA "/eagle/eagle3-llama";
    const auto folder = std::filesystem::temp_directory_path() / ("eagle3_test." + std::to_string(getpid()));
    const Json config = read_json(good / "config.json");
    /// The message for the golden's folder with other entries in config.json, and an edit of its file of tensors.
    const auto message = [&](const Json& entries, const std::function<void(std::string&)>& edit = {}) -> std::string {
        std::filesystem::remove_all(folder);
        std::filesystem::create_directories(folder);
        Json changed = config;
        changed.update(entries);
        std::ofstream(folder / "config.json") << changed;
        std::stringstream bytes;
        bytes << std::ifstream(good / "model.safetensors", std::ios::binary).rdbuf();
        std::string tensors = bytes.str();
        if (edit) edit(tensors);
        std::ofstream(folder / "model.safetensors", std::ios::binary) << tensors;
        try {
            DraftLayer layer(folder, *model, find_draft_method("eagle"));
        } catch (const Error& error) {
            return error.what();
        }
        return "(no error)";
    };
    const auto expect_refused = [](const std::string& message, const std::string& part) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos);
    };
    /// Sets the first entry of d2t.
    const auto first_offset = [](std::int64_t offset) {
        return [offset](std::string& tensors) {
            std::uint64_t size = 0;
            std::memcpy(&size, tensors.data(), sizeof size);
            const Json header = Json::parse(tensors.substr(8, size));
            std::memcpy(&tensors[8 + size + header["d2t"]["data_offsets"][0].get<std::size_t>()], &offset, 8);
        };
    };
    const auto renamed = [](const std::string& from, const std::string& to) {
        return [from, to](std::string& tensors) { tensors.replace(tensors.find(from), from.size(), to); };
    };
    const Json unchanged = Json::object();
    EXPECT_EQ(message(unchanged), "(no error)");
    EXPECT_EQ(message({{"architectures", {"LlamaForCausalLMEagle3"}}}), "(no error)");
    EXPECT_EQ(message({{"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {1, 4, 6}}}}}), "(no error)");
    EXPECT_EQ(message({{"eagle_aux_hidden_state_layer_ids", Json::array()}}), "(no error)") << "the default";
    expect_refused(message({{"eagle_aux_hidden_state_layer_ids", {1, 4, 7}}}), "expected layers from 0 to 7, got");
    expect_refused(message({{"norm_before_fc", true}}), "input_norm.weight: expected a tensor of shape [96]");
    expect_refused(message({{"norm_before_fc", true}, {"fc_norm", true}}),
                   "fc_norm: expected false beside norm_before_fc, got true");
    expect_refused(message({{"speculators_model_type", "eagle3"}, {"embed_requires_grad", true}}),
                   "embed_requires_grad: expected false, got true");
    expect_refused(message({{"speculators_model_type", "peagle"}}),
                   "speculators_model_type: expected \"eagle3\", got \"peagle\"; others are not in this version");
    expect_refused(message({{"speculators_model_type", "eagle3"}}),
                   "transformer_layer_config.model_type: expected \"llama\" or \"qwen3\", got \"\"");
    expect_refused(message({{"draft_layer", "lyanna"}}), "draft_layer: expected none, as in a layer of EAGLE, got");
    EXPECT_THROW(DraftLayer(folder, *model, find_draft_method("lyanna")), InputError) << "this form reads tokens";
    const auto taps = [&](const std::vector<std::int64_t>& named) {
        EXPECT_EQ(message({{"eagle_aux_hidden_state_layer_ids", named}}), "(no error)");
        return DraftLayerConfig::load(folder, model->config(), find_draft_method("eagle")).eagle3.tap_layers;
    };
    EXPECT_EQ(taps({2, 3, 6}), (std::vector<std::int64_t>{2, 3, 6})) << "whose inputs are read";
    EXPECT_EQ(taps({1, 3, 6}), (std::vector<std::int64_t>{2, 4, 7})) << "whose outputs are read";
    expect_refused(message({{"eagle_aux_hidden_state_layer_ids", {2, 4, 8}}}),
                   "eagle_aux_hidden_state_layer_ids: expected layers from 0 to 7, got");
    expect_refused(message({{"eagle_aux_hidden_state_layer_ids", {2, 4}}}), "fc.weight: expected shape [32, 64]");
    expect_refused(message({{"draft_vocab_size", 39}}), "d2t: expected 39 offsets, as draft_vocab_size says, got 40");
    expect_refused(message(unchanged, renamed("\"d2t\"", "\"d2u\"")),
                   "draft_vocab_size: expected 96, or a tensor d2t, got 40");
    expect_refused(message(unchanged, first_offset(96)), "d2t: expected offsets to tokens below 96, got 96");
    expect_refused(message(unchanged, first_offset(-1)), "d2t: expected offsets to tokens below 96, got -1");
    expect_refused(
        message(unchanged, first_offset(read_json(good / "drafts.json")["token_ids"][3].get<std::int64_t>())),
        "d2t: expected each token once, got");
    expect_refused(message(unchanged, renamed("midlayer.hidden_norm", "midlayer.hidden_narm")),
                   "midlayer.hidden_norm.weight");
    const auto small = Model::load(tiny_model, Precision::bf16, *device, *group);
    EXPECT_THROW(DraftLayer(good, *small, find_draft_method("eagle")), InputError) << "another width, two layers";
    ModelConfig counts_mlps = model->config();
    counts_mlps.layers.back().block = 2 * (counts_mlps.num_layers - 1);
    try {
        (void)DraftLayerConfig::load(good, counts_mlps, find_draft_method("eagle"));
        ADD_FAILURE() << "layers of the target that no file counts";
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("expected a target whose files count layers of attention with an MLP"),
                  std::string::npos)
            << error.what();
    }
    std::filesystem::remove_all(folder);
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

// Nodes that do not pay are left out, and those whose children would not pay are not expanded: each tree has its own
// size.
TEST(DynamicTree, LeavesOutWhatDoesNotPay) {
    const auto method = make_dynamic_tree({.width = 2, .depth = 2, .max_nodes = 4});
    const auto grown = [&](const TreePrices& prices, std::size_t expanded) {
        TokenTree tree;
        tree.reset(9);
        const auto growth = method->begin(tree, Noise{1, Noise::Kind::silent}, 5, 2, TreeLimits::none, prices);
        std::vector<Distribution> root{distribution({0.6, 0.3, 0.1})};
        growth->grow(root);
        EXPECT_EQ(growth->wanted().size(), expanded);
        std::vector<Distribution> next{distribution({0.5, 0.4, 0.1}), distribution({0.9, 0.05, 0.05})};
        if (next.resize(expanded); expanded > 0) growth->grow(next);
        EXPECT_TRUE(growth->wanted().empty());
        return tree.token;
    };
    using Tokens = std::vector<std::int32_t>;
    EXPECT_EQ(grown({.node = 0.28}, 2), (Tokens{9, 0, 1, 0}));
    EXPECT_EQ(grown({.node = 0.5}, 2), (Tokens{9, 0}));
    EXPECT_EQ(grown({.node = 0.7}, 2), (Tokens{9}));
    EXPECT_EQ(grown({.level = 0.5}, 1), (Tokens{9, 0, 1, 0, 1}));
    EXPECT_EQ(grown({.level = 0.7}, 0), (Tokens{9, 0, 1}));
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
    const EagleTexts plain = plain_texts(job);
    job.options.draft.method = "eagle";
    job.layer = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "eagle";
    for (const auto& [tree, least] : {std::pair("3", 1.8), {"4x3:8", 2.0}}) {
        job.options.draft.tree = tree;
        const JobResult result = launch(job);
        EXPECT_EQ(tokens_of(result.items), plain) << tree;
        EXPECT_GT(static_cast<double>(result.sum.decode_tokens) / static_cast<double>(result.sum.target_calls), least);
    }
}

TEST(Eagle, LayersInPublishedLayoutsGiveTheLogitsAndTreesOfPyTorch) {
    for (const char* name : {"eagle/eagle1-llama", "eagle/eagle2-qwen2", "eagle/eagle3-llama",
                             "eagle/speculators-llama", "eagle/speculators-qwen3"}) {
        SCOPED_TRACE(name);
        LayerGolden golden(name, "eagle");
        golden.expect_chain();
        DraftOptions options;
        options.method = "eagle";
        options.tree = "3x3:8";
        options.layer = &golden.layer;
        expect_tree(golden.propose(golden.drafting(options), golden.tokens, 3), golden.json["tree"]);
    }
}

TEST(Eagle, FoldersWithFaultsAreRefusedInOneLine) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    const auto message = [&](const std::filesystem::path& folder) -> std::string {
        try {
            DraftLayer layer(folder, *model, find_draft_method("eagle"));
        } catch (const Error& error) {
            return error.what();
        }
        return "(no error)";
    };
    EXPECT_EQ(message(TensorsFolder(layer_tensors(), layer_config).path()), "(no error)");
    const TensorsFolder other_width(layer_tensors(), config_with(R"("hidden_size": 64)", R"("hidden_size": 32)"));
    EXPECT_NE(message(other_width.path()).find("config.json: hidden_size: expected 64, got 32"), std::string::npos)
        << message(other_width.path());
    const TensorsFolder other_vocabulary(layer_tensors(), config_with(R"("vocab_size": 96)", R"("vocab_size": 100)"));
    EXPECT_NE(message(other_vocabulary.path()).find("config.json: vocab_size: expected 96, got 100"),
              std::string::npos);
    EXPECT_NE(
        message(tiny_model).find("config.json: num_hidden_layers: expected 1, got 2; draft = eagle takes a draft"),
        std::string::npos);
    const TensorsFolder with_bias(layer_tensors(), config_with("}", R"(, "qkv_bias": true})"));
    EXPECT_NE(message(with_bias.path()).find("layers.0.self_attn.q_proj.bias"), std::string::npos)
        << message(with_bias.path());
    const TensorsFolder other_heads(layer_tensors(),
                                    config_with(R"("num_key_value_heads": 4)", R"("num_key_value_heads": 8)"));
    EXPECT_NE(message(other_heads.path()).find("layers.0.self_attn.k_proj.weight"), std::string::npos);
    Json gemma = Json::parse(layer_config);
    gemma.update({{"model_type", "gemma4_text"},
                  {"architectures", {"Gemma4ForCausalLM"}},
                  {"hidden_size_per_layer_input", 8},
                  {"vocab_size_per_layer_input", 96}});
    gemma.erase("hidden_act");
    const std::string refused = message(TensorsFolder(layer_tensors(), gemma.dump()).path());
    EXPECT_NE(refused.find("hidden_size_per_layer_input: expected 0 in a draft layer, got 8"), std::string::npos)
        << refused;
    EXPECT_NE(message(LONGHAUL_TEST_DATA "/parity/opt-post-norm-bf16").find("got a layer with learned positions"),
              std::string::npos);
    for (const char* family : {"cohere", "nemotron3"}) {
        const std::string line = message(std::string(LONGHAUL_TEST_DATA "/parity/") + family);
        EXPECT_NE(line.find("model_type: expected a layer of attention with an MLP behind it"), std::string::npos)
            << line;
    }
    for (const char* family : {"stablelm", "nemotron"}) {
        const std::string line = message(std::string(LONGHAUL_TEST_DATA "/parity/") + family);
        EXPECT_NE(line.find("model_type: expected a layer with RMS norms as Llama has them"), std::string::npos)
            << line;
    }
    const auto opt = Model::load(LONGHAUL_TEST_DATA "/parity/opt-bf16", Precision::bf16, *device, *group);
    EXPECT_THROW(DraftLayer(TensorsFolder(layer_tensors(), layer_config).path(), *opt, find_draft_method("eagle")),
                 InputError);
    std::vector<HeadTensor> tensors = layer_tensors();
    tensors[3].values[5] = std::nanf("");
    const TensorsFolder not_finite(tensors, layer_config);
    EXPECT_NE(message(not_finite.path()).find("layers.0.self_attn.k_proj.weight: expected finite weights"),
              std::string::npos)
        << message(not_finite.path());
}

}  // namespace
}  // namespace longhaul::engine
