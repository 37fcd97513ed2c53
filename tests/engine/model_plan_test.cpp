// Identity, sizes and memory of a model, computed from config.json and the weight headers alone. The fingerprints are
// stored in checkpoints and the sizes decide what fits, so neither may change unnoticed.
#include "engine/model/model_plan.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>

#include "engine/json.hpp"
#include "engine/model/model_fingerprint.hpp"
#include "engine/model/pass_memory.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/split.hpp"
#include "engine/model/tensor_faults.hpp"

namespace longhaul::engine {
namespace {

struct Expected {
    std::string folder;
    std::uint64_t fingerprint;    ///< of config and weights
    std::int64_t parameters;      ///< total
    std::int64_t weights_of_two;  ///< bytes, bf16, rank 1 of 2; rank 0 of 1 if 2 does not divide the heads
    std::int64_t quantized;       ///< bytes, int4, rank 0 of 1
    std::int64_t pass;            ///< bytes, bf16, 100 rows (7 with logits), rank 0 of 1
    friend bool operator==(const Expected&, const Expected&) = default;
    friend std::ostream& operator<<(std::ostream& out, const Expected& e) {
        return out << "{\"" << e.folder << "\", 0x" << std::hex << e.fingerprint << std::dec << "U, " << e.parameters
                   << ", " << e.weights_of_two << ", " << e.quantized << ", " << e.pass << "},";
    }
};

const Expected models[] = {
    {"llama-default", 0xf5864a87575b9783U, 52544, 56576, 474368, 156288},
    {"llama-default-bf16", 0x9174516341e1ab3bU, 52544, 56576, 474368, 156288},
    {"llama-linear", 0x1a979b1779080a19U, 24224, 28288, 355456, 124288},
    {"llama-llama3", 0xd1add021b452aa7fU, 26272, 28288, 389248, 124288},
    {"llama-llama3-fp16", 0x71fa5fec4876bc43U, 26272, 28288, 389248, 124288},
    {"llama-modern", 0xe96c2e07f4d409f3U, 29952, 32896, 442496, 124288},
    {"llama-odd", 0xeeb7454c987ff7c2U, 33680, 82432, 448336, 120316},
    {"llama-shards", 0x623789a2ed6223fbU, 29344, 31360, 439936, 124288},
    {"llama-yarn", 0x18a3af5a3dfca650U, 26272, 28288, 389248, 124288},
    {"llama-yarn-bf16", 0xb9d13c243d955205U, 26272, 28288, 389248, 124288},
    {"opt", 0x53376b597c6efd44U, 21264, 28096, 281600, 95488},
    {"opt-bf16", 0x800619c2c32a5fceU, 21264, 28096, 281600, 95488},
    {"opt-fp16", 0x1b42c43ca37939faU, 21264, 28096, 281600, 95488},
    {"opt-post-norm-bf16", 0xc156c6707cd9e531U, 21328, 31168, 308800, 95488},
    {"qwen2", 0x26b8dfa65b15e175U, 20256, 22400, 322176, 111488},
    {"qwen3-moe", 0x5b0576c22a2a8fc1U, 49744, 63168, 947904, 213888},
    {"mixtral", 0x7e1de87a5093ddf6U, 31136, 38016, 609408, 149888},
    {"gemma4", 0xaeebdde02e619807U, 43652, 50704, 661520, 188288},
    {"gemma4-moe", 0x2b5fb3ae2cf52acaU, 35484, 44016, 695792, 226688},
    {"gemma4-e2b", 0x8d9b60fc4179d404U, 52978, 62408, 805576, 197888},
    {"gemma4-e2b-bf16", 0xa50648144c778797U, 52978, 62408, 805576, 197888},
    {"qwen3.5", 0x96e2e150c4a47793U, 110688, 118016, 1441152, 559488},
    {"qwen3-next", 0x1164341849bb3c85U, 81872, 92640, 1299520, 460288},
    {"qwen3.5-moe", 0x224fe73977a45a11U, 48224, 56416, 885376, 348288},
    {"qwen3.5-moe-fp8", 0x8215d3b1c4fcb172U, 48224, 56416, 885376, 348288},
    {"qwen2-moe", 0xe2a3b02f8e6783efU, 31456, 38656, 694784, 146688},
    {"exaone4", 0xb3360be9302ab412U, 19448, 22496, 355808, 79488},
    {"ernie4.5-moe", 0x7d7ea9de4f77e7afU, 23462, 30488, 541976, 153088},
    {"granite4", 0xf2d5ec4fd923d576U, 13984, 16000, 254080, 79488},
    {"granite4-h", 0x60e47bd790bf1b8aU, 51920, 85216, 1252672, 373888},
    {"qwen3-vl-moe", 0xd698fa10f5b7d439U, 26624, 35200, 609664, 181888},
    {"hy-v3", 0xae97bdadcc7fc60dU, 19541, 25620, 457236, 153088},
    {"nemotron-h", 0x42a5eca042d9f57fU, 57840, 73056, 896960, 373888},
    {"nemotron3", 0x5b383a07ba24f8cdU, 54500, 69472, 990352, 242688},
    {"nemotron3-latent-modern", 0x3acac51ccf24d303U, 31378, 42672, 591688, 297088},
    {"arcee", 0x3bc138396d027ac2U, 20640, 22144, 287872, 111488},
    {"afmoe", 0xa8583f0b80b95d8dU, 37861, 46676, 694356, 188288},
    {"youtu", 0x9b47a02433dee861U, 44864, 53504, 507648, 516096},
    {"cohere2", 0x51271391e4c13c35U, 20064, 22272, 321792, 124288},
    {"demo", 0xebe3a31e3138501dU, 6951168, 6964224, 14615552, 1177088},
};

TEST(ModelPlan, IdentityAndSizesStayWhatTheyWere) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    for (const Expected& expected : models) {
        const std::filesystem::path folder =
            expected.folder == "demo" ? std::filesystem::path(LONGHAUL_DEMO_MODEL)
                                      : std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / expected.folder;
        const ModelConfig config = ModelConfig::load(folder);
        const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
        EXPECT_EQ(tensor_faults(config, tensors), std::vector<std::string>{});
        const Split whole(config, 0, 1);
        const Split part = Split::obstacle(config, 2).empty() ? Split(config, 1, 2) : whole;
        const Expected got{expected.folder,
                           model_fingerprint(config, tensors.fingerprint()),
                           num_parameters(config),
                           packed_weight_bytes(config, part, Precision::bf16, *device),
                           packed_weight_bytes(config, whole, Precision::int4, *device),
                           pass_bytes(config, whole, Precision::bf16, 100, 7)};
        EXPECT_EQ(got, expected);
    }
}

/// Layers for multi-token prediction stand behind the others in the files.
TEST(ModelPlan, LayersForMultiTokenPredictionAreNotRead) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/glm4-moe";
    ModelConfig config = ModelConfig::load(folder);
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    ASSERT_TRUE(tensors.contains("model.layers.3.eh_proj.weight"));
    ASSERT_TRUE(SafetensorsFolder::open(LONGHAUL_TEST_DATA "/parity/hy-v3").contains("model.layers.2.eh_proj.weight"));
    EXPECT_EQ(tensor_faults(config, tensors), std::vector<std::string>{});
    config.num_layers = 2;
    config.layers.pop_back();
    const std::vector<std::string> faults = tensor_faults(config, tensors);
    ASSERT_FALSE(faults.empty());
    EXPECT_TRUE(faults.front().ends_with("expected layers 0 to 1, as num_hidden_layers says, got layer 2"))
        << faults.front();
}

