// Weights as Hugging Face stores them: one safetensors file, or several with an index. Files are mapped, not read,
// and nothing in their header is believed before it is checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace longhaul::engine {

enum class TensorType { bf16, f16, f32, other };

/// A view of one tensor inside a mapped file; valid while its SafetensorsFolder lives. Row-major.
struct TensorView {
    TensorType dtype = TensorType::other;
    std::string dtype_name;           ///< as in the file, "BF16"
    std::vector<std::int64_t> shape;  ///< slowest dimension first
    const std::byte* data = nullptr;  ///< aligned to the element where the writer aligned it: read with memcpy
    std::int64_t num_bytes = 0;
    std::string file;  ///< for messages
};

/// All tensors of a model folder (`model.safetensors`, or `model.safetensors.index.json` and its shards).
class SafetensorsFolder {
  public:
    /// Maps every shard and checks every header (lengths, overlaps, holes, shapes against bytes, names against the
    /// index). Throws InputError; allocates nothing in proportion to a number it has not checked.
    static SafetensorsFolder open(const std::filesystem::path& folder);

    SafetensorsFolder(SafetensorsFolder&&) noexcept;
    SafetensorsFolder& operator=(SafetensorsFolder&&) noexcept;
    ~SafetensorsFolder();

    [[nodiscard]] const std::map<std::string, TensorView>& tensors() const;

    /// The tensor `name`, which must have exactly `shape` and a floating type. Throws InputError naming both shapes.
    [[nodiscard]] const TensorView& require(const std::string& name, const std::vector<std::int64_t>& shape) const;
    [[nodiscard]] bool contains(const std::string& name) const;

    /// Tells the kernel that the pages of these bytes of a tensor are no longer needed (they come back from the file if
    /// they are).
    static void drop_pages(const std::byte* begin, std::int64_t num_bytes);

    /// When the youngest of its files was last changed, ns since 1970.
    [[nodiscard]] std::int64_t last_change() const;

    /// XXH3-64 over the sorted list of (name, type, shape, and a sample of the bytes: the first and last 4 KiB of each
    /// tensor): the model's identity in a run folder. Cheap, and independent of path and sharding.
    [[nodiscard]] std::uint64_t fingerprint() const;

    /// Name of the file to blame in messages about the whole folder.
    [[nodiscard]] const std::string& label() const;

  private:
    struct State;
    explicit SafetensorsFolder(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
