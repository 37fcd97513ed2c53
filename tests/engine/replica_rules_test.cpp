// Every pair of draft method and verification rule in a whole replica: 20,000 texts of four tokens, several steps each,
// against the target's exact joint distribution (81 texts at top-k 3). What only shows from one step to the next, such
// as random numbers that are used again, shows here. Chi-square at a level (1e-6) that the fixed seed makes safe. Pairs
// that must give the texts of another pair are compared with it, token for token, as are all methods under `coupled`
// with plain decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <set>

#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "engine/verify/verifier.hpp"
#include "tests/engine/draft_layer_harness.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Tokens = std::vector<std::int32_t>;
using Texts = std::map<std::int64_t, Tokens>;

constexpr int num_texts = 20'000;
constexpr int num_compared = 1000;
constexpr std::int64_t text_tokens = 4;
constexpr std::int64_t width = 64, vocab = 6;
const Tokens prompt{0};  // one token: no prefill

// --- models of one layer and six tokens

std::string config_of_six_tokens() {
    return config_with("\"vocab_size\": 96", "\"vocab_size\": " + std::to_string(vocab));
}

std::vector<HeadTensor> target_tensors() {
    constexpr std::int64_t kv_width = 32, intermediate = 96;
    RandomTensors random(width);
    random.add_matrix("model.embed_tokens.weight", vocab, width, 20);
    random.add_matrix("lm_head.weight", vocab, width, 4);
    random.add_gain("model.norm.weight", width);
    const std::string layer = "model.layers.0.";
    random.add_gain(layer + "input_layernorm.weight", width);
    random.add_gain(layer + "post_attention_layernorm.weight", width);
    random.add_matrix(layer + "self_attn.q_proj.weight", width, width, 3);
    random.add_matrix(layer + "self_attn.k_proj.weight", kv_width, width, 3);
    random.add_matrix(layer + "self_attn.v_proj.weight", kv_width, width, 3);
    random.add_matrix(layer + "self_attn.o_proj.weight", width, width, 3);
    random.add_matrix(layer + "mlp.gate_proj.weight", intermediate, width);
    random.add_matrix(layer + "mlp.up_proj.weight", intermediate, width);
    random.add_matrix(layer + "mlp.down_proj.weight", width, intermediate);
    return std::move(random.tensors);
}

/// The target with another output head: right more often than chance.
std::vector<HeadTensor> draft_tensors(unsigned seed) {
    std::vector<HeadTensor> tensors = target_tensors();
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.1F);
    for (HeadTensor& tensor : tensors) {
        if (tensor.name != "lm_head.weight") continue;
        for (float& value : tensor.values) value += normal(random);
    }
    return tensors;
}

/// The target as a model of GLM-4.5's family without experts, with a layer for multi-token prediction that passes the
/// state on.
std::vector<HeadTensor> mtp_tensors() {
    std::vector<HeadTensor> tensors = target_tensors();
    const std::string behind = "model.layers.1.";
    for (HeadTensor tensor : layer_tensors()) {
        if (tensor.name == "fc.bias") continue;
        if (tensor.name == "fc.weight") {
            tensor.name = behind + "eh_proj.weight";
        } else {
            tensor.name.replace(0, std::string("layers.0.").size(), behind);
        }
        tensors.push_back(std::move(tensor));
    }
    RandomTensors gains(width);
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm", "input_layernorm"})
        gains.add_gain(behind + norm + ".weight", width);
    std::move(gains.tensors.begin(), gains.tensors.end(), std::back_inserter(tensors));
    return tensors;
}

std::string mtp_config() {
    Json config = Json::parse(config_of_six_tokens());
    config.update({{"architectures", {"Glm4MoeForCausalLM"}},
                   {"model_type", "glm4_moe"},
                   {"head_dim", 8},
                   {"partial_rotary_factor", 1.0},
                   {"first_k_dense_replace", 1},
                   {"n_routed_experts", 2},
                   {"num_experts_per_tok", 1},
                   {"moe_intermediate_size", 8},
                   {"n_shared_experts", 1}});
    return config.dump();
}

std::string lyanna_config() {
    const std::string config = config_of_six_tokens();
    return config.substr(0, config.rfind('}')) + R"(, "draft_layer": "lyanna", "token_info_rank": 4})";
}

