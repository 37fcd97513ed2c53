// Writes and reads KV files: /keys and /values [layer, kv_head, token, head_dim], the items one after another on the
// token axis (FORMAT.md).
#include "engine/checkpoint/kv_file.hpp"

#include <algorithm>
#include <stdexcept>

#include "engine/checkpoint/commit_file.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/input_file.hpp"
#include "engine/error.hpp"
#include "engine/hash.hpp"

namespace longhaul::engine {
namespace detail {
namespace {

constexpr std::string_view kv_format_text = "longhaul kv";

/// Large enough that a chunk's index entry and checksum are negligible, small enough for the library's chunk cache
/// (1 MB).
constexpr std::int64_t chunk_bytes = 512 * 1024;

hdf5::Type kv_type(const std::string& kv_dtype) {
    if (kv_dtype == "bf16") return hdf5::Type::u16;  // HDF5 has no bf16; the attribute kv_dtype identifies the bits
    if (kv_dtype == "f32") return hdf5::Type::f32;
    if (kv_dtype == "int8") return hdf5::Type::u8;  // quantized integers and their scale, as bytes
    throw std::logic_error("checkpoint: no KV dtype '" + kv_dtype + "'");
}

/// Elements of the key (or value) of one token and head; int8 has 4 bytes more for the scale.
std::int64_t token_elements(const CheckpointIdentity& identity, const KvGroup& group) {
    return identity.kv_dtype == "int8" ? group.head_dim + 4 : group.head_dim;
}

/// KV heads of a group of layers, of those in a file.
struct GroupHeads {
    std::int64_t first = 0, count = 0;
};

/// A file that has `count` of the model's KV heads from `first` on: if a group has fewer heads than the model, each
/// stands for several of the model's, and is in the file of the first of these.
GroupHeads heads_of_group(const CheckpointIdentity& identity, const KvGroup& group, std::int64_t first,
                          std::int64_t count) {
    const std::int64_t stands_for = std::max<std::int64_t>(identity.num_kv_heads / group.num_kv_heads, 1);
    const std::int64_t first_here = (first + stands_for - 1) / stands_for;
    return {first_here, (first + count + stands_for - 1) / stands_for - first_here};
}

std::int64_t num_rows(const std::vector<KvSource>& items, const KvGroup& group) {
    std::int64_t rows = 0;
    for (const KvSource& item : items) rows += item.kv_end - group.first_stored(item.kv_begin, item.kv_end);
    return rows;
}

/// "keys", or "values_1" for the second group of layers.
std::string dataset_name(std::size_t group, bool values) {
    return (values ? "values" : "keys") + (group == 0 ? "" : "_" + std::to_string(group));
}

/// The extent or the start of a block of a dataset, [layer, kv_head, token, head_dim].
struct Block {
    std::int64_t layers = 0, heads = 0, rows = 0, dim = 0;