TEST(ModelPlan, NormsAndBiasesThatTheConfigDeniesAreFaults) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/glm4-moe";
    ModelConfig config = ModelConfig::load(folder);
    for (LayerConfig& layer : config.layers) layer.qkv_bias = layer.head_norm = false;
    EXPECT_EQ(tensor_faults(config, SafetensorsFolder::open(folder)).size(), 2U * 5) << "in both layers with experts";
}

/// Writes zeros over the tensors of a file whose names end so.
void clear_tensors(const std::filesystem::path& file, const std::string& ending) {
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    std::uint64_t length = 0;
    stream.read(reinterpret_cast<char*>(&length), 8);
    std::string text(length, ' ');
    stream.read(text.data(), static_cast<std::streamsize>(length));
    const Json header = Json::parse(text);
    for (const auto& [name, tensor] : header.items()) {
        if (!name.ends_with(ending)) continue;
        const auto begin = tensor["data_offsets"][0].get<std::uint64_t>(),
                   end = tensor["data_offsets"][1].get<std::uint64_t>();
        stream.seekp(static_cast<std::streamoff>(8 + length + begin));
        stream << std::string(end - begin, '\0');
    }
}

// Some GPTQ folders have such biases.
TEST(ModelPlan, BiasesOfZerosMayBeDenied) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("longhaul-biases-" + std::to_string(::getpid()));
    std::filesystem::copy(LONGHAUL_TEST_DATA "/parity/glm4-moe", folder);
    ModelConfig config = ModelConfig::load(folder);
    for (LayerConfig& layer : config.layers) layer.qkv_bias = false;
    EXPECT_EQ(tensor_faults(config, SafetensorsFolder::open(folder)).size(), 2U * 3);
    clear_tensors(folder / "model.safetensors", ".bias");
    EXPECT_EQ(tensor_faults(config, SafetensorsFolder::open(folder)), std::vector<std::string>{});
    std::filesystem::remove_all(folder);
}

