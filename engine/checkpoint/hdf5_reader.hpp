// Reads HDF5 from untrusted files. The callers verify checksums first (commit.cpp, kv_file.cpp). This reader refuses
// well-formed files that longhaul did not write: external links or storage, other filters, other types and shapes than
// the format (FORMAT.md), sizes that the file cannot hold. Every refusal is an InputError with file and dataset.
// Private to this folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/hdf5.hpp"

namespace longhaul::engine {

struct CheckpointIdentity;

namespace hdf5 {

/// Appended to messages about damaged or foreign files: the user loses only time.
inline constexpr std::string_view recompute_hint = "a run recomputes its contents";

/// Refuses a file that does not begin as all our files do: HDF5 signature, superblock version 2, no open-for-write or
/// other flag. `bytes`: the beginning of the file.
void check_superblock(const std::string& label, const std::byte* bytes, std::size_t num_bytes);

class Reader {
  public:
    /// `label`: the file name for messages. `num_bytes`: size of the file, an upper bound for every dataset.
    Reader(std::string label, Handle file, std::uint64_t num_bytes)
        : label_(std::move(label)), file_(std::move(file)), num_bytes_(num_bytes) {}

    [[noreturn]] void refuse(std::string_view field, std::string_view expected, std::string_view got) const;

    /// Checks that the group holds exactly these names, each a hard link, so that no link leads out of the file.
    void expect_links(const char* group, const std::vector<const char*>& names) const;

    /// Attributes of the root group.
    [[nodiscard]] std::int64_t number(const char* attribute) const;
    [[nodiscard]] std::string text(const char* attribute) const;
    /// A number that must be in [0, limit].
    [[nodiscard]] std::int64_t number_up_to(const char* attribute, std::int64_t limit) const;

    struct Dataset {
        std::string path;
        Handle id;
        Dims dims;
        [[nodiscard]] hsize_t num_elements() const;
    };
    /// Opens and checks a dataset: type, number of dimensions, chunked with only the Fletcher32 filter, stored entirely
    /// in this file.
    [[nodiscard]] Dataset open(const std::string& path, Type type, std::size_t rank) const;

    void read_block(const Dataset& dataset, Type type, const Dims& start, const Dims& count, void* values) const;

    /// All values of a one-dimensional dataset.
    template <class T>
    [[nodiscard]] std::vector<T> values(const std::string& path) const {
        const Dataset dataset = open(path, type_of<T>, 1);
        std::vector<T> result(dataset.num_elements());
        if (!result.empty()) read_block(dataset, type_of<T>, {0}, dataset.dims, result.data());
        return result;
    }
    /// All values of a one-dimensional dataset that must have `num_rows` elements.
    template <class T>
    [[nodiscard]] std::vector<T> column(const std::string& path, std::size_t num_rows) const {
        std::vector<T> result = values<T>(path);
        if (result.size() != num_rows) refuse_rows(path, num_rows, result.size());
        return result;
    }

    /// `num_rows` rows of different length, stored end to end in `path`, with the lengths in `path`_count.
    template <class Row>
    [[nodiscard]] std::vector<Row> ragged(const std::string& path, std::size_t num_rows) const {
        using T = ragged_element<Row>;
        const std::vector<T> flat = values<T>(path);
        const std::vector<std::size_t> ends = row_ends(path + "_count", num_rows, flat.size());
        std::vector<Row> rows(num_rows);
        for (std::size_t row = 0; row < num_rows; ++row) {
            rows[row].assign(flat.begin() + static_cast<std::ptrdiff_t>(row == 0 ? 0 : ends[row - 1]),
                             flat.begin() + static_cast<std::ptrdiff_t>(ends[row]));
        }
        return rows;
    }

    [[nodiscard]] const std::string& label() const { return label_; }

  private:
    template <class Row>
    using ragged_element = std::conditional_t<std::is_same_v<Row, std::string>, std::uint8_t, typename Row::value_type>;

    [[noreturn]] void refuse_rows(const std::string& path, std::size_t expected, std::size_t got) const;
    [[nodiscard]] std::vector<std::size_t> row_ends(const std::string& path, std::size_t num_rows,
                                                    std::size_t num_values) const;
    void check_storage(const Dataset& dataset, hid_t creation, Type type) const;
    [[nodiscard]] Handle attribute(const char* name) const;
    /// Runs `action` and turns a Failure into an InputError about `field`.
    template <class Action>
    auto guarded(std::string_view field, Action&& action) const {
        try {
            return action();
        } catch (const Failure& failure) {
            refuse(field, "readable HDF5 data", failure.what());
        }
    }

    std::string label_;
    Handle file_;
    std::uint64_t num_bytes_ = 0;
};

/// Opens the bytes of a file, or a file on disk, after its checksum was verified.
[[nodiscard]] Reader open_reader(const std::string& label, const std::byte* bytes, std::size_t num_bytes);
[[nodiscard]] Reader open_reader(const std::string& path, std::uint64_t num_bytes);

/// The identity attributes of every file.
void write_identity(hid_t file, const CheckpointIdentity& identity);
[[nodiscard]] CheckpointIdentity read_identity(const Reader& reader);

/// Writes rows of different length; counterpart of Reader::ragged.
template <class Row>
void write_ragged(hid_t at, const std::string& name, const std::vector<Row>& rows) {
    std::vector<std::int64_t> counts;
    std::size_t total = 0;
    for (const Row& row : rows) {
        counts.push_back(static_cast<std::int64_t>(row.size()));
        total += row.size();
    }
    std::vector<typename Row::value_type> flat;
    flat.reserve(total);
    for (const Row& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    write_values(at, name.c_str(), type_of<typename Row::value_type>, flat.data(), flat.size());
    write_values(at, (name + "_count").c_str(), counts);
}

}  // namespace hdf5
}  // namespace longhaul::engine
