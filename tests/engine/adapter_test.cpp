// LoRA adapters: a model with an adapter has the logits, to the bit, of a folder whose weights were merged before, in
// all precisions and on any number of ranks. What cannot be merged is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/adapter.hpp"
#include "engine/model/split.hpp"
#include "engine/model/stored_matrix.hpp"
#include "engine/model/weight_plan.hpp"
#include "engine/model/weights.hpp"
#include "kernels/device.hpp"
#include "tests/engine/config_folder.hpp"
#include "tests/engine/model_harness.hpp"
#include "tests/engine/tensor_folder.hpp"

namespace longhaul::engine {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, StoredTensor>;

const std::vector<std::int32_t> tokens = {1, 5, 9, 2, 33, 7, 8, 40};
const std::vector<std::int64_t> positions = {0, 3, 7};

fs::path parity(const std::string& name) {
    return fs::path(LONGHAUL_TEST_DATA) / "parity" / name;
}

/// Numbers from -0.25 to 0.25 with the bits of bf16.
std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
        seed = seed * 1664525U + 1013904223U;
        value = (static_cast<float>(seed >> 24) - 127.5F) / 512;
    }
    return values;
}

std::string bf16_bytes(const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes.append(reinterpret_cast<const char*>(&value) + 2, 2);
    return bytes;
}