struct Folders {
    TensorsFolder target{target_tensors(), config_of_six_tokens()};
    TensorsFolder draft{draft_tensors(1), config_of_six_tokens()};
    TensorsFolder other_draft{draft_tensors(2), config_of_six_tokens()};
    TensorsFolder eagle{layer_tensors(), config_of_six_tokens()};
    TensorsFolder lyanna{with_token_info(layer_tensors(), {0, 2, 3, 5}), lyanna_config()};
    TensorsFolder mtp{mtp_tensors(), mtp_config()};
    HeadsFolder heads{width, 2};

    static const Folders& get() {
        static const Folders folders;
        return folders;
    }
};

// --- the pairs

struct Pair {
    std::string draft, tree, verify;
    int models = 1;
    double draft_temperature = 0.7;  ///< another one than the target's, so that drafts are rejected
};

/// The pairs that are compared with the target's distribution.
const std::vector<Pair> sampled_pairs{
    {"ar", "", "recursive"},          {"ngram", "2x2", "recursive"},  {"sd", "2", "rejection"},
    {"sd", "2", "rejection", 1, 0},  // greedy drafts
    {"spectr", "2x2", "multi-round"}, {"spectr", "2x2", "k-seq"},     {"specinfer", "2x2", "multi-round", 2},
    {"rsd-c", "2,2", "recursive"},    {"rsd-s", "2x2", "recursive"},  {"self", "2", "rejection"},
    {"self", "2x2", "recursive"},     {"medusa", "2,2", "recursive"}, {"tokenswift", "2,2", "recursive"},
    {"eagle", "2x2", "recursive"},    {"lyanna", "2x2", "recursive"}, {"triforce", "2", "recursive"},
    {"replay", "2x2", "recursive"},   {"mtp", "2x2", "recursive"},
};

/// Pairs that give the same texts as `like`, one of sampled_pairs.
struct Alike {
    Pair like;
    std::vector<Pair> pairs;
};
const std::vector<Alike> alike{
    // With one draft per node all rules are rejection sampling, and all methods over a draft model draw a chain.
    {{"sd", "2", "rejection"},
     {{"sd", "2", "multi-round"},
      {"sd", "2", "k-seq"},
      {"sd", "2", "recursive"},
      {"rsd-c", "2", "rejection"},
      {"rsd-c", "2", "multi-round"},
      {"rsd-c", "2", "k-seq"},
      {"rsd-s", "2", "rejection"},
      {"rsd-s", "2", "multi-round"},
      {"rsd-s", "2", "k-seq"}}},
    {{"self", "2", "rejection"}, {{"self", "2", "multi-round"}, {"self", "2", "k-seq"}, {"self", "2", "recursive"}}},
    // SpecInfer with one model is SpecTr.
    {{"spectr", "2x2", "multi-round"}, {{"specinfer", "2x2", "multi-round"}}},
    {{"spectr", "2x2", "k-seq"}, {{"specinfer", "2x2", "k-seq"}}},
    // Without drafts a rule draws from the target.
    {{"ar", "", "recursive"}, {{"ar", "", "rejection"}, {"ar", "", "multi-round"}, {"ar", "", "k-seq"}}},
};

std::string words_of(const Pair& pair) {
    std::string words = pair.draft + " " + pair.tree + " " + pair.verify;
    if (pair.models > 1) words += " " + std::to_string(pair.models) + " models";
    return words + (pair.draft_temperature == 0 ? " greedy" : "");
}

