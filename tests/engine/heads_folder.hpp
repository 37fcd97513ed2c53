// Folders of trained draft heads for tests: random weights of any width, in the layout of published checkpoints.
#pragma once

#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace longhaul::engine::testing {

/// A bf16 tensor.
struct HeadTensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};

/// A temporary folder, removed by the destructor.
class HeadsFolder {
  public:
    /// Small random matrices, and gains near 1. `edit` changes the tensors before they are written.
    HeadsFolder(std::int64_t width, std::int64_t num_heads,
                const std::function<void(std::vector<HeadTensor>&)>& edit = {}, const std::string& config = "") {
        static int count = 0;
        path_ = std::filesystem::temp_directory_path() /
                ("longhaul-heads-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
        std::filesystem::create_directories(path_);
        std::mt19937 random(7);
        std::normal_distribution<float> normal(0, 0.3F / std::sqrt(static_cast<float>(width)));
        std::vector<HeadTensor> tensors;
        for (std::int64_t i = 0; i < num_heads; ++i) {
            const std::string layer = "model.medusa_layers." + std::to_string(i) + ".";
            HeadTensor linear{layer + "linear.weight", {width, width}, {}};
            for (std::int64_t j = 0; j < width * width; ++j) linear.values.push_back(normal(random));
            tensors.push_back(std::move(linear));
            for (const char* norm : {"input_layernorm.weight", "post_layernorm.weight"}) {
                HeadTensor gain{layer + norm, {width}, {}};
                for (std::int64_t j = 0; j < width; ++j) gain.values.push_back(1 + normal(random));
                tensors.push_back(std::move(gain));
            }
        }
        if (edit) edit(tensors);
        write("model.safetensors", safetensors_of(tensors));
        write("config.json", config.empty()
                                 ? R"({"model_type": "medusa_heads", "medusa_heads": )" + std::to_string(num_heads) +
                                       R"(, "hidden_size": )" + std::to_string(width) + "}"
                                 : config);
    }
    ~HeadsFolder() { std::filesystem::remove_all(path_); }
    HeadsFolder(const HeadsFolder&) = delete;
    HeadsFolder& operator=(const HeadsFolder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  private:
    static std::string safetensors_of(const std::vector<HeadTensor>& tensors) {
        std::string header = "{", data;
        for (const HeadTensor& tensor : tensors) {
            std::string shape;
            for (const std::int64_t size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
            const std::size_t begin = data.size();
            for (const float value : tensor.values) {
                const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
                data.append(reinterpret_cast<const char*>(&bits), sizeof bits);
            }
            header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + R"(":{"dtype":"BF16","shape":[)" + shape +
                      R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
        }
        header += "}";
        std::string file(sizeof(std::uint64_t), '\0');
        const std::uint64_t size = header.size();
        std::memcpy(file.data(), &size, sizeof size);
        return file + header + data;
    }
    void write(const char* name, const std::string& bytes) const {
        std::ofstream(path_ / name, std::ios::binary) << bytes;
    }

    std::filesystem::path path_;
};

}  // namespace longhaul::engine::testing