    [[nodiscard]] std::int64_t elements() const { return layers * heads * rows * dim; }
    [[nodiscard]] hdf5::Dims dims() const {
        return {static_cast<hsize_t>(layers), static_cast<hsize_t>(heads), static_cast<hsize_t>(rows),
                static_cast<hsize_t>(dim)};
    }
};

/// The shape of a chunk: as many tokens as fit. If a round has few tokens, a chunk holds several heads, then layers.
Block chunk_of(const Block& whole, std::size_t element_bytes) {
    const std::int64_t max_elements = std::max<std::int64_t>(chunk_bytes / static_cast<std::int64_t>(element_bytes), 1);
    Block chunk{1, 1, 1, whole.dim};
    const auto fill = [&](std::int64_t& axis, std::int64_t extent) {
        const std::int64_t largest = std::clamp<std::int64_t>(max_elements / chunk.elements(), 1, extent);
        const std::int64_t num_chunks = (extent + largest - 1) / largest;
        axis = (extent + num_chunks - 1) / num_chunks;  // even split: the last chunk takes as much space as the others
    };
    if (whole.elements() == 0) return chunk;
    fill(chunk.rows, whole.rows);
    fill(chunk.heads, whole.heads);
    fill(chunk.layers, whole.layers);
    return chunk;
}

/// The shape of a piece: consecutive chunks that are copied from the device and written together, up to 8 MiB.
Block piece_of(const Block& whole, const Block& chunk, std::size_t element_bytes) {
    constexpr std::int64_t piece_bytes = 8 << 20;
    const std::int64_t max_elements = piece_bytes / static_cast<std::int64_t>(element_bytes);
    Block piece = chunk;
    const auto fill = [&](std::int64_t& axis, std::int64_t chunk_extent, std::int64_t extent) {
        if (axis >= extent) return true;
        axis = std::min(chunk_extent * std::max<std::int64_t>(max_elements / piece.elements(), 1), extent);
        return axis == extent;  // the next axis may grow only if this one is complete
    };
    if (piece.elements() == 0) return piece;
    if (fill(piece.rows, chunk.rows, whole.rows) && fill(piece.heads, chunk.heads, whole.heads))
        fill(piece.layers, chunk.layers, whole.layers);
    return piece;
}

/// A group of layers with its index.
struct GroupAt {
    std::size_t index;
    KvGroup group;
};

/// Copies the block `part` at `start` from the device; its token rows may belong to several items.
void export_rows(const std::vector<KvSource>& items, const GroupAt& of, bool values, const Block& start,
                 const Block& part, std::size_t row_bytes, std::byte* to) {
    std::int64_t item_row = 0;
    for (const KvSource& item : items) {
        const std::int64_t first = of.group.first_stored(item.kv_begin, item.kv_end);
        const std::int64_t item_end = item_row + item.kv_end - first;
        const std::int64_t begin = std::max(start.rows, item_row);
        const std::int64_t end = std::min(start.rows + part.rows, item_end);
        if (begin < end) {
            item.read(of.index,
                      {.first_layer = start.layers,
                       .num_layers = part.layers,
                       .first_head = start.heads,
                       .num_heads = part.heads,
                       .values = values,
                       .first = first + begin - item_row,
                       .count = end - begin},
                      to + static_cast<std::size_t>(begin - start.rows) * row_bytes,
                      static_cast<std::size_t>(part.rows) * row_bytes);
        }
        item_row = item_end;
    }
}

/// Writes one of a group's two datasets piece by piece, so that only one piece of memory is needed besides the image.
void write_dataset(hid_t file, const GroupAt& of, bool values, hdf5::Type type, const Block& whole,
                   const std::vector<KvSource>& items) {
    const std::size_t element_bytes = hdf5::type_bytes(type);
    const Block chunk = chunk_of(whole, element_bytes);
    const Block piece = piece_of(whole, chunk, element_bytes);
    const hdf5::Handle dataset =
        hdf5::create_dataset(file, dataset_name(of.index, values).c_str(), type, whole.dims(), chunk.dims());
    const std::size_t row_bytes = static_cast<std::size_t>(whole.dim) * element_bytes;
    hdf5::Bytes buffer(static_cast<std::size_t>(piece.elements()) * element_bytes);
    Block start;
    for (start.layers = 0; start.layers < whole.layers; start.layers += piece.layers) {
        for (start.heads = 0; start.heads < whole.heads; start.heads += piece.heads) {
            for (start.rows = 0; start.rows < whole.rows; start.rows += piece.rows) {
                const Block part{std::min(piece.layers, whole.layers - start.layers),
                                 std::min(piece.heads, whole.heads - start.heads),
                                 std::min(piece.rows, whole.rows - start.rows), whole.dim};
                export_rows(items, of, values, start, part, row_bytes, buffer.data.get());
                hdf5::write_block(dataset.get(), type, start.dims(), part.dims(), buffer.data.get());
            }
        }
    }
}

void write_items(hid_t file, const std::vector<KvSource>& items) {
    std::vector<std::string> keys;
    std::vector<std::int64_t> begins;
    std::vector<std::int64_t> ends;
    for (const KvSource& item : items) {
        keys.push_back(item.key);
        begins.push_back(item.kv_begin);
        ends.push_back(item.kv_end);
    }
    const hdf5::Handle group = hdf5::create_group(file, "items");
    hdf5::write_ragged(group.get(), "key", keys);
    hdf5::write_values(group.get(), "kv_begin", begins);
    hdf5::write_values(group.get(), "kv_end", ends);
}

hdf5::Bytes encode_kv_file(const CheckpointIdentity& identity, std::int64_t first_kv_head, std::int64_t num_kv_heads,
                           const std::vector<KvSource>& items) {
    const hdf5::Type type = kv_type(identity.kv_dtype);
    std::vector<Block> wholes;
    std::size_t num_bytes = 0;
    for (const KvGroup& group : identity.kv_groups()) {
        const GroupHeads heads = heads_of_group(identity, group, first_kv_head, num_kv_heads);
        wholes.push_back({group.num_layers, heads.count, num_rows(items, group), token_elements(identity, group)});
        num_bytes += 2 * static_cast<std::size_t>(wholes.back().elements()) * hdf5::type_bytes(type);
    }
    constexpr unsigned btree_fanout = 32;
    // The library clears each increment, so small files use small increments.
    hdf5::MemoryFile file(std::clamp<std::size_t>(num_bytes / 4, 1 << 14, 1 << 24), btree_fanout);
    hdf5::write_attribute(file.get(), "format", kv_format_text);
    hdf5::write_attribute(file.get(), "format_version", std::int64_t{checkpoint_format_version});
    hdf5::write_identity(file.get(), identity);
    hdf5::write_attribute(file.get(), "first_kv_head", first_kv_head);
    write_items(file.get(), items);
    for (std::size_t g = 0; g < wholes.size(); ++g) {
        for (const bool values : {false, true})
            write_dataset(file.get(), {g, identity.kv_groups()[g]}, values, type, wholes[g], items);
    }
    return file.take(0);
}

[[noreturn]] void refuse(const std::string& path, std::string_view field, std::string_view expected,
                         std::string_view got) {
    throw InputError(path, field, expected, got, hdf5::recompute_hint);
}

}  // namespace

std::size_t kv_token_bytes(const CheckpointIdentity& identity, std::size_t group) {
    return static_cast<std::size_t>(token_elements(identity, identity.kv_groups().at(group))) *
           hdf5::type_bytes(kv_type(identity.kv_dtype));
}

void verify_kv_file(const std::string& path, const KvFile& expected, const std::function<void()>& progress) {
    constexpr std::size_t piece_bytes = std::size_t{1} << 20;
    const InputFile file(path);
    if (file.num_bytes() != expected.num_bytes) {
        refuse(path, "keys and values", std::to_string(expected.num_bytes) + " bytes, as its commit says",
               std::to_string(file.num_bytes()));
    }
    Hash hash;
    const hdf5::Bytes piece(piece_bytes);
    for (std::uint64_t offset = 0; offset < file.num_bytes(); offset += piece_bytes) {
        const std::size_t count = std::min<std::uint64_t>(piece_bytes, file.num_bytes() - offset);
        file.read_at(offset, piece.data.get(), count);
        if (offset == 0) hdf5::check_superblock(path, piece.data.get(), count);
        hash.add(piece.data.get(), count);
        if (progress) progress();
    }
    if (hash.value() != expected.checksum) {
        refuse(path, "keys and values", "the checksum in its commit", "a different checksum: the file is damaged");
    }
}

KvReader::KvReader(const std::string& path, const KvFile& expected, const CheckpointIdentity& identity)
    : reader_(hdf5::open_reader(path, expected.num_bytes)),
      type_(kv_type(identity.kv_dtype)),
      first_kv_head_(expected.first_kv_head) {
    if (reader_.text("format") != kv_format_text) reader_.refuse("format", kv_format_text, reader_.text("format"));
    if (!(hdf5::read_identity(reader_) == identity)) {
        reader_.refuse("identity", "that of its commit", "another job, model or shape");
    }
    if (reader_.number("first_kv_head") != first_kv_head_) {
        reader_.refuse("first_kv_head", std::to_string(first_kv_head_),
                       std::to_string(reader_.number("first_kv_head")));
    }
    groups_ = identity.kv_groups();
    std::vector<std::string> names;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        names.push_back(dataset_name(g, false));
        names.push_back(dataset_name(g, true));
    }
    std::vector<const char*> links{"items"};
    for (const std::string& name : names) links.push_back(name.c_str());
    reader_.expect_links("/", links);
    read_items();
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        std::int64_t rows = 0;
        for (const auto& [key, range] : items_)
            rows += range.kv_end - groups_[g].first_stored(range.kv_begin, range.kv_end);
        const GroupHeads heads = heads_of_group(identity, groups_[g], first_kv_head_, expected.num_kv_heads);
        first_heads_.push_back(heads.first);
        const hdf5::Dims dims =
            Block{groups_[g].num_layers, heads.count, rows, token_elements(identity, groups_[g])}.dims();
        keys_.push_back(reader_.open(dataset_name(g, false), type_, dims.size()));
        values_.push_back(reader_.open(dataset_name(g, true), type_, dims.size()));
        for (const auto* dataset : {&keys_.back(), &values_.back()}) {
            if (dataset->dims != dims) reader_.refuse(dataset->path, "the shape its commit says", "another");
        }
    }
}

