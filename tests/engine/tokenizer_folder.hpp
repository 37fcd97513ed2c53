// A copy of one of the tokenizers of tests/data/tokenizer, which tests modify and corrupt.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

class TokenizerFolder {
  public:
    /// Copies the files of `kind`; without a kind the folder is empty.
    explicit TokenizerFolder(const std::string& kind = {}) {
        std::string name = (std::filesystem::temp_directory_path() / "longhaul-tokenizer-XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::runtime_error("cannot make a temporary folder");
        path_ = name;
        if (kind.empty()) return;
        for (const auto& entry : std::filesystem::directory_iterator(source(kind)))
            std::filesystem::copy_file(entry.path(), path_ / entry.path().filename());
    }
    ~TokenizerFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TokenizerFolder(const TokenizerFolder&) = delete;
    TokenizerFolder& operator=(const TokenizerFolder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::unique_ptr<Tokenizer> load() const { return Tokenizer::load(path_); }

    void copy(const std::string& kind, const std::string& file) const {
        std::filesystem::copy_file(source(kind) / file, path_ / file);
    }
    void remove(const std::string& file) const { std::filesystem::remove(path_ / file); }
    void write(const std::string& file, const std::string& bytes) const {
        std::ofstream(path_ / file, std::ios::binary) << bytes;
    }
    [[nodiscard]] std::string read(const std::string& file) const { return read_file(path_ / file, 1 << 24); }
    void edit(const std::string& file, const std::function<void(Json&)>& change) const {
        Json json = read_json(path_ / file);
        change(json);
        write(file, json_text(json));
    }

    /// The error of loading, without the folder's name; "(no error)" if loading succeeds.
    [[nodiscard]] std::string error() const {
        try {
            (void)load();
        } catch (const InputError& error) {
            std::string line = error.what();
            const std::string prefix = path_.string();
            if (line.starts_with(prefix + "/")) line.erase(0, prefix.size() + 1);
            return line;
        }
        return "(no error)";
    }

  private:
    static std::filesystem::path source(const std::string& kind) {
        return std::filesystem::path(LONGHAUL_TEST_DATA) / "tokenizer" / kind;
    }

    std::filesystem::path path_;
};

}  // namespace longhaul::engine