// transformers writes true for the class of folders with images if nobody said otherwise.
TEST(ModelPlan, AHeadInTheFilesIsNotTiedAway) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("longhaul-tied-" + std::to_string(::getpid()));
    for (const bool of_text : {false, true}) {
        std::filesystem::copy(LONGHAUL_TEST_DATA "/parity/mistral3-ministral3", folder);
        Json config = read_json(folder / "config.json");
        config["tie_word_embeddings"] = true;
        config["text_config"]["tie_word_embeddings"] = of_text;
        std::filesystem::remove(folder / "config.json");
        std::ofstream(folder / "config.json") << config;
        EXPECT_EQ(ModelConfig::load(folder).tied_embeddings, of_text);
        std::filesystem::remove_all(folder);
    }
}

TEST(ModelPlan, BiasesOfMambaThatTheConfigDeniesAreFaults) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/granite4-h";
    ModelConfig config = ModelConfig::load(folder);
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    const std::uint64_t with = model_fingerprint(config, tensors.fingerprint());
    config.linear.filter_bias = false;
    EXPECT_NE(model_fingerprint(config, tensors.fingerprint()), with);
    const std::vector<std::string> faults = tensor_faults(config, tensors);
    ASSERT_EQ(faults.size(), 2U) << "in the first and the last of three layers";
    EXPECT_TRUE(
        faults.front().ends_with("model.layers.0.mamba.conv1d.bias: expected none of that name, as config.json "
                                 "says, got one"))
        << faults.front();
}

/// Files that count attention and MLPs apart: blocks behind the last, and one of another kind than config.json says.
TEST(ModelPlan, BlocksThatTheConfigDeniesAreFaults) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/nemotron3";
    ModelConfig config = ModelConfig::load(folder);
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    config.layers.back().has_mlp = false;
    config.layers.back().experts = {};
    std::vector<std::string> faults = tensor_faults(config, tensors);
    ASSERT_EQ(faults.size(), 17U) << "all tensors of the last block";
    EXPECT_TRUE(faults.front().ends_with("expected layers 0 to 3, as num_hidden_layers says, got layer 4"))
        << faults.front();

    config = ModelConfig::load(folder);
    config.layers.front().experts = {};
    faults = tensor_faults(config, tensors);
    ASSERT_EQ(faults.size(), 3U) << "experts, and the two matrices of an MLP that is not there";
    EXPECT_TRUE(
        faults.front().ends_with("backbone.layers.1.mixer.experts.0.down_proj.weight: expected none of that "
                                 "name, as config.json says, got one"))
        << faults.front();
}

TEST(ModelPlan, BiasesInFilesThatCountBlocksAreFaults) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/nemotron3";
    ModelConfig config = ModelConfig::load(folder);
    config.linear.filter_bias = false;
    const std::vector<std::string> faults = tensor_faults(config, SafetensorsFolder::open(folder));
    ASSERT_EQ(faults.size(), 2U);
    EXPECT_TRUE(
        faults.front().ends_with("backbone.layers.0.mixer.conv1d.bias: expected none of that name, as "
                                 "config.json says, got one"))
        << faults.front();
}

TEST(ModelPlan, ExpertsThatTheConfigDeniesAreFaults) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/granite4-h";
    ModelConfig config = ModelConfig::load(folder);
    for (LayerConfig& layer : config.layers) layer.experts = {};
    const std::vector<std::string> faults = tensor_faults(config, SafetensorsFolder::open(folder));
    ASSERT_GE(faults.size(), 3U) << "in each layer";
    EXPECT_NE(faults.front().find("model.layers.0.block_sparse_moe."), std::string::npos) << faults.front();
}

TEST(ModelPlan, ExpertsBeyondTheConfigsAreFaults) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/mixtral";
    ModelConfig config = ModelConfig::load(folder);
    config.layers.front().experts.count = 3;  // of 4 in the files
    const std::vector<std::string> faults = tensor_faults(config, SafetensorsFolder::open(folder));
    ASSERT_EQ(faults.size(), 2U * (3 + 1)) << "of each layer three matrices, and the router";
    EXPECT_TRUE(
        faults.front().ends_with("model.layers.0.block_sparse_moe.experts.3.w1.weight: expected experts 0 to 2, "
                                 "as config.json says, got expert 3"))
        << faults.front();
}

TEST(ModelPlan, AGateThatTheFamilyDoesNotHaveIsAFault) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/qwen2-moe";
    ModelConfig config = ModelConfig::load(folder);
    config.layers.front().experts.shared_gate = false;
    const std::vector<std::string> faults = tensor_faults(config, SafetensorsFolder::open(folder));
    ASSERT_EQ(faults.size(), 1U) << "in the first of two layers";
    EXPECT_TRUE(
        faults.front().ends_with("model.layers.0.mlp.shared_expert_gate.weight: expected routed experts alone, got a "
                                 "shared expert; not in this version"))
        << faults.front();
}

}  // namespace
}  // namespace longhaul::engine
