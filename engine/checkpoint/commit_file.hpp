// Inside of a commit file: the sealed image, the names, and which refusals there are. Private to this room and its
// tests; the rest of the program uses checkpoint.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/hdf5.hpp"
#include "engine/error.hpp"

namespace longhaul::engine::detail {

/// An intact file that a newer longhaul wrote. Not damage: going on without it would throw good work away.
class NewerFormat : public InputError {
  public:
    using InputError::InputError;
};

/// What a file name of a checkpoint folder says; rank < 0: a commit.
struct FileName {
    std::int64_t replica = 0, epoch = 0, round = 0;
    std::int64_t rank = -1;
    bool temporary = false;
};
/// nullopt where `name` is not one that we write: canonical decimal numbers and nothing else, so no path separators.
std::optional<FileName> parse_file_name(std::string_view name);

/// Bytes of the trailer behind the HDF5 data: magic (8), format version (4, little-endian as all), zero (4), length of
/// the HDF5 data (8), XXH3-64 of everything before this field (8).
inline constexpr std::size_t trailer_bytes = 32;

/// XXH3-64, the checksum of trailers and of whole KV files.
[[nodiscard]] std::uint64_t checksum_of(const std::byte* bytes, std::size_t num_bytes);

/// Fills the last `trailer_bytes` of `file`, the rest of which is HDF5 data.
void seal(hdf5::Bytes& file, std::uint32_t format_version = checkpoint_format_version);

/// The commit as its file is.
hdf5::Bytes encode_commit(const Commit& commit);
/// Counterpart of encode_commit. `label`: the file as messages name it.
Commit decode_commit(const std::string& label, const std::byte* bytes, std::size_t num_bytes);

/// A file opened for reading that must be a regular one; reads exactly or throws InputError naming the file.
class InputFile {
  public:
    explicit InputFile(const std::string& path);
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    ~InputFile();

    [[nodiscard]] std::uint64_t num_bytes() const { return num_bytes_; }
    void read_at(std::uint64_t offset, std::byte* to, std::size_t num_bytes) const;

  private:
    std::string path_;
    int fd_ = -1;
    std::uint64_t num_bytes_ = 0;
};

}  // namespace longhaul::engine::detail