/// A folder of parity, an adapter for all its matrices, and the folder of both merged.
class Merging {
  public:
    explicit Merging(const std::string& name) : model(parity(name)) {
        static int count = 0;
        root_ = fs::temp_directory_path() /
                ("longhaul-adapter-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
        adapter = root_ / "adapter";
        merged = root_ / "merged";
        fs::create_directories(adapter);
        fs::create_directories(merged);
        write();
    }
    ~Merging() { fs::remove_all(root_); }
    Merging(const Merging&) = delete;
    Merging& operator=(const Merging&) = delete;

    fs::path model, adapter, merged;
    std::size_t num_matrices = 0;
    [[nodiscard]] fs::path packed() const { return root_ / "packed"; }

  private:
    void write() {
        const auto folder = SafetensorsFolder::open(model);
        const ModelConfig config = ModelConfig::load(model);
        for (const auto& [name, view] : folder.tensors())
            merged_[name] = {view.dtype_name,
                             view.shape,
                             {reinterpret_cast<const char*>(view.data), static_cast<std::size_t>(view.num_bytes)}};
        Weights weights;
        std::map<std::string, TensorPart> matrices;
        for (const WeightPlan& plan : plan_weights(config, Split(config, 0, 1), {}, weights)) {
            if (plan.matrix == nullptr || plan.matrix == &weights.embedding || plan.matrix == &weights.positions)
                continue;
            for (const TensorPart& part : plan.parts)
                if (part.stack.count == 0) matrices.emplace(part.tensor, part);
        }
        num_matrices = matrices.size();
        const std::string last = module_of(matrices.rbegin()->first);
        Json settings{{"peft_type", "LORA"},
                      {"r", 3},
                      {"lora_alpha", 5},
                      {"target_modules", "all-linear"},
                      {"use_rslora", model.filename() == "phi3-short"},
                      {"fan_in_fan_out", config.files.by_columns}};
        settings["rank_pattern"][last] = 6;
        settings["alpha_pattern"][last.substr(last.find('.') + 1)] = 2.5;
        for (const auto& [tensor, part] : matrices) {
            const bool is_last = module_of(tensor) == last;
            const double rank = is_last ? 6 : 3, alpha = is_last ? 2.5 : 5;
            merge(folder, part, static_cast<std::int64_t>(rank),
                  static_cast<float>(alpha / (settings["use_rslora"] ? std::sqrt(rank) : rank)));
        }
        write_safetensors(adapter / "adapter_model.safetensors", pairs_);
        std::ofstream(adapter / "adapter_config.json") << settings.dump();
        write_safetensors(merged / "model.safetensors", merged_);
        Json of_model = read_json(model / "config.json");
        of_model.erase("quantization_config");
        std::ofstream(merged / "config.json") << of_model.dump();
        if (fs::exists(model / "generation_config.json"))
            fs::copy_file(model / "generation_config.json", merged / "generation_config.json");
    }

    /// As other versions of transformers name it.
    [[nodiscard]] std::string module_of(const std::string& tensor) const {
        std::string module = tensor.substr(0, tensor.size() - std::strlen(".weight"));
        for (const auto& [prefix, other] :
             {std::pair("language_model.model.", "model.language_model."), std::pair("backbone.", "model.")}) {
            if (module.starts_with(prefix)) return other + module.substr(std::strlen(prefix));
        }
        return module;
    }

    void merge(const SafetensorsFolder& folder, const TensorPart& part, std::int64_t rank, float scale) {
        std::vector<float> sum(static_cast<std::size_t>(part.rows * part.columns));
        const MatrixView view = require_matrix(folder, part.tensor, part.rows, part.columns, part.stack);
        read_as_f32(view, {.num_rows = part.rows, .num_columns = part.columns}, sum.data());
        const auto seed = static_cast<std::uint32_t>(pairs_.size());
        const std::vector<float> a = numbers(rank * part.columns, seed), b = numbers(part.rows * rank, seed + 1);
        for (std::int64_t row = 0; row < part.rows; ++row) {
            for (std::int64_t column = 0; column < part.columns; ++column) {
                float product = 0;
                for (std::int64_t k = 0; k < rank; ++k) product += b[row * rank + k] * a[k * part.columns + column];
                sum[row * part.columns + column] += scale * product;
            }
        }
        const std::string stem = "base_model.model." + module_of(part.tensor);
        const std::string end = seed % 4 == 0 ? ".weight" : ".default.weight";
        pairs_[stem + ".lora_A" + end] = {"BF16", {rank, part.columns}, bf16_bytes(a)};
        pairs_[stem + ".lora_B" + end] = {"F32", {part.rows, rank}, f32_bytes(b)};
        const std::string module = part.tensor.substr(0, part.tensor.size() - std::strlen("weight"));
        std::erase_if(merged_, [&](const auto& tensor) {  // also those of quantized weights
            const bool is_kept = tensor.first == module + "bias" || tensor.first.ends_with("correction_bias");
            return tensor.first.starts_with(module) && !is_kept;
        });
        merged_[part.tensor] = part.stack.by_columns
                                   ? StoredTensor{"F32", {part.columns, part.rows}, f32_bytes(by_columns(sum, part))}
                                   : StoredTensor{"F32", {part.rows, part.columns}, f32_bytes(sum)};
    }

    static std::vector<float> by_columns(const std::vector<float>& matrix, const TensorPart& part) {
        std::vector<float> turned;
        for (std::int64_t column = 0; column < part.columns; ++column) {
            for (std::int64_t row = 0; row < part.rows; ++row)
                turned.push_back(matrix[static_cast<std::size_t>(row * part.columns + column)]);
        }
        return turned;
    }

    fs::path root_;
    Tensors merged_, pairs_;
};

testing::Run run(const fs::path& model, Precision precision, int ranks, const fs::path& adapter = {},
                 const fs::path& packed = {}, int threads = 1) {
    return testing::run_model(model, precision, kernels::available_cpu_variants().back(), tokens, positions, ranks, 64,
                              threads, {}, packed, adapter);
}

class Adapters : public ::testing::TestWithParam<const char*> {};

TEST_P(Adapters, GiveTheBitsOfMergedWeights) {
    const Merging merging(GetParam());
    EXPECT_NE(run(merging.model, Precision::fp32, 1).logits(), run(merging.merged, Precision::fp32, 1).logits());
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::int8, Precision::int4}) {
        for (const int ranks : {1, 2, 4}) {
            if (!Split::obstacle(ModelConfig::load(merging.model), ranks).empty()) continue;
            SCOPED_TRACE(std::to_string(static_cast<int>(precision)) + " " + std::to_string(ranks));
            const testing::Run with = run(merging.model, precision, ranks, merging.adapter);
            EXPECT_EQ(with.all_ranks, run(merging.merged, precision, ranks).all_ranks);
            const std::string how = "packed from the model's files, with adapter " + merging.adapter.string() +
                                    " (ranks 3 to 6, " + std::to_string(merging.num_matrices) + " matrices)";
            EXPECT_EQ(with.loaded, std::vector(static_cast<std::size_t>(ranks), how));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Families, Adapters,
                         ::testing::Values("llama-llama3", "phi3-short", "glm4", "qwen3-moe", "deepseek-v2-lite", "opt",
                                           "mistral3", "qwen3.5", "qwen2-gptq", "gpt-oss", "nemotron3", "afmoe",
                                           "gpt2"),
                         [](const auto& name) {
                             std::string text = name.param;
                             std::erase_if(text, [](char c) { return c == '-' || c == '.'; });
                             return text;
                         });

TEST(Adapter, IsPartOfWhatPackedWeightsAre) {
    const Merging merging("llama-llama3");
    const auto packed = merging.packed();
    run(merging.model, Precision::bf16, 1, {}, packed);
    const testing::Run expected = run(merging.merged, Precision::bf16, 1);
    for (const char* how : {"packed into ", "mapped from "}) {
        const testing::Run with = run(merging.model, Precision::bf16, 1, merging.adapter, packed);
        EXPECT_EQ(with.all_ranks, expected.all_ranks);
        EXPECT_TRUE(with.loaded.front().starts_with(how)) << with.loaded.front();
    }
    Json settings = read_json(merging.adapter / "adapter_config.json");
    settings["lora_alpha"] = 4;
    std::ofstream(merging.adapter / "adapter_config.json") << settings.dump();
    const testing::Run other = run(merging.model, Precision::bf16, 1, merging.adapter, packed);
    EXPECT_NE(other.all_ranks, expected.all_ranks);
    EXPECT_TRUE(other.loaded.front().starts_with("packed into ")) << other.loaded.front();
}

TEST(Adapter, IntegersThatAreQuantizedAgainAreSaid) {
    const Merging merging("qwen2-gptq");
    const std::string notice =
        "model: quantized weights (model.layers.0.self_attn.q_proj.weight) are quantized again with the adapter added; "
        "precision = bf16 or fp32 is more exact";
    const auto said = [&](Precision precision) {
        const auto notices = run(merging.model, precision, 1, merging.adapter).notices;
        return std::count(notices.begin(), notices.end(), notice);
    };
    EXPECT_EQ(said(Precision::int4), 1);
    EXPECT_EQ(said(Precision::fp32), 0);
}

/// Rows that several threads add are those that one thread adds.
TEST(Adapter, IsTheSameForAnyNumberOfThreads) {
    constexpr std::int64_t rows = 2048, columns = 512, rank = 8;
    const testing::ModelFolder folder;
    folder.write("config.json",
                 testing::patched(testing::plain_llama, R"({"hidden_size": 512, "intermediate_size": 2048})"));
    folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 8, "lora_alpha": 3})");
    const std::string stem = "base_model.model.model.layers.1.mlp.gate_proj.lora_";
    write_safetensors(folder.path() / "adapter_model.safetensors",
                      {{stem + "A.weight", {"F32", {rank, columns}, f32_bytes(numbers(rank * columns, 1))}},
                       {stem + "B.weight", {"F32", {rows, rank}, f32_bytes(numbers(rows * rank, 2))}}});
    Adapter adapter = Adapter::open(folder.path());
    adapter.fit(folder.load());
    TensorPart part{.tensor = "model.layers.1.mlp.gate_proj.weight",
                    .rows = rows,
                    .columns = columns,
                    .num_rows = rows,
                    .num_columns = columns};
    std::vector<float> together = numbers(rows * columns, 3), one_by_one = together;
    EXPECT_TRUE(adapter.add(part, together.data()));
    part.num_rows = 1;
    for (; part.first_row < rows; ++part.first_row)
        EXPECT_TRUE(adapter.add(part, one_by_one.data() + part.first_row * columns));
    EXPECT_EQ(together, one_by_one);
}

