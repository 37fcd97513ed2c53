// Internals of commit files: encoding, trailer. Private to this folder and its tests; the rest of the program uses
// commit.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/hdf5.hpp"
#include "engine/error.hpp"

namespace longhaul::engine::detail {

/// An intact file written by a newer longhaul. This is not damage: ignoring the file would lose valid work.
class NewerFormat : public InputError {
  public:
    using InputError::InputError;
};

/// Size of the trailer after the HDF5 data. Fields, little-endian, with their bytes: magic (8), format version (4),
/// zero (4), length of the HDF5 data (8), XXH3-64 of everything before this field (8).
inline constexpr std::size_t trailer_bytes = 32;

/// XXH3-64, the checksum of trailers and of whole KV files.
[[nodiscard]] std::uint64_t checksum_of(const std::byte* bytes, std::size_t num_bytes);

/// Writes the trailer into the last `trailer_bytes` of `file`. The bytes before it must be the HDF5 data.
void seal(hdf5::Bytes& file, std::uint32_t format_version = checkpoint_format_version);

/// The bytes of a commit's file.
hdf5::Bytes encode_commit(const Commit& commit);
/// Verifies and decodes the bytes of a commit's file. `label`: the file name for messages. Throws InputError,
/// NewerFormat for a newer format version.
Commit decode_commit(const std::string& label, const std::byte* bytes, std::size_t num_bytes);

}  // namespace longhaul::engine::detail
