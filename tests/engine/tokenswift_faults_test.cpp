// Folders of TokenSwift models with something wrong: each fault is one line that names file, field and fix, and the
// model itself stays usable. Also heads on targets of other kinds.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/draft/heads.hpp"
#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

const std::filesystem::path parity_folder = LONGHAUL_TEST_DATA "/parity";
const std::filesystem::path demo_folder = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path();

std::string bytes_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// A copy of the Qwen2.5 layout (36 wide, 3 heads, one file) that tests change; removed by the destructor.
class BrokenFolder {
  public:
    BrokenFolder() : path_(std::filesystem::temp_directory_path() / ("tokenswift_faults." + std::to_string(getpid()))) {
        std::filesystem::copy(parity_folder / "tokenswift-qwen2.5", path_);
    }
    ~BrokenFolder() { std::filesystem::remove_all(path_); }
    BrokenFolder(const BrokenFolder&) = delete;
    BrokenFolder& operator=(const BrokenFolder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

    void edit_config(const std::function<void(nlohmann::json&)>& change) const {
        nlohmann::json config = nlohmann::json::parse(bytes_of(path_ / "config.json"));
        change(config);
        std::ofstream(path_ / "config.json") << config.dump();
    }
    /// Changes the header and the data of model.safetensors.
    void edit_tensors(const std::function<void(nlohmann::json& header, std::string& data)>& change) const {
        const std::string file = bytes_of(path_ / "model.safetensors");
        std::uint64_t length = 0;
        std::memcpy(&length, file.data(), sizeof length);
        nlohmann::json header = nlohmann::json::parse(file.substr(sizeof length, length));
        std::string data = file.substr(sizeof length + length);
        change(header, data);
        const std::string text = header.dump();
        length = text.size();
        std::ofstream(path_ / "model.safetensors", std::ios::binary)
            << std::string(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
    }

  private:
    std::filesystem::path path_;
};

/// The error of `action`, without the folder's name; "" if there is none.
std::string line_of(const std::filesystem::path& folder, const std::function<void()>& action) {
    try {
        action();
        return "";
    } catch (const Error& error) {
        std::string line = error.what();
        const std::string prefix = folder.string() + "/";
        if (const std::size_t at = line.find(prefix); at != std::string::npos) line.erase(at, prefix.size());
        return line;
    }
}

/// The error of a job that drafts with `tree` over the heads in `heads`, whose target is the model in `model`.
std::string heads_error(const std::filesystem::path& model, const std::filesystem::path& heads,
                        const char* tree = "1,3,3,3") {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto target = Model::load(model, Precision::bf16, *device, *group);  // whatever is wrong with its heads
    for (const std::string& notice : target->notices()) EXPECT_EQ(notice.find("medusa"), std::string::npos) << notice;
    return line_of(heads, [&] {
        const DraftHeads loaded(heads, *target);
        DraftOptions options;
        options.method = "tokenswift";
        options.tree = tree;
        tree_of_heads(options, loaded.config());
    });
}

constexpr const char* second_matrix = "model.medusa_layers.1.linear.weight";

TEST(TokenSwiftFaults, WhatIsWrongWithTheHeadsIsOneLine) {
    const std::string same_checkpoint = "; config.json and the heads must come from the same checkpoint";
    {
        const BrokenFolder whole;
        EXPECT_EQ(heads_error(whole.path(), whole.path()), "");
        EXPECT_EQ(heads_error(whole.path(), whole.path(), "1,3,3,3,3"),
                  "draft-tree: expected at most 4 levels, the model's own and one for each head of config.json, got 5");
        whole.edit_config([](nlohmann::json& config) { config["medusa_heads"] = 2; });
        EXPECT_EQ(heads_error(whole.path(), whole.path()),
                  "model.safetensors: model.medusa_layers.2.input_layernorm.weight: expected heads 0 to 1, as "
                  "medusa_heads says, got head 2" +
                      same_checkpoint);
        whole.edit_config([](nlohmann::json& config) { config["medusa_heads"] = 4; });
        EXPECT_EQ(heads_error(whole.path(), whole.path()),
                  "model.safetensors: model.medusa_layers.3.linear.weight: expected a tensor of shape [36, 36], got "
                  "none of that name" +
                      same_checkpoint);
        whole.edit_config([](nlohmann::json& config) { config.erase("medusa_heads"); });
        EXPECT_EQ(heads_error(whole.path(), whole.path()),
                  "config.json: medusa_heads: expected the number of heads, got nothing; give a folder of heads as "
                  "draft-model, or a model folder that contains heads");
    }
    {
        const BrokenFolder missing;
        missing.edit_tensors([](nlohmann::json& header, std::string&) {
            header["model.other"] = header[second_matrix];
            header.erase(second_matrix);
        });
        EXPECT_EQ(heads_error(missing.path(), missing.path()),
                  "model.safetensors: " + std::string(second_matrix) +
                      ": expected a tensor of shape [36, 36], got none of that name" + same_checkpoint);
    }
    {
        const BrokenFolder wide;
        wide.edit_tensors([](nlohmann::json& header, std::string&) { header[second_matrix]["shape"] = {18, 72}; });
        EXPECT_EQ(heads_error(wide.path(), wide.path()),
                  "model.safetensors: " + std::string(second_matrix) +
                      ": expected shape [36, 36], as config.json says, got [18, 72]" + same_checkpoint);
    }
    {
        const BrokenFolder nan;
        nan.edit_tensors([](nlohmann::json& header, std::string& data) {
            std::memset(data.data() + header[second_matrix]["data_offsets"][0].get<std::size_t>(), 0xff, 4);
        });
        EXPECT_EQ(heads_error(nan.path(), nan.path()),
                  "model.safetensors: " + std::string(second_matrix) +
                      ": expected finite weights, got NaN or infinity; download or train the heads again");
    }
}

TEST(TokenSwiftFaults, FoldersInTheWrongPlace) {
    const std::filesystem::path qwen = parity_folder / "tokenswift-qwen2.5", other = parity_folder / "tokenswift-yarn";
    EXPECT_EQ(heads_error(qwen, other),
              "config.json: hidden_size: expected 36, as the target has, got 32; heads belong to the model they were "
              "trained on");
    EXPECT_EQ(heads_error(LONGHAUL_DEMO_MODEL, demo_folder / "draft"),
              "config.json: medusa_heads: expected the number of heads, got nothing; give a folder of heads as "
              "draft-model, or a model folder that contains heads");
    const std::string as_model =
        line_of(demo_folder / "tokenswift", [] { ModelConfig::load(demo_folder / "tokenswift"); });
    EXPECT_TRUE(as_model.starts_with("config.json: model_type: expected \"llama\", \"qwen2\", ")) << as_model;
    EXPECT_TRUE(
        as_model.ends_with("\"phi3\" or \"opt\", got \"medusa_heads\"; this folder holds draft heads, not a model; "
                           "they are the draft-model of draft = tokenswift or medusa"))
        << as_model;
}

// No heads are published for OPT, but trained ones work. With all keys and values the first level is the target's own
// token.
TEST(TokenSwiftFaults, OptCanBeTheTarget) {
    for (const char* name : {"opt-bf16", "opt-post-norm-bf16"}) {
        const testing::HeadsFolder heads(32, 3);
        testing::Job job{testing::base_options()};
        job.model = parity_folder / name;
        job.items = 2;
        job.generation.max_tokens = 41;
        job.options.draft.method = "ar";
        const auto plain = testing::tokens_of(testing::launch(job).items);
        job.heads = heads.path();
        job.options.draft.method = "tokenswift";
        job.options.draft.partial_cache.mode = PartialMode::full;
        job.options.draft.ngram_top = 0;
        for (const char* tree : {"1", "1,3,3,3"}) {
            job.options.draft.tree = tree;
            const testing::JobResult result = testing::launch(job);
            EXPECT_EQ(testing::tokens_of(result.items), plain) << name << ", tree " << tree;
            if (std::string(tree) == "1") {
                EXPECT_EQ(result.sum.accepted, result.sum.drafted) << name;
            }
        }
        EXPECT_EQ(heads_error(job.model, job.model),
                  "config.json: medusa_heads: expected the number of heads, got nothing; give a folder of heads as "
                  "draft-model, or a model folder that contains heads");
    }
}

}  // namespace
}  // namespace longhaul::engine
