// A LoRA adapter in a folder as PEFT writes it: adapter_config.json and adapter_model.safetensors. FolderSource merges
// it into the matrices that it reads, W + scale * B A, before they are packed. Used by model loading, `check` and
// `inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "engine/model/config.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/weight_plan.hpp"

namespace longhaul::engine {

class Adapter {
  public:
    /// Reads and validates the folder; nothing of it is left out. Throws InputError.
    static Adapter open(const std::filesystem::path& folder);

    /// Finds the model's matrix for each pair of A and B. Throws InputError if there is none, or one of another shape
    /// or order.
    void fit(const ModelConfig& config);

    /// Whether it changes this tensor of the model; after `fit`.
    [[nodiscard]] bool changes(const std::string& tensor) const { return of_tensors_.contains(tensor); }
    /// Adds to the rows of `part`, of a tensor that it changes, in f32: for each element the products of a row of B and
    /// a column of A one after another, then their sum times the scale. Uses several threads. Returns whether all
    /// elements are finite. Throws InputError if A or B are not.
    bool add(const TensorPart& part, float* rows) const;

    /// "rank 8, 14 matrices"
    [[nodiscard]] std::string summary() const;
    /// Of tensors and scales, independent of path and file names.
    [[nodiscard]] std::uint64_t fingerprint() const;
    [[nodiscard]] const SafetensorsFolder& tensors() const { return tensors_; }

    /// A [rank, inputs] and B [outputs, rank] of a linear layer.
    struct Pair {
        std::string a_name, b_name;
        const TensorView* a = nullptr;
        const TensorView* b = nullptr;
        std::int64_t rank = 0;
        double scale = 0;
    };
    /// By module, as the base model names it ("model.layers.0.self_attn.q_proj").
    [[nodiscard]] const std::map<std::string, Pair>& pairs() const { return pairs_; }

  private:
    explicit Adapter(SafetensorsFolder tensors) : tensors_(std::move(tensors)) {}

    SafetensorsFolder tensors_;
    std::map<std::string, Pair> pairs_;
    std::map<std::string, const Pair*> of_tensors_;  ///< by tensor of the model
    std::string by_columns_file_;  ///< that says that matrices are stored column by column; "": none does
};

}  // namespace longhaul::engine
