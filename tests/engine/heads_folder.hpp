// Folders of trained draft heads and layers for tests: random weights of any width, in the layout of published
// checkpoints.
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

/// A bf16 tensor, or one of integers.
struct HeadTensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
    std::vector<std::int64_t> integers{};
};

/// A temporary folder of tensors and a config.json, removed by the destructor.
class TensorsFolder {
  public:
    TensorsFolder(const std::vector<HeadTensor>& tensors, const std::string& config) {
        static int count = 0;
        path_ = std::filesystem::temp_directory_path() /
                ("longhaul-tensors-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
        std::filesystem::create_directories(path_);
        write("model.safetensors", safetensors_of(tensors));
        write("config.json", config);
    }
    ~TensorsFolder() { std::filesystem::remove_all(path_); }
    TensorsFolder(const TensorsFolder&) = delete;
    TensorsFolder& operator=(const TensorsFolder&) = delete;

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
            data.append(reinterpret_cast<const char*>(tensor.integers.data()), tensor.integers.size() * 8);
            header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + R"(":{"dtype":")" +
                      (tensor.values.empty() ? "I64" : "BF16") + R"(","shape":[)" + shape + R"(],"data_offsets":[)" +
                      std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
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

/// Small random numbers: matrices, and gains near 1.
class RandomTensors {
  public:
    explicit RandomTensors(std::int64_t width) : normal_(0, 0.3F / std::sqrt(static_cast<float>(width))) {}

    void add_matrix(const std::string& name, std::int64_t rows, std::int64_t columns, float scale = 1) {
        add(name, {rows, columns}, rows * columns, 0, scale);
    }
    void add_gain(const std::string& name, std::int64_t width) { add(name, {width}, width, 1, 1); }
    void add_bias(const std::string& name, std::int64_t width) { add(name, {width}, width, 0, 1); }

    std::vector<HeadTensor> tensors;

  private:
    void add(const std::string& name, std::vector<std::int64_t> shape, std::int64_t count, float mean, float scale) {
        HeadTensor& tensor = tensors.emplace_back(HeadTensor{name, std::move(shape), {}});
        for (std::int64_t i = 0; i < count; ++i) tensor.values.push_back(mean + scale * normal_(random_));
    }
    std::mt19937 random_{7};
    std::normal_distribution<float> normal_;
};

/// A folder of heads; `edit` changes the tensors before they are written.
class HeadsFolder : public TensorsFolder {
  public:
    HeadsFolder(std::int64_t width, std::int64_t num_heads,
                const std::function<void(std::vector<HeadTensor>&)>& edit = {}, const std::string& config = "")
        : TensorsFolder(tensors_of(width, num_heads, edit),
                        config.empty()
                            ? R"({"model_type": "medusa_heads", "medusa_heads": )" + std::to_string(num_heads) +
                                  R"(, "hidden_size": )" + std::to_string(width) + "}"
                            : config) {}

  private:
    static std::vector<HeadTensor> tensors_of(std::int64_t width, std::int64_t num_heads,
                                              const std::function<void(std::vector<HeadTensor>&)>& edit) {
        RandomTensors random(width);
        for (std::int64_t i = 0; i < num_heads; ++i) {
            const std::string layer = "model.medusa_layers." + std::to_string(i) + ".";
            random.add_matrix(layer + "linear.weight", width, width);
            random.add_gain(layer + "input_layernorm.weight", width);
            random.add_gain(layer + "post_layernorm.weight", width);
        }
        if (edit) edit(random.tensors);
        return std::move(random.tensors);
    }
};

}  // namespace longhaul::engine::testing
