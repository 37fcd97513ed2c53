// Reading KV files: verified whole by the checksum in their commit, then read by blocks. Private to this room and its
// tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/hdf5_reader.hpp"

namespace longhaul::engine::detail {

/// Hashes the file in pieces and compares size and checksum. Throws InputError naming the file and what differs.
void verify_kv_file(const std::string& path, const KvFile& expected, const std::function<void()>& progress);

/// Bytes of one key (value) of one head, and elements of the type that the datasets have.
[[nodiscard]] std::size_t kv_token_bytes(const CheckpointIdentity& identity);

/// One open KV file. Call only for a file that verify_kv_file passed: the HDF5 library trusts what it opens.
class KvReader {
  public:
    /// Positions of one item in this file.
    struct Range {
        std::int64_t kv_begin = 0, kv_end = 0;
        std::int64_t first_row = 0;  ///< where kv_begin stands on the token axis of the datasets
    };

    /// Throws InputError where the file is not what commit and identity say.
    KvReader(const std::string& path, const KvFile& expected, const CheckpointIdentity& identity);

    [[nodiscard]] const std::map<std::string, Range>& items() const { return items_; }

    /// [count, kv_token_bytes] of positions from `first` of an item in here; `kv_head` global.
    void read(const Range& item, std::int64_t layer, std::int64_t kv_head, bool values, std::int64_t first,
              std::int64_t count, std::byte* to) const;

  private:
    void read_items();

    hdf5::Reader reader_;
    hdf5::Type type_;
    std::int64_t first_kv_head_ = 0;
    hdf5::Reader::Dataset keys_, values_;
    std::map<std::string, Range> items_;
};

}  // namespace longhaul::engine::detail
