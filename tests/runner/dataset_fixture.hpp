// Data sets in a temporary folder, read with a tokenizer whose ids are bytes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "engine/error.hpp"
#include "runner/data/dataset.hpp"

namespace longhaul::runner {

namespace fs = std::filesystem;
inline constexpr std::int64_t long_context = 131072;

/// One token per byte, so that every id can be checked by eye.
class ByteTokenizer : public engine::Tokenizer {
  public:
    std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<std::int32_t> ids;
        for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
        return ids;
    }
    const std::string& token_bytes(std::int32_t) const override { return none_; }
    bool is_special(std::int32_t id) const override { return id == 256; }
    std::string decode(std::span<const std::int32_t> ids, bool) const override { return {ids.begin(), ids.end()}; }
    void decode_next(engine::DecodeState&, std::int32_t id, std::string& text) const override {
        text += static_cast<char>(id);
    }
    void decode_rest(engine::DecodeState&, std::string&) const override {}
    std::int32_t vocab_size() const override { return 257; }
    std::optional<std::int32_t> bos_id() const override {
        return has_bos ? std::optional<std::int32_t>(256) : std::nullopt;
    }
    bool adds_bos() const override { return has_bos; }
    std::uint64_t fingerprint() const override { return 1; }

    bool has_bos = false;

  private:
    std::string none_;
};

class DataSetTest : public testing::Test {
  protected:
    void SetUp() override { fs::create_directories(folder_); }
    void TearDown() override { fs::remove_all(folder_); }

    fs::path write(const std::string& name, const std::string& text) {
        fs::create_directories((folder_ / name).parent_path());
        std::ofstream(folder_ / name, std::ios::binary) << text;
        return folder_ / name;
    }

    Settings settings(const std::string& task, const fs::path& data) {
        Settings settings;
        settings.task = task;
        settings.data = data;
        settings.max_tokens = 100;
        return settings;
    }

    std::unique_ptr<DataSet> open(const std::string& task, const fs::path& data) {
        return DataSet::open(settings(task, data));
    }

    std::string text_of(const std::vector<std::int32_t>& ids) { return tokenizer_.decode(ids, false); }

    /// "id: text", or "id! error" without the folder's name.
    std::string show(const DataSet& data, std::int64_t index) {
        const Prompt prompt = data.prompt(index, tokenizer_, long_context);
        EXPECT_EQ(prompt.id, data.id(index));
        EXPECT_EQ(prompt.tokens.empty(), !prompt.error.empty());
        return prompt.error.empty() ? prompt.id + ": " + tokenizer_.decode(prompt.tokens, false)
                                    : prompt.id + "! " + short_form(prompt.error);
    }

    std::string short_form(std::string line) const {
        const std::size_t at = line.find(folder_.string() + "/");
        return at == std::string::npos ? line : line.erase(at, folder_.string().size() + 1);
    }

    std::string message_of(const std::function<void()>& action) {
        try {
            action();
        } catch (const InputError& error) {
            return short_form(error.what());
        }
        return "(no error)";
    }

    fs::path folder_ = fs::temp_directory_path() / ("longhaul-dataset-" + std::to_string(::getpid()));
    ByteTokenizer tokenizer_;
};

}  // namespace longhaul::runner