void KvReader::read_items() {
    reader_.expect_links("items", {"key", "key_count", "kv_begin", "kv_end"});
    const auto begins = reader_.values<std::int64_t>("items/kv_begin");
    const auto ends = reader_.column<std::int64_t>("items/kv_end", begins.size());
    const auto keys = reader_.ragged<std::string>("items/key", begins.size());
    std::vector<std::int64_t> rows(groups_.size());
    std::int64_t positions = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
        constexpr std::int64_t limit = std::int64_t{1} << 48;
        if (begins[i] < 0 || ends[i] < begins[i] || ends[i] > limit) {
            reader_.refuse("items/kv_end", "positions in order",
                           std::to_string(begins[i]) + " to " + std::to_string(ends[i]));
        }
        if (!items_.emplace(keys[i], Range{begins[i], ends[i], rows}).second) {
            reader_.refuse("items/key", "each item once", "'" + keys[i] + "' twice");
        }
        positions += ends[i] - begins[i];
        if (positions > limit) reader_.refuse("items/kv_end", "fewer positions", std::to_string(positions));
        for (std::size_t g = 0; g < groups_.size(); ++g)
            rows[g] += ends[i] - groups_[g].first_stored(begins[i], ends[i]);
    }
}

void KvReader::read(const Range& item, const KvRows& rows, std::byte* to) const {
    const std::size_t group = rows.group;
    const std::int64_t first_stored = groups_[group].first_stored(item.kv_begin, item.kv_end);
    if (rows.first < first_stored) throw std::logic_error("read_kv: positions before a window");
    const hdf5::Reader::Dataset& dataset = rows.values ? values_[group] : keys_[group];
    const Block start{rows.layer, rows.kv_head - first_heads_[group],
                      item.first_rows[group] + rows.first - first_stored, 0};
    const Block extent{1, 1, rows.count, static_cast<std::int64_t>(dataset.dims[3])};
    reader_.read_block(dataset, type_, start.dims(), extent.dims(), to);
}

}  // namespace detail

KvFile write_kv_file(const std::filesystem::path& folder, const std::string& name, const CheckpointIdentity& identity,
                     std::int64_t first_kv_head, std::int64_t num_kv_heads, const std::vector<KvSource>& items) {
    const hdf5::Bytes bytes = detail::encode_kv_file(identity, first_kv_head, num_kv_heads, items);
    write_durable(folder, name, bytes.data.get(), bytes.size);
    return {name, bytes.size, detail::checksum_of(bytes.data.get(), bytes.size), first_kv_head, num_kv_heads};
}

}  // namespace longhaul::engine