/// For GoogleTest: the test's name, and its parameter in messages.
std::string name_of(const ::testing::TestParamInfo<Pair>& info) {
    std::string name = words_of(info.param);
    std::replace_if(
        name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return name;
}
void PrintTo(const Pair& pair, std::ostream* out) {
    *out << words_of(pair);
}

// --- their texts

SamplingParams three_tokens() {
    SamplingParams sampling;
    sampling.temperature = 1.3;
    sampling.top_k = 3;
    return sampling;
}

const Texts& plain();

Job job_of(const Pair& pair, int items) {
    const Folders& folders = Folders::get();
    const DraftMethod& method = find_draft_method(pair.draft);
    Job job{base_options()};
    job.model = folders.target.path();
    job.options.batch = 64;
    job.options.verify = pair.verify;
    job.options.draft.method = method;
    job.options.draft.tree = pair.tree;
    job.options.draft.model_temperature = pair.draft_temperature;
    job.generation.sampling = three_tokens();
    job.generation.max_tokens = text_tokens;
    job.items = items;
    for (int item = 0; item < items; ++item) job.prompts[item] = prompt;
    if (method.part == DraftPart::language_model) {
        job.draft_models = {folders.draft.path(), folders.other_draft.path()};
        job.draft_models.resize(static_cast<std::size_t>(pair.models));
    }
    if (method.part == DraftPart::heads) job.heads = folders.heads.path();
    if (method.own_layer) {
        job.model = job.layer = folders.mtp.path();
    } else if (method.part == DraftPart::layer) {
        job.layer = (method.chains_states ? folders.lyanna : folders.eagle).path();
    }
    if (method.needs_recording) {
        job.options.draft.recorded = [&recorded = plain()](const std::string& id, std::int64_t) {
            return recorded.at(std::stoll(id.substr(id.find('-') + 1)));
        };
    }
    return job;
}

Texts texts_of(const Pair& pair, int items) {
    return tokens_of(launch(job_of(pair, items)).items);
}

/// The texts of plain decoding under the shared noise.
const Texts& plain() {
    static const Texts texts = texts_of({"ar", "", "coupled"}, num_texts);
    return texts;
}

class ReplicaRules : public ::testing::TestWithParam<Pair> {};

TEST_P(ReplicaRules, TextsAreDistributedAsTheTargets) {
    const JobResult result = launch(job_of(GetParam(), num_texts));
    std::map<Tokens, std::int64_t> counts;
    for (const auto& [index, item] : result.items) ++counts[item.tokens];
    const auto expected = texts_after(prompt, three_tokens(), Folders::get().target.path(), text_tokens);
    EXPECT_EQ(expected.size(), 81U);
    EXPECT_GT(chi_square_p(counts, expected), 1e-6);
    EXPECT_GT(result.sum.target_calls, 3 * num_texts / 2) << "several steps";
    if (!find_draft_method(GetParam().draft).drafts()) return;
    EXPECT_GT(result.sum.accepted, num_texts / 2) << "drafts must be accepted";
    EXPECT_LT(result.sum.accepted, result.sum.drafted) << "and rejected";
}

INSTANTIATE_TEST_SUITE_P(Pairs, ReplicaRules, ::testing::ValuesIn(sampled_pairs), name_of);

TEST(ReplicaRulesOf, PairsThatAreAlikeGiveTheSameTexts) {
    for (const Alike& group : alike) {
        const Texts expected = texts_of(group.like, num_compared);
        for (const Pair& pair : group.pairs) EXPECT_EQ(texts_of(pair, num_compared), expected) << words_of(pair);
    }
}

TEST(ReplicaRulesOf, CoupledGivesTheTextsOfPlainDecoding) {
    const Texts expected(plain().begin(), plain().find(num_compared));
    for (Pair pair : sampled_pairs) {
        pair.verify = "coupled";
        EXPECT_EQ(texts_of(pair, num_compared), expected) << words_of(pair);
    }
}

bool is_allowed(const DraftMethod& method, const Pair& pair) {
    try {
        check_lossless(pair.verify, method, pair.models, pair.tree);
        return true;
    } catch (const UsageError&) {
        return false;
    }
}

// A new method or rule must come with its pairs.
TEST(ReplicaRulesOf, EveryPairIsAmongThem) {
    std::set<std::pair<std::string, std::string>> tested;
    for (const Pair& pair : sampled_pairs) tested.insert({pair.draft, pair.verify});
    for (const Alike& group : alike)
        for (const Pair& pair : group.pairs) tested.insert({pair.draft, pair.verify});
    std::set<std::pair<std::string, std::string>> all;
    for (const DraftMethod& method : draft_methods()) {
        for (const std::string_view rule : VerifyRule::names) {
            const bool samples = VerifyRule(rule).is_lossless() && VerifyRule(rule) != VerifyRule::coupled;
            const std::string verify(rule);
            if (!samples || method.name == automatic) continue;
            if (is_allowed(method, {method.name, "", verify}) || is_allowed(method, {method.name, "2", verify}))
                all.insert({method.name, verify});
        }
    }
    EXPECT_EQ(tested, all);
}

}  // namespace
}  // namespace longhaul::engine
