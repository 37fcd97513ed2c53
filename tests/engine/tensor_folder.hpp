// A model folder of a few tensors, and matrices read from it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/stored_matrix.hpp"

namespace longhaul::engine {

struct StoredTensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
};

inline std::string f32_bytes(const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

inline void write_safetensors(const std::filesystem::path& path, const std::map<std::string, StoredTensor>& tensors) {
    Json header = Json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
        header[name] = {{"dtype", tensor.dtype},
                        {"shape", tensor.shape},
                        {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
        data += tensor.bytes;
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::string prefix(8, '\0');
    std::memcpy(prefix.data(), &length, 8);
    std::ofstream(path, std::ios::binary) << prefix << text << data;
}

/// A folder with one file of the given tensors.
class TensorFolder {
  public:
    explicit TensorFolder(const std::map<std::string, StoredTensor>& tensors) {
        static int count = 0;
        path_ = std::filesystem::temp_directory_path() /
                ("longhaul-scaled-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
        std::filesystem::create_directories(path_);
        write_safetensors(path_ / "model.safetensors", tensors);
        tensors_ = std::make_unique<SafetensorsFolder>(SafetensorsFolder::open(path_));
    }
    ~TensorFolder() { std::filesystem::remove_all(path_); }

    [[nodiscard]] const SafetensorsFolder& tensors() const { return *tensors_; }
    [[nodiscard]] std::string complaint(const std::string& name, std::int64_t rows, std::int64_t columns,
                                        StackPlace place = {}) const {
        try {
            static_cast<void>(require_matrix(*tensors_, name, rows, columns, place));
        } catch (const InputError& error) {
            std::string line = error.what();
            return line.substr(line.find(": ") + 2);
        }
        return "(none)";
    }

  private:
    std::filesystem::path path_;
    std::unique_ptr<SafetensorsFolder> tensors_;
};

inline std::vector<float> values_of(const TensorFolder& folder, std::int64_t rows, std::int64_t columns,
                                    const MatrixRange& range, bool finite = true, StackPlace place = {}) {
    std::vector<float> out(static_cast<std::size_t>(range.num_rows * range.num_columns));
    EXPECT_EQ(read_as_f32(require_matrix(folder.tensors(), "w", rows, columns, place), range, out.data()), finite);
    return out;
}

}  // namespace longhaul::engine