/// Every number of it decides the text.
TEST(Adapter, FingerprintIsThatOfAllNumbers) {
    const testing::ModelFolder folder;
    const auto fingerprint = [&](std::size_t changed, const char* alpha = "3") {
        const std::string stem = "base_model.model.model.layers.1.mlp.gate_proj.lora_";
        std::vector<float> a = numbers(8 * 512, 1);
        if (changed < a.size()) a[changed] += 1;
        write_safetensors(folder.path() / "adapter_model.safetensors",
                          {{stem + "A.weight", {"F32", {8, 512}, f32_bytes(a)}},
                           {stem + "B.weight", {"F32", {2048, 8}, f32_bytes(numbers(2048 * 8, 2))}}});
        folder.write("adapter_config.json",
                     std::string(R"({"peft_type": "LORA", "r": 8, "lora_alpha": )") + alpha + "}");
        return Adapter::open(folder.path()).fingerprint();
    };
    constexpr std::size_t none = 8 * 512;
    EXPECT_EQ(fingerprint(none), fingerprint(none));
    for (const std::size_t changed : {0, 2048, 4095}) EXPECT_NE(fingerprint(changed), fingerprint(none)) << changed;
    EXPECT_NE(fingerprint(none, "4"), fingerprint(none));
}

// --- refusals --------------------------------------------------------------------------------------------------------

