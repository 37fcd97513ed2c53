// Writes and reads KV files. verify_kv_file checks the whole file against the checksum in its commit, then KvReader
// reads blocks. Private to this folder and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/hdf5_reader.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/kv_source.hpp"

namespace longhaul::engine {

/// Builds and publishes one KV file with heads [first_kv_head, first_kv_head + num_kv_heads) of the model. Throws
/// StorageError.
KvFile write_kv_file(const std::filesystem::path& folder, const std::string& name, const CheckpointIdentity& identity,
                     std::int64_t first_kv_head, std::int64_t num_kv_heads, const std::vector<KvSource>& items);

namespace detail {

/// Compares size and checksum of the file; calls `progress` after each piece of 1 MiB. Throws InputError that names the
/// file and the difference.
void verify_kv_file(const std::string& path, const KvFile& expected, const std::function<void()>& progress);

/// Bytes of the key (or value) of one token and head in the datasets of a group of layers.
[[nodiscard]] std::size_t kv_token_bytes(const CheckpointIdentity& identity, std::size_t group);

/// An open KV file. Use only for a file that passed verify_kv_file: the HDF5 library trusts the bytes it opens.
class KvReader {
  public:
    /// The positions of one item in this file.
    struct Range {
        std::int64_t kv_begin = 0, kv_end = 0;
        std::vector<std::int64_t> first_rows{};  ///< by group: index of its first position on the token axis
    };

    /// Throws InputError if the file does not match its commit and the identity.
    KvReader(const std::string& path, const KvFile& expected, const CheckpointIdentity& identity);

    [[nodiscard]] const std::map<std::string, Range>& items() const { return items_; }

    /// Reads rows of an item, [rows.count, kv_token_bytes]. Throws std::logic_error for positions of a window that are
    /// not stored.
    void read(const Range& item, const KvRows& rows, std::byte* to) const;

  private:
    void read_items();

    hdf5::Reader reader_;
    hdf5::Type type_;
    std::int64_t first_kv_head_ = 0;
    std::vector<KvGroup> groups_;
    std::vector<std::int64_t> first_heads_;             ///< by group
    std::vector<hdf5::Reader::Dataset> keys_, values_;  ///< by group
    std::map<std::string, Range> items_;
};

}  // namespace detail
}  // namespace longhaul::engine
