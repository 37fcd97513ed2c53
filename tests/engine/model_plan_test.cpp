// Identity, sizes and memory of a model, computed from config.json and the weight headers alone. The fingerprints are
// stored in checkpoints and the sizes decide what fits, so neither may change unnoticed.
#include "engine/model/model_plan.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <set>
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
    {"llama-default", 0x7fcf8af4388d412bU, 52544, 56576, 474368, 156288},
    {"llama-default-bf16", 0x9e6b38411f7d2566U, 52544, 56576, 474368, 156288},
    {"llama-linear", 0x3221ee8e8ce8a3eU, 24224, 28288, 355456, 124288},
    {"llama-llama3", 0x67451bd42a0dd734U, 26272, 28288, 389248, 124288},
    {"llama-llama3-fp16", 0x15f8459eb2674c17U, 26272, 28288, 389248, 124288},
    {"llama-modern", 0xfb3d1555ff3a6a70U, 29952, 32896, 442496, 124288},
    {"llama-odd", 0x453b797cc2593b1dU, 33680, 82432, 448336, 120316},
    {"llama-shards", 0xb0fc6e9d52a8351aU, 29344, 31360, 439936, 124288},
    {"llama-yarn", 0x8a73dd31dfcaf812U, 26272, 28288, 389248, 124288},
    {"llama-yarn-bf16", 0xab946882e1379ba4U, 26272, 28288, 389248, 124288},
    {"opt", 0x34d37ffee9c3fd07U, 21264, 28096, 281600, 95488},
    {"opt-bf16", 0x6cdf5046e4f3bba8U, 21264, 28096, 281600, 95488},
    {"opt-fp16", 0xbfe8ff1f219a9661U, 21264, 28096, 281600, 95488},
    {"opt-post-norm-bf16", 0x62beac554c3740ceU, 21328, 31168, 308800, 95488},
    {"qwen2", 0x62544f99895d3ffaU, 20256, 22400, 322176, 111488},
    {"qwen3-moe", 0x93eaed3b14b9d0caU, 49744, 63168, 947904, 213888},
    {"mixtral", 0x254b0b8bc3b0413cU, 31136, 38016, 609408, 149888},
    {"gemma4", 0x10ab2ede154311cU, 43652, 50704, 661520, 188288},
    {"gemma4-moe", 0x1b251912ea1b6305U, 35484, 44016, 695792, 226688},
    {"gemma4-e2b", 0x8f2db4086bfbe937U, 52978, 62408, 805576, 197888},
    {"gemma4-e2b-bf16", 0x4f0ebe881108659U, 52978, 62408, 805576, 197888},
    {"qwen3.5", 0x8f889f0f084cb137U, 110688, 118016, 1441152, 559488},
    {"qwen3-next", 0x94b0675b6093a70bU, 81872, 92640, 1299520, 460288},
    {"qwen3.5-moe", 0x66731d3de1d819d1U, 48224, 56416, 885376, 348288},
    {"qwen3.5-moe-fp8", 0x7d4e03151deb870bU, 48224, 56416, 885376, 348288},
    {"qwen2-moe", 0x6d6a8607dce17348U, 31456, 38656, 694784, 146688},
    {"exaone4", 0x95bf90c369d1b6f9U, 19448, 22496, 355808, 79488},
    {"ernie4.5-moe", 0x2b4e991beb6dfd71U, 23462, 30488, 541976, 153088},
    {"granite4", 0xecbf0831873ff548U, 13984, 16000, 254080, 79488},
    {"granite4-h", 0x684de27474305bd6U, 51920, 85216, 1252672, 373888},
    {"qwen3-vl-moe", 0xc9e0c2689c20ef7dU, 26624, 35200, 609664, 181888},
    {"hy-v3", 0x4d22f57b35506876U, 19541, 25620, 457236, 153088},
    {"nemotron-h", 0x5ee8653319789c7eU, 57840, 73056, 896960, 373888},
    {"nemotron3", 0x7c1822325dca5dc6U, 54500, 69472, 990352, 242688},
    {"nemotron3-latent-modern", 0x575af6f6c04462a8U, 31378, 42672, 591688, 297088},
    {"arcee", 0x4eef3340160919b9U, 20640, 22144, 287872, 111488},
    {"afmoe", 0x6fd17b0e50c1fbfeU, 37861, 46676, 694356, 188288},
    {"youtu", 0x52852bb61589052aU, 44864, 53504, 507648, 516096},
    {"cohere2", 0xfb15b811655f9611U, 20064, 22272, 321792, 124288},
    {"gpt-neox", 0x60548ec8c028d757U, 22256, 24960, 340992, 111488},
    {"phi", 0x40b13bd286b3789aU, 20177, 22596, 307876, 98716},
    {"starcoder2", 0x6c37180f9f6114e1U, 16016, 18624, 239232, 85888},
    {"stablelm", 0xc51b8cdc65c1183aU, 14848, 16256, 237568, 111488},
    {"nemotron", 0x37d5e7c8e5c90bf8U, 16064, 17152, 237312, 124288},
    {"gemma2", 0x8184287367698880U, 24352, 26752, 355968, 124288},
    {"gpt2", 0xc6999942889f99caU, 41344, 55936, 384000, 124288},
    {"exaone", 0x896559044e8fb661U, 14688, 15744, 236928, 111488},
    {"cwm", 0x19a64e914c30bbf4U, 29344, 31360, 439936, 124288},
    {"kimi-k25", 0xca703555f89cda6bU, 37593, 45348, 588068, 573696},
    {"demo", 0xac59cde8ae6d1c2bU, 6951168, 6964224, 14615552, 1177088},
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