const std::string layer = "base_model.model.model.layers.0.self_attn.q_proj.";  // [64, 32] in llama-llama3

StoredTensor floats(std::vector<std::int64_t> shape, const std::string& dtype = "F32") {
    std::size_t count = dtype == "F32" ? 4 : 2;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    return {dtype, std::move(shape), std::string(count, '\0')};
}

struct Refusal {
    const char* patch;  ///< of adapter_config.json
    Tensors tensors;    ///< beside, or in place of, a good pair
    const char* drop;   ///< end of the names of tensors left out; "": none
    std::string line;   ///< without the folder's name
};

class RefusedAdapters : public ::testing::Test {
  protected:
    RefusedAdapters() { fs::create_directories(folder_); }
    ~RefusedAdapters() override { fs::remove_all(folder_); }

    [[nodiscard]] std::string complaint(const Refusal& refusal) const {
        Json settings{{"peft_type", "LORA"},
                      {"r", 2},
                      {"lora_alpha", 4},
                      {"bias", "none"},
                      {"use_dora", false},
                      {"modules_to_save", nullptr},
                      {"rank_pattern", Json::object()}};
        settings.merge_patch(Json::parse(refusal.patch));
        std::ofstream(folder_ / "adapter_config.json") << settings.dump();
        Tensors tensors{{layer + "lora_A.weight", floats({2, 32})}, {layer + "lora_B.weight", floats({64, 2})}};
        for (const auto& [name, tensor] : refusal.tensors) tensors[name] = tensor;
        std::erase_if(
            tensors, [&](const auto& tensor) { return *refusal.drop != '\0' && tensor.first.ends_with(refusal.drop); });
        write_safetensors(folder_ / "adapter_model.safetensors", tensors);
        return complaint();
    }
    [[nodiscard]] std::string complaint() const {
        try {
            Adapter::open(folder_).fit(ModelConfig::load(parity("llama-llama3")));
        } catch (const InputError& error) {
            const std::string line = error.what(), place = folder_.string() + "/";
            return line.starts_with(place) ? line.substr(place.size()) : line;
        }
        return "(none)";
    }

    fs::path folder_ = fs::temp_directory_path() / ("longhaul-refused-adapter-" + std::to_string(::getpid()));
};

