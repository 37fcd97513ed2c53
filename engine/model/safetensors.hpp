// Reads weights as Hugging Face stores them: one safetensors file, or several with an index. Files are memory-mapped,
// and nothing in a header is used before it is validated. Called by model loading, `check` and `inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace longhaul::engine {

enum class TensorType { bf16, f16, f32, f8_e4m3, i8, other };

constexpr bool is_float(TensorType type) {
    return type == TensorType::bf16 || type == TensorType::f16 || type == TensorType::f32;
}

/// A view of one tensor inside a mapped file; valid while its SafetensorsFolder lives. Row-major.
struct TensorView {
    TensorType dtype = TensorType::other;
    std::string dtype_name;           ///< name in the file, "BF16"
    std::vector<std::int64_t> shape;  ///< slowest dimension first
    const std::byte* data = nullptr;  ///< may be unaligned: read with memcpy
    std::int64_t num_bytes = 0;
    std::string file;  ///< for messages
};

/// "[2, 3]", for messages; of more than eight dimensions the first eight.
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Element i of a tensor of floats (is_float), as they lie in memory.
float element_of(const TensorView& tensor, std::int64_t i);

/// The values of a tensor of one dimension and type I64. Throws InputError.
std::vector<std::int64_t> integers_of(const TensorView& tensor, const std::string& name);

/// All tensors of a model folder (`model.safetensors`, or `model.safetensors.index.json` and its shards).
class SafetensorsFolder {
  public:
    /// Maps every shard and validates every header (lengths, overlaps, holes, shapes against bytes, names against the
    /// index). Throws InputError. Never allocates memory in proportion to an unchecked number.
    static SafetensorsFolder open(const std::filesystem::path& folder);

    /// The same for a folder's one file, of any name.
    static SafetensorsFolder open_file(const std::filesystem::path& file);

    SafetensorsFolder(SafetensorsFolder&&) noexcept;
    SafetensorsFolder& operator=(SafetensorsFolder&&) noexcept;
    ~SafetensorsFolder();

    [[nodiscard]] const std::map<std::string, TensorView>& tensors() const;

    /// Returns the tensor `name`, which must have exactly `shape` and type BF16, F16 or F32. Throws InputError naming
    /// both shapes.
    [[nodiscard]] const TensorView& require(const std::string& name, const std::vector<std::int64_t>& shape) const;
    /// The same for any type.
    [[nodiscard]] const TensorView& require_shape(const std::string& name,
                                                  const std::vector<std::int64_t>& shape) const;
    [[nodiscard]] bool contains(const std::string& name) const;

    /// Tells the operating system that the pages of these bytes are no longer needed; they are read from the file again
    /// if they are accessed.
    static void drop_pages(const std::byte* begin, std::int64_t num_bytes);

    /// Time of the newest change of any of its files, ns since 1970.
    [[nodiscard]] std::int64_t last_change() const;

    /// XXH3-64 over the sorted list of (name, type, shape, first and last 4 KiB of the bytes) of each tensor: the
    /// model's identity in a run folder. Cheap, and independent of path and sharding.
    [[nodiscard]] std::uint64_t fingerprint() const;

    /// File name for error messages about the whole folder.
    [[nodiscard]] const std::string& label() const;

  private:
    struct State;
    explicit SafetensorsFolder(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