TEST(ModelPlan, FieldsOfAllPartsCountInTheFingerprint) {
    const ModelConfig plain = ModelConfig::load(LONGHAUL_TEST_DATA "/parity/llama-default");
    std::vector<ModelConfig> others;
    const auto changed = [&]() -> ModelConfig& { return others.emplace_back(plain); };
    const auto layer_changed = [&]() -> LayerConfig& { return changed().layers.back(); };
    changed().hidden_size += 16;
    changed().eos_ids = {3};
    changed().eos_ids = {2, 3};
    changed().logits_scale = 0.5;
    changed().head_bias = true;
    changed().score_cap = 50.0;
    changed().logit_cap = 50.0;
    changed().model_type = "mistral";
    changed().files.qkv = QkvTensors::fused;
    changed().latent.nope_dim = 16;
    changed().linear.taps = 4;
    layer_changed().parallel = true;
    layer_changed().qkv_bias = true;
    layer_changed().output_bias = true;
    layer_changed().activation = Activation::gelu;
    layer_changed().rope.theta = 20000.0;
    layer_changed().rope.long_factors = {2.0};
    layer_changed().rope.short_factors = {2.0};
    layer_changed().experts.count = 4;
    layer_changed().experts.per_token = 4;
    changed().layers = {plain.layer(0), plain.layer(1)};
    others.back().layers[1].attention_window = 100;
    changed().layers = {plain.layer(0), plain.layer(1)};
    others.back().layers[0].attention_window = 100;
    std::set<std::uint64_t> fingerprints{model_fingerprint(plain, 1), model_fingerprint(plain, 2)};
    for (const ModelConfig& config : others) fingerprints.insert(model_fingerprint(config, 1));
    EXPECT_EQ(fingerprints.size(), 2 + others.size());

    ModelConfig layer_by_layer = plain;
    layer_by_layer.layers = {plain.layer(0), plain.layer(1)};
    EXPECT_EQ(model_fingerprint(layer_by_layer, 1), model_fingerprint(plain, 1)) << "one entry is that of all layers";
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
    EXPECT_EQ(tensor_faults(config, SafetensorsFolder::open(folder)).size(), 3U * 5) << "in each of three layers";
}

TEST(ModelPlan, BiasesOfDenseLayersThatTheConfigDeniesAreFaults) {
    const std::filesystem::path folder = LONGHAUL_TEST_DATA "/parity/starcoder2";
    ModelConfig config = ModelConfig::load(folder);
    for (LayerConfig& layer : config.layers) layer.mlp_bias = false;
    EXPECT_EQ(tensor_faults(config, SafetensorsFolder::open(folder)).size(), 2U * 2);
    for (LayerConfig& layer : config.layers) layer.output_bias = layer.qkv_bias = false;
    const std::vector<std::string> faults = tensor_faults(config, SafetensorsFolder::open(folder));
    ASSERT_EQ(faults.size(), 2U * 6);
    EXPECT_TRUE(
        faults.front().ends_with("model.layers.0.mlp.c_fc.bias: expected none of that name, as config.json "
                                 "says, got one"))
        << faults.front();
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
    EXPECT_EQ(tensor_faults(config, SafetensorsFolder::open(folder)).size(), 3U * 3);
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