TEST_F(RefusedAdapters, AreNamedByFileAndField) {
    const std::string peft = "; merge it with PEFT (merge_and_unload), and give the merged folder as model";
    const std::string plain = ": expected false, null or nothing in it, as plain LoRA has, got ";
    const std::string config = "adapter_config.json: ", file = "adapter_model.safetensors: ";
    const std::string vision = "base_model.model.model.visual.blocks.0.attn.qkv.lora_";
    const std::string tied = "base_model.model.lm_head.lora_",
                      experts = "base_model.model.model.layers.0.mlp.experts.lora_";
    const std::string unknown = ": expected a linear layer of the language model, with a matrix of its own, got ";
    const Refusal refusals[] = {
        {"{}", {}, "", "(none)"},
        {R"({"use_dora": true})", {}, "", config + "use_dora" + plain + "true" + peft},
        {R"({"lora_bias": true})", {}, "", config + "lora_bias" + plain + "true" + peft},
        {R"({"fan_in_fan_out": true})",
         {},
         "",
         config + "fan_in_fan_out: expected false, as the model's matrices are stored row by row, got true" + peft},
        {R"({"modules_to_save": ["lm_head"]})", {}, "", config + "modules_to_save" + plain + "an array of 1" + peft},
        {R"({"modules_to_save": []})", {}, "", "(none)"},
        {R"({"trainable_token_indices": [5]})",
         {},
         "",
         config + "trainable_token_indices" + plain + "an array of 1" + peft},
        {R"({"layer_replication": [[0, 2]]})", {}, "", config + "layer_replication" + plain + "an array of 1" + peft},
        {R"({"target_parameters": ["experts"]})",
         {},
         "",
         config + "target_parameters" + plain + "an array of 1" + peft},
        {R"({"alora_invocation_tokens": [5]})",
         {},
         "",
         config + "alora_invocation_tokens" + plain + "an array of 1" + peft},
        {R"({"some_later_kind": 1})", {}, "", config + "some_later_kind" + plain + "1" + peft},
        {R"({"bias": "all"})", {}, "", config + "bias: expected \"none\", got \"all\"" + peft},
        {R"({"peft_type": "IA3"})", {}, "", config + "peft_type: expected \"LORA\", got \"IA3\"" + peft},
        {R"({"peft_type": null})", {}, "", config + "peft_type: expected \"LORA\", got nothing" + peft},
        {R"({"init_lora_weights": "pissa"})",
         {},
         "",
         config + "init_lora_weights: expected true, false, \"gaussian\", \"eva\" or \"orthogonal\", got \"pissa\"; it "
                  "starts "
                  "from other weights than the model's: save it as plain LoRA (PEFT: "
                  "path_initial_model_for_weight_conversion)"},
        {R"({"init_lora_weights": "gaussian"})", {}, "", "(none)"},
        {R"({"r": 0})", {}, "", config + "r: expected an integer from 1 to 65536, got 0"},
        {R"({"lora_alpha": "16"})", {}, "", config + "lora_alpha: expected a number, got \"16\""},
        {R"({"rank_pattern": {"q_proj": 0}})",
         {},
         "",
         config + "rank_pattern.q_proj: expected an integer from 1 to 65536, got 0"},
        {R"({"rank_pattern": {".*q_proj": 2}})",
         {},
         "",
         config +
             "rank_pattern: expected names of modules, or their ends, got \".*q_proj\"; write a line for each module"},
        {R"({"rank_pattern": {"q_proj": 2, "self_attn.q_proj": 3}})",
         {},
         "",
         config + "rank_pattern: expected one value for model.layers.0.self_attn.q_proj, got \"q_proj\" and "
                  "\"self_attn.q_proj\"; give it its whole name alone"},
        {R"({"r": 3, "rank_pattern": {"q_proj": 2}})", {}, "", "(none)"},
        {R"({"r": 3})",
         {},
         "",
         file + layer + "lora_A.weight: expected shape [3, 32], as adapter_config.json says, got [2, 32]"},
        {"{}",
         {{layer + "lora_B.weight", floats({64, 3})}},
         "",
         file + layer + "lora_B.weight: expected shape [64, 2], as adapter_config.json says, got [64, 3]"},
        {"{}",
         {{layer + "lora_A.weight", floats({2, 33})}},
         "",
         file + layer + "lora_A.weight: expected shape [2, 32], as the model's matrix needs, got [2, 33]"},
        {"{}",
         {{layer + "lora_B.weight", floats({60, 2})}},
         "",
         file + layer + "lora_B.weight: expected shape [64, 2], as the model's matrix needs, got [60, 2]"},
        {"{}",
         {{layer + "lora_A.weight", floats({2, 32, 1})}},
         "",
         file + layer + "lora_A.weight: expected shape [2, 1], as adapter_config.json says, got [2, 32, 1]"},
        {"{}",
         {{layer + "lora_A.weight", floats({2, 32}, "I16")}},
         "",
         file + layer + "lora_A.weight: expected BF16, F16 or F32, got I16"},
        {"{}", {}, "lora_B.weight", file + layer + "lora_A.weight: expected a lora_B beside it, got none"},
        {"{}", {}, "lora_A.weight", file + layer + "lora_B.weight: expected a lora_A beside it, got none"},
        {"{}", {}, "weight", "adapter_model.safetensors: expected tensors of LoRA, got none"},
        {"{}",
         {{layer + "lora_A.default.weight", floats({2, 32})}},
         "",
         file + layer + "lora_A.weight: expected one tensor of its kind, got also " + layer + "lora_A.default.weight"},
        {"{}",
         {{"base_model.model.model.embed_tokens.lora_embedding_A", floats({2, 96})}},
         "",
         file +
             "base_model.model.model.embed_tokens.lora_embedding_A: expected base_model.model.MODULE.lora_A.weight or "
             ".lora_B.weight, got another tensor" +
             peft},
        {"{}",
         {{layer + "lora_magnitude_vector", floats({64})}},
         "",
         file + layer +
             "lora_magnitude_vector: expected base_model.model.MODULE.lora_A.weight or .lora_B.weight, got another "
             "tensor" +
             peft},
        {"{}",
         {{vision + "A.weight", floats({2, 8})}, {vision + "B.weight", floats({8, 2})}},
         "",
         file + vision + "A.weight" + unknown + "model.visual.blocks.0.attn.qkv"},
        {"{}",
         {{experts + "A.weight", floats({2, 8})}, {experts + "B.weight", floats({8, 2})}},
         "",
         file + experts + "A.weight" + unknown + "model.layers.0.mlp.experts"},
        {"{}",
         {{tied + "A.weight", floats({2, 32})}, {tied + "B.weight", floats({96, 2})}},
         "",
         file + tied + "A.weight" + unknown + "lm_head"},
        {"{}",
         {{"base_model.model.layers.0.self_attn.q_proj.lora_A.weight", floats({2, 32})},
          {"base_model.model.layers.0.self_attn.q_proj.lora_B.weight", floats({64, 2})}},
         "",
         file + layer +
             "lora_A.weight: expected one pair for model.layers.0.self_attn.q_proj.weight, got also "
             "base_model.model.layers.0.self_attn.q_proj.lora_A.weight"},
    };
    for (const Refusal& refusal : refusals) EXPECT_EQ(complaint(refusal), refusal.line);
}

