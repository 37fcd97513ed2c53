// Reads and writes commit files: items and KV files of one round, as columns under /items, /drafter_tensors and
// /kv_files (FORMAT.md).
#include "engine/checkpoint/commit.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <unordered_set>
#include <utility>

#include "engine/checkpoint/commit_file.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/hdf5_reader.hpp"
#include "engine/checkpoint/input_file.hpp"

namespace longhaul::engine {
namespace detail {
namespace {

static_assert(std::endian::native == std::endian::little, "the trailer is written as it lies in memory");

constexpr char magic[8] = {'L', 'H', 'C', 'O', 'M', 'M', 'I', 'T'};
constexpr std::string_view format_text = "longhaul commit";

/// Upper bound of every position, count and round number in a file. Sums of a few of them cannot overflow.
constexpr std::int64_t max_count = std::int64_t{1} << 48;
/// A commit holds tokens and drafter rows of one round: megabytes. Larger files are refused.
constexpr std::uint64_t max_commit_bytes = std::uint64_t{1} << 30;

struct Trailer {
    char magic[8];
    std::uint32_t format_version;
    std::uint32_t zero;
    std::uint64_t num_bytes;  ///< length of the HDF5 data
    std::uint64_t checksum;
};
static_assert(sizeof(Trailer) == trailer_bytes);

/// The trailer's checksum: of all bytes before the checksum field.
std::uint64_t sealing_checksum(const std::byte* bytes, std::size_t num_bytes) {
    return checksum_of(bytes, num_bytes - sizeof(Trailer::checksum));
}

[[noreturn]] void refuse_trailer(const std::string& label, std::string_view expected, std::string_view got) {
    throw InputError(label, "trailer", expected, got, hdf5::recompute_hint);
}

/// Checks that there is a trailer and that its length field matches the file size. Done before the whole file is read
/// into memory.
Trailer check_trailer(const std::string& label, const std::byte* last_bytes, std::uint64_t file_bytes) {
    Trailer trailer{};
    std::memcpy(&trailer, last_bytes, sizeof trailer);
    if (std::memcmp(trailer.magic, magic, sizeof magic) != 0) {
        refuse_trailer(label, "the mark of a complete commit", "other bytes: cut off, overwritten or not a commit");
    }
    const std::uint64_t data_bytes = file_bytes - sizeof trailer;
    if (trailer.num_bytes != data_bytes) {
        refuse_trailer(label, std::to_string(trailer.num_bytes) + " bytes of data", std::to_string(data_bytes));
    }
    return trailer;
}

/// Checks that the bytes are unchanged and the format is known. Throws InputError or NewerFormat.
void check_checksum(const std::string& label, const Trailer& trailer, const std::byte* bytes, std::size_t num_bytes) {
    if (trailer.checksum != sealing_checksum(bytes, num_bytes)) {
        refuse_trailer(label, "the checksum of the data", "a different checksum: the file is damaged");
    }
    if (trailer.format_version > checkpoint_format_version) {
        throw NewerFormat(label, "format_version", std::to_string(checkpoint_format_version) + " or older",
                          std::to_string(trailer.format_version),
                          "use the longhaul that wrote it or a newer one, or another output folder");
    }
}

void check_file_size(const std::string& label, std::uint64_t num_bytes) {
    if (num_bytes < trailer_bytes || num_bytes > max_commit_bytes) {
        throw InputError(
            label, "",
            "a commit of " + std::to_string(trailer_bytes) + " to " + std::to_string(max_commit_bytes) + " bytes",
            std::to_string(num_bytes), hdf5::recompute_hint);
    }
}

template <class Row, class Member>
auto column_of(const std::vector<Row>& rows, Member Row::*member) {
    std::vector<Member> column;
    column.reserve(rows.size());
    for (const Row& row : rows) column.push_back(row.*member);
    return column;
}

std::vector<DrafterState> drafters_of(const std::vector<ItemDelta>& items) {
    return column_of(items, &ItemDelta::drafter);
}

void write_items(hid_t file, const std::vector<ItemDelta>& items) {
    const hdf5::Handle group = hdf5::create_group(file, "items");
    const hid_t at = group.get();
    const std::vector<DrafterState> drafters = drafters_of(items);
    hdf5::write_ragged(at, "key", column_of(items, &ItemDelta::key));
    hdf5::write_ragged(at, "previous_commit", column_of(items, &ItemDelta::previous_commit));
    hdf5::write_values(at, "prompt_tokens", column_of(items, &ItemDelta::prompt_tokens));
    hdf5::write_values(at, "first_token", column_of(items, &ItemDelta::first_token));
    hdf5::write_ragged(at, "tokens", column_of(items, &ItemDelta::tokens));
    hdf5::write_ragged(at, "logprobs", column_of(items, &ItemDelta::logprobs));
    hdf5::write_values(at, "kv_begin", column_of(items, &ItemDelta::kv_begin));
    hdf5::write_values(at, "kv_end", column_of(items, &ItemDelta::kv_end));
    hdf5::write_ragged(at, "drafter_kind", column_of(drafters, &DrafterState::kind));
    hdf5::write_values(at, "drafter_row_width", column_of(drafters, &DrafterState::row_width));
    hdf5::write_ragged(at, "drafter_rows", column_of(drafters, &DrafterState::rows));
    hdf5::write_ragged(at, "statistics", column_of(items, &ItemDelta::statistics));
}

/// Writes the drafter tensors of all items, one row per tensor.
void write_tensors(hid_t file, const std::vector<ItemDelta>& items) {
    std::vector<std::int64_t> item;
    std::vector<NamedTensor> tensors;
    for (std::size_t i = 0; i < items.size(); ++i) {
        for (const NamedTensor& tensor : items[i].drafter.tensors) {
            item.push_back(static_cast<std::int64_t>(i));
            tensors.push_back(tensor);
        }
    }
    const hdf5::Handle group = hdf5::create_group(file, "drafter_tensors");
    const hid_t at = group.get();
    hdf5::write_values(at, "item", item);
    hdf5::write_ragged(at, "name", column_of(tensors, &NamedTensor::name));
    hdf5::write_ragged(at, "shape", column_of(tensors, &NamedTensor::shape));
    hdf5::write_ragged(at, "words", column_of(tensors, &NamedTensor::words));
}

void write_kv_files(hid_t file, const std::vector<KvFile>& kv_files) {
    const hdf5::Handle group = hdf5::create_group(file, "kv_files");
    const hid_t at = group.get();
    hdf5::write_ragged(at, "name", column_of(kv_files, &KvFile::name));
    hdf5::write_values(at, "num_bytes", column_of(kv_files, &KvFile::num_bytes));
    hdf5::write_values(at, "checksum", column_of(kv_files, &KvFile::checksum));
    hdf5::write_values(at, "first_kv_head", column_of(kv_files, &KvFile::first_kv_head));
    hdf5::write_values(at, "num_kv_heads", column_of(kv_files, &KvFile::num_kv_heads));
}

bool within(std::int64_t value, std::int64_t low, std::int64_t high) {
    return low <= value && value <= high;
}

/// Whether all sizes are at least 1 and their product is `num_elements`.
bool is_shape_of(const std::vector<std::int64_t>& shape, std::size_t num_elements) {
    std::int64_t left = static_cast<std::int64_t>(num_elements);
    for (const std::int64_t size : shape) {
        if (size < 1 || left % size != 0) return false;
        left /= size;
    }
    return left == 1;
}

void read_tensors(const hdf5::Reader& reader, std::vector<ItemDelta>& items) {
    reader.expect_links("drafter_tensors",
                        {"item", "name", "name_count", "shape", "shape_count", "words", "words_count"});
    const auto item = reader.values<std::int64_t>("drafter_tensors/item");
    auto names = reader.ragged<std::string>("drafter_tensors/name", item.size());
    auto shapes = reader.ragged<std::vector<std::int64_t>>("drafter_tensors/shape", item.size());
    auto words = reader.ragged<std::vector<std::int32_t>>("drafter_tensors/words", item.size());
    std::set<std::pair<std::int64_t, std::string>> known;
    for (std::size_t i = 0; i < item.size(); ++i) {
        if (!within(item[i], 0, static_cast<std::int64_t>(items.size()) - 1))
            reader.refuse("drafter_tensors/item", "a row of items", std::to_string(item[i]));
        if (names[i].empty() || !known.emplace(item[i], names[i]).second)
            reader.refuse("drafter_tensors/name", "a name, once per item", "'" + names[i] + "'");
        if (!is_shape_of(shapes[i], words[i].size()))
            reader.refuse("drafter_tensors/shape", "sizes whose product is the number of words",
                          "another for " + std::to_string(words[i].size()) + " words");
        items[item[i]].drafter.tensors.push_back({std::move(names[i]), std::move(shapes[i]), std::move(words[i])});
    }
}

std::vector<ItemDelta> read_items(const hdf5::Reader& reader) {
    const bool has_logprobs = reader.number("format_version") >= 2;
    std::vector<const char*> names{"key",
                                   "key_count",
                                   "previous_commit",
                                   "previous_commit_count",
                                   "tokens",
                                   "tokens_count",
                                   "prompt_tokens",
                                   "first_token",
                                   "kv_begin",
                                   "kv_end",
                                   "drafter_kind",
                                   "drafter_kind_count",
                                   "statistics",
                                   "drafter_row_width",
                                   "drafter_rows_count",
                                   "drafter_rows",
                                   "statistics_count"};
    if (has_logprobs) names.insert(names.end(), {"logprobs", "logprobs_count"});
    reader.expect_links("items", names);
    const auto prompt_tokens = reader.values<std::int64_t>("items/prompt_tokens");
    const std::size_t num_items = prompt_tokens.size();
    const auto first_token = reader.column<std::int64_t>("items/first_token", num_items);
    const auto kv_begin = reader.column<std::int64_t>("items/kv_begin", num_items);
    const auto kv_end = reader.column<std::int64_t>("items/kv_end", num_items);
    const auto row_width = reader.column<std::int64_t>("items/drafter_row_width", num_items);
    auto keys = reader.ragged<std::string>("items/key", num_items);
    auto previous = reader.ragged<std::string>("items/previous_commit", num_items);
    auto tokens = reader.ragged<std::vector<std::int32_t>>("items/tokens", num_items);
    auto logprobs = has_logprobs ? reader.ragged<std::vector<std::int32_t>>("items/logprobs", num_items)
                                 : std::vector<std::vector<std::int32_t>>(num_items);
    auto kinds = reader.ragged<std::string>("items/drafter_kind", num_items);
    auto rows = reader.ragged<std::vector<std::int32_t>>("items/drafter_rows", num_items);
    auto statistics = reader.ragged<std::string>("items/statistics", num_items);
    std::vector<ItemDelta> items(num_items);
    for (std::size_t i = 0; i < num_items; ++i) {
        items[i] = {.key = std::move(keys[i]),
                    .previous_commit = std::move(previous[i]),
                    .prompt_tokens = prompt_tokens[i],
                    .first_token = first_token[i],
                    .tokens = std::move(tokens[i]),
                    .logprobs = std::move(logprobs[i]),
                    .kv_begin = kv_begin[i],
                    .kv_end = kv_end[i],
                    .drafter = {std::move(kinds[i]), row_width[i], std::move(rows[i])},
                    .statistics = std::move(statistics[i])};
    }
    return items;
}

std::vector<KvFile> read_kv_files(const hdf5::Reader& reader) {
    reader.expect_links("kv_files", {"name", "name_count", "num_bytes", "checksum", "first_kv_head", "num_kv_heads"});
    const auto num_bytes = reader.values<std::uint64_t>("kv_files/num_bytes");
    const std::size_t num_files = num_bytes.size();
    const auto checksum = reader.column<std::uint64_t>("kv_files/checksum", num_files);
    const auto first_kv_head = reader.column<std::int64_t>("kv_files/first_kv_head", num_files);
    const auto num_kv_heads = reader.column<std::int64_t>("kv_files/num_kv_heads", num_files);
    auto names = reader.ragged<std::string>("kv_files/name", num_files);
    std::vector<KvFile> files(num_files);
    for (std::size_t i = 0; i < num_files; ++i) {
        files[i] = {std::move(names[i]), num_bytes[i], checksum[i], first_kv_head[i], num_kv_heads[i]};
    }
    return files;
}

/// Refuses values that no genuine round contains, in columns of the right shape.
void check_item(const hdf5::Reader& reader, const ItemDelta& item, const std::string& own_name) {
    const auto require = [&](bool good, const char* field, const char* expected, const std::string& got) {
        if (!good) reader.refuse(std::string("items/") + field, expected, got);
    };
    const auto require_count = [&](std::int64_t value, const char* field) {
        require(within(value, 0, max_count), field, "a count", std::to_string(value));
    };
    require(!item.key.empty(), "key", "a name", "an empty one");
    require_count(item.prompt_tokens, "prompt_tokens");
    require_count(item.first_token, "first_token");
    const auto num_tokens = static_cast<std::int64_t>(item.tokens.size());
    const std::int64_t end = item.prompt_tokens + item.first_token + num_tokens;
    require(within(item.kv_begin, 0, end), "kv_begin", "a position of the item", std::to_string(item.kv_begin));
    require(within(item.kv_end, item.kv_begin, end), "kv_end", "a position from kv_begin to the item's end",
            std::to_string(item.kv_end));
    const auto num_words = static_cast<std::int64_t>(item.logprobs.size());
    require(num_tokens == 0 ? num_words == 0 : num_words % num_tokens == 0, "logprobs", "as many for each token",
            std::to_string(num_words) + " words for " + std::to_string(num_tokens) + " tokens");
    for (const std::int32_t token : item.tokens) require(token >= 0, "tokens", "token ids", std::to_string(token));
    if (item.previous_commit.empty()) {
        require(item.first_token == 0, "first_token", "0 in an item's first round", std::to_string(item.first_token));
    } else {
        const auto previous = parse_file_name(item.previous_commit);
        require(previous && previous->rank < 0 && !previous->temporary && item.previous_commit != own_name,
                "previous_commit", "the name of another commit", "'" + item.previous_commit + "'");
    }
    const DrafterState& drafter = item.drafter;
    const auto num_values = static_cast<std::int64_t>(drafter.rows.size());
    require(within(drafter.row_width, 0, max_count), "drafter_row_width", "a count", std::to_string(drafter.row_width));
    require(drafter.row_width == 0 ? num_values == 0 : num_values % drafter.row_width == 0, "drafter_rows",
            "whole rows", std::to_string(num_values) + " values");
}

void check_kv_file(const hdf5::Reader& reader, const KvFile& file, const Commit& commit) {
    const auto name = parse_file_name(file.name);
    if (!name || name->rank < 0 || name->temporary || name->replica != commit.replica || name->epoch != commit.epoch ||
        name->round != commit.round) {
        reader.refuse("kv_files/name", "a KV file of this round", "'" + file.name + "'");
    }
    // Only the drafter knows how many heads its layer has, and the model how many its states have. KvReader compares.
    const std::int64_t heads = name->of == KvFile::Of::target ? commit.identity.num_kv_heads : max_count;
    if (!within(file.first_kv_head, 0, heads)) {
        reader.refuse("kv_files/first_kv_head", "a head of the model", std::to_string(file.first_kv_head));
    }
    if (!within(file.num_kv_heads, 1, heads - file.first_kv_head)) {
        reader.refuse("kv_files/num_kv_heads", "heads of the model", std::to_string(file.num_kv_heads));
    }
}

void check_commit(const hdf5::Reader& reader, const Commit& commit) {
    const std::string own_name = commit_name(commit.replica, commit.epoch, commit.round);
    std::unordered_set<std::string> keys;
    for (const ItemDelta& item : commit.items) {
        check_item(reader, item, own_name);
        if (!keys.insert(item.key).second) reader.refuse("items/key", "each item once", "'" + item.key + "' twice");
    }
    for (const KvFile& file : commit.kv_files) check_kv_file(reader, file, commit);
}

}  // namespace

std::uint64_t checksum_of(const std::byte* bytes, std::size_t num_bytes) {
    return XXH3_64bits(bytes, num_bytes);
}

void seal(hdf5::Bytes& file, std::uint32_t format_version) {
    Trailer trailer{};
    std::memcpy(trailer.magic, magic, sizeof magic);
    trailer.format_version = format_version;
    trailer.num_bytes = file.size - sizeof trailer;
    std::byte* at = file.data.get() + trailer.num_bytes;
    std::memcpy(at, &trailer, sizeof trailer);
    trailer.checksum = sealing_checksum(file.data.get(), file.size);
    std::memcpy(at, &trailer, sizeof trailer);
}

hdf5::Bytes encode_commit(const Commit& commit) {
    constexpr std::size_t increment = 64 * 1024;
    constexpr unsigned btree_fanout = 4;  // most datasets have one chunk; the default reserves 2 KB for each
    hdf5::MemoryFile file(increment, btree_fanout);
    hdf5::write_attribute(file.get(), "format", format_text);
    hdf5::write_attribute(file.get(), "format_version", std::int64_t{checkpoint_format_version});
    hdf5::write_identity(file.get(), commit.identity);
    hdf5::write_attribute(file.get(), "replica", commit.replica);
    hdf5::write_attribute(file.get(), "epoch", commit.epoch);
    hdf5::write_attribute(file.get(), "round", commit.round);
    write_items(file.get(), commit.items);
    write_tensors(file.get(), commit.items);
    write_kv_files(file.get(), commit.kv_files);
    hdf5::Bytes bytes = file.take(trailer_bytes);
    seal(bytes);
    return bytes;
}

Commit decode_commit(const std::string& label, const std::byte* bytes, std::size_t num_bytes) {
    check_file_size(label, num_bytes);
    const std::size_t image_bytes = num_bytes - trailer_bytes;
    check_checksum(label, check_trailer(label, bytes + image_bytes, num_bytes), bytes, num_bytes);
    hdf5::check_superblock(label, bytes, image_bytes);
    const hdf5::Reader reader = hdf5::open_reader(label, bytes, image_bytes);
    if (reader.text("format") != format_text) reader.refuse("format", format_text, reader.text("format"));
    const bool has_tensors = reader.number("format_version") >= 3;
    std::vector<const char*> groups{"items", "kv_files"};
    if (has_tensors) groups.push_back("drafter_tensors");
    reader.expect_links("/", groups);
    Commit commit;
    commit.identity = hdf5::read_identity(reader);
    commit.replica = reader.number_up_to("replica", max_count);
    commit.epoch = reader.number_up_to("epoch", max_count);
    commit.round = reader.number_up_to("round", max_count);
    commit.items = read_items(reader);
    if (has_tensors) read_tensors(reader, commit.items);
    commit.kv_files = read_kv_files(reader);
    check_commit(reader, commit);
    return commit;
}

}  // namespace detail

KvFile::Of KvFile::of() const {
    const auto parts = detail::parse_file_name(name);
    return parts ? parts->of : Of::target;
}

void write_commit(const std::filesystem::path& folder, const Commit& commit) {
    const hdf5::Bytes bytes = detail::encode_commit(commit);
    write_durable(folder, commit.name, bytes.data.get(), bytes.size);
}

Commit read_commit(const std::filesystem::path& path) {
    detail::InputFile file(path.string());
    detail::check_file_size(path.string(), file.num_bytes());
    std::byte trailer[detail::trailer_bytes];
    file.read_at(file.num_bytes() - sizeof trailer, trailer, sizeof trailer);
    detail::check_trailer(path.string(), trailer, file.num_bytes());
    hdf5::Bytes bytes(file.num_bytes());
    file.read_at(0, bytes.data.get(), bytes.size);
    Commit commit = detail::decode_commit(path.string(), bytes.data.get(), bytes.size);
    commit.name = path.filename().string();
    return commit;
}

}  // namespace longhaul::engine