TEST_F(RefusedAdapters, FilesThatAreNotThere) {
    EXPECT_EQ(complaint(), "adapter_config.json: expected a readable file, got No such file or directory");
    std::ofstream(folder_ / "adapter_config.json") << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";
    EXPECT_EQ(complaint(), "adapter_model.safetensors: expected a readable file, got No such file or directory");
    std::ofstream(folder_ / "adapter_model.bin") << "";
    EXPECT_EQ(complaint(), folder_.string() +
                               ": expected adapter_model.safetensors, got only adapter_model.bin; save it as "
                               "safetensors (PEFT: save_pretrained)");
    std::ofstream(folder_ / "adapter_model.safetensors") << "0123";
    EXPECT_EQ(
        complaint(),
        "adapter_model.safetensors: size: expected at least 8 bytes, got 4; the file was cut short: fetch it again");
}

TEST_F(RefusedAdapters, NumbersThatAreNotFinite) {
    for (const char* tensor : {"lora_A.weight", "lora_B.weight"}) {
        StoredTensor bad =
            floats(tensor[5] == 'A' ? std::vector<std::int64_t>{2, 32} : std::vector<std::int64_t>{64, 2});
        std::fill_n(bad.bytes.begin(), 4, '\xff');
        EXPECT_EQ(complaint({"{}", {{layer + tensor, bad}}, "", ""}), "(none)");
        try {
            run(parity("llama-llama3"), Precision::fp32, 2, folder_);
            ADD_FAILURE();
        } catch (const std::runtime_error& error) {
            EXPECT_EQ(error.what(), (folder_ / "adapter_model.safetensors").string() + ": " + layer + tensor +
                                        ": expected finite numbers, got NaN or infinity");
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
