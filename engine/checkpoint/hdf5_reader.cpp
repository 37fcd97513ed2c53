#include "engine/checkpoint/hdf5_reader.hpp"

#include <cstring>
#include <set>

#include "engine/checkpoint/identity.hpp"
#include "engine/error.hpp"

namespace longhaul::engine::hdf5 {
namespace {

/// Limits far above those of genuine files. They keep a crafted file from allocating huge amounts of memory.
constexpr std::size_t max_text_bytes = 4096;
constexpr hsize_t max_chunk_bytes = hsize_t{16} << 20;
constexpr unsigned max_links = 64;

/// Names of the links of a group, and whether each is a hard link.
using Links = std::vector<std::pair<std::string, bool>>;

herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* to) {
    auto& links = *static_cast<Links*>(to);
    links.emplace_back(name, info->type == H5L_TYPE_HARD);
    return links.size() > max_links ? 1 : 0;  // stop: enough to refuse the file
}

std::string shape_text(const Dims& dims) {
    std::string text = "[";
    for (std::size_t axis = 0; axis < dims.size(); ++axis) {
        text += (axis > 0 ? ", " : "") + std::to_string(dims[axis]);
    }
    return text + "]";
}

/// Number of elements of a shape, or `limit` + 1 if it is larger. The product cannot overflow.
hsize_t elements_up_to(const Dims& dims, hsize_t limit) {
    hsize_t elements = 1;
    for (const hsize_t dim : dims) {
        if (dim == 0) return 0;
        if (elements > limit / dim) return limit + 1;
        elements *= dim;
    }
    return elements;
}

}  // namespace

void check_superblock(const std::string& label, const std::byte* bytes, std::size_t num_bytes) {
    static constexpr unsigned char signature[] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    constexpr std::size_t version_at = 8;
    constexpr std::size_t flags_at = 11;
    if (num_bytes <= flags_at || std::memcmp(bytes, signature, sizeof signature) != 0) {
        throw InputError(label, "superblock", "an HDF5 file", "other bytes", recompute_hint);
    }
    const int version = std::to_integer<int>(bytes[version_at]);
    if (version != 2) {
        throw InputError(label, "superblock", "version 2, as longhaul writes it", "version " + std::to_string(version),
                         recompute_hint);
    }
    if (bytes[flags_at] != std::byte{0}) {
        throw InputError(label, "superblock", "a closed file", "a file still marked as open for writing",
                         recompute_hint);
    }
}

void Reader::refuse(std::string_view field, std::string_view expected, std::string_view got) const {
    throw InputError(label_, field, expected, got, recompute_hint);
}

void Reader::refuse_rows(const std::string& path, std::size_t expected, std::size_t got) const {
    refuse(path, std::to_string(expected) + " values", std::to_string(got));
}

void Reader::expect_links(const char* group, const std::vector<const char*>& names) const {
    Links links;
    guarded(group, [&] {
        const Handle id{checked("H5Gopen2", [&] { return H5Gopen2(file_.get(), group, H5P_DEFAULT); }), H5Gclose};
        checked("H5Literate",
                [&] { return H5Literate(id.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &links); });
    });
    std::set<std::string> expected(names.begin(), names.end());
    const std::string prefix = std::string(group) == "/" ? "" : group + std::string("/");
    for (const auto& [name, is_hard] : links) {
        if (!is_hard) refuse(prefix + name, "data in this file", "a link that may lead out of it");
        if (expected.erase(name) == 0) refuse(prefix + name, "nothing of that name", "an unknown object");
    }
    if (!expected.empty()) refuse(prefix + *expected.begin(), "a group or dataset", "none");
}

Handle Reader::attribute(const char* name) const {
    return guarded(name, [&] {
        return Handle{checked("H5Aopen", [&] { return H5Aopen(file_.get(), name, H5P_DEFAULT); }), H5Aclose};
    });
}

std::int64_t Reader::number(const char* name) const {
    const Handle id = attribute(name);
    return guarded(name, [&]() -> std::int64_t {
        const Handle space{checked("H5Aget_space", [&] { return H5Aget_space(id.get()); }), H5Sclose};
        const Handle type{checked("H5Aget_type", [&] { return H5Aget_type(id.get()); }), H5Tclose};
        const bool scalar =
            checked("H5Sget_simple_extent_npoints", [&] { return H5Sget_simple_extent_npoints(space.get()); }) == 1;
        const bool same = checked("H5Tequal", [&] { return H5Tequal(type.get(), type_id(Type::i64)); }) > 0;
        if (!scalar || !same) refuse(name, "one int64", "another type or shape");
        std::int64_t value = 0;
        checked("H5Aread", [&] { return H5Aread(id.get(), H5T_NATIVE_INT64, &value); });
        return value;
    });
}

std::int64_t Reader::number_up_to(const char* name, std::int64_t limit) const {
    const std::int64_t value = number(name);
    if (value < 0 || value > limit) refuse(name, "0 to " + std::to_string(limit), std::to_string(value));
    return value;
}

std::string Reader::text(const char* name) const {
    const Handle id = attribute(name);
    return guarded(name, [&] {
        const Handle space{checked("H5Aget_space", [&] { return H5Aget_space(id.get()); }), H5Sclose};
        const Handle type{checked("H5Aget_type", [&] { return H5Aget_type(id.get()); }), H5Tclose};
        const bool scalar =
            checked("H5Sget_simple_extent_npoints", [&] { return H5Sget_simple_extent_npoints(space.get()); }) == 1;
        const bool is_text = checked("H5Tget_class", [&] { return int{H5Tget_class(type.get())}; }) == H5T_STRING &&
                             checked("H5Tis_variable_str", [&] { return H5Tis_variable_str(type.get()); }) == 0;
        const std::size_t num_bytes = [&] {
            const Section section;
            return H5Tget_size(type.get());
        }();  // 0 on failure
        if (!scalar || !is_text || num_bytes == 0 || num_bytes > max_text_bytes) {
            refuse(name, "a text of fixed length", "another type, shape or length");
        }
        std::string value(num_bytes, '\0');
        checked("H5Aread", [&] { return H5Aread(id.get(), type.get(), value.data()); });
        value.resize(std::min(value.find('\0'), value.size()));
        return value;
    });
}

hsize_t Reader::Dataset::num_elements() const {
    hsize_t elements = 1;
    for (const hsize_t dim : dims) elements *= dim;
    return elements;
}

Reader::Dataset Reader::open(const std::string& path, Type type, std::size_t rank) const {
    return guarded(path, [&] {
        Dataset dataset;
        dataset.path = path;
        dataset.id = {checked("H5Dopen2", [&] { return H5Dopen2(file_.get(), path.c_str(), H5P_DEFAULT); }), H5Dclose};
        const Handle creation{checked("H5Dget_create_plist", [&] { return H5Dget_create_plist(dataset.id.get()); }),
                              H5Pclose};
        // Check this before reading the shape: for that the library opens the source files of a virtual dataset.
        const int layout = checked("H5Pget_layout", [&] { return int{H5Pget_layout(creation.get())}; });
        if (layout == H5D_VIRTUAL) refuse(path, "data in this file", "a virtual dataset");
        if (checked("H5Pget_external_count", [&] { return H5Pget_external_count(creation.get()); }) != 0) {
            refuse(path, "data in this file", "external storage");
        }
        const Handle stored{checked("H5Dget_type", [&] { return H5Dget_type(dataset.id.get()); }), H5Tclose};
        if (checked("H5Tequal", [&] { return H5Tequal(stored.get(), type_id(type)); }) == 0) {
            refuse(path, type_name(type), "another type");
        }
        const Handle space{checked("H5Dget_space", [&] { return H5Dget_space(dataset.id.get()); }), H5Sclose};
        const int dims = checked("H5Sget_simple_extent_ndims", [&] { return H5Sget_simple_extent_ndims(space.get()); });
        if (static_cast<std::size_t>(dims) != rank) {
            refuse(path, std::to_string(rank) + " dimensions", std::to_string(dims));
        }
        dataset.dims.resize(rank);
        checked("H5Sget_simple_extent_dims",
                [&] { return H5Sget_simple_extent_dims(space.get(), dataset.dims.data(), nullptr); });
        check_storage(dataset, creation.get(), type);
        return dataset;
    });
}

void Reader::check_storage(const Dataset& dataset, hid_t creation, Type type) const {
    const hsize_t max_elements = num_bytes_ / type_bytes(type);
    const hsize_t elements = elements_up_to(dataset.dims, max_elements);
    if (elements > max_elements) {
        refuse(dataset.path, "a shape that fits the file's " + std::to_string(num_bytes_) + " bytes",
               shape_text(dataset.dims));
    }
    const int num_filters = checked("H5Pget_nfilters", [&] { return H5Pget_nfilters(creation); });
    if (elements == 0) {  // nothing is stored; only a filter must be refused
        if (num_filters != 0) refuse(dataset.path, "no filter on an empty dataset", std::to_string(num_filters));
        return;
    }
    if (checked("H5Pget_layout", [&] { return int{H5Pget_layout(creation)}; }) != H5D_CHUNKED) {
        refuse(dataset.path, "chunked storage", "another layout");
    }
    unsigned flags = 0;
    unsigned config = 0;
    std::size_t num_values = 0;
    const bool fletcher_only =
        num_filters == 1 && checked("H5Pget_filter2", [&] {
                                return H5Pget_filter2(creation, 0, &flags, &num_values, nullptr, 0, nullptr, &config);
                            }) == H5Z_FILTER_FLETCHER32;
    if (!fletcher_only) refuse(dataset.path, "the Fletcher32 filter alone", "other filters");
    Dims chunk(dataset.dims.size());
    checked("H5Pget_chunk", [&] { return H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data()); });
    if (elements_up_to(chunk, max_chunk_bytes) * type_bytes(type) > max_chunk_bytes) {
        refuse(dataset.path, "chunks of at most " + std::to_string(max_chunk_bytes) + " bytes", shape_text(chunk));
    }
    // A missing chunk would read as zeros.
    const hsize_t stored = [&] {
        const Section section;
        return H5Dget_storage_size(dataset.id.get());
    }();
    if (stored / type_bytes(type) < elements) {
        refuse(dataset.path, std::to_string(elements * type_bytes(type)) + " bytes stored", std::to_string(stored));
    }
}

void Reader::read_block(const Dataset& dataset, Type type, const Dims& start, const Dims& count, void* values) const {
    guarded(dataset.path, [&] { hdf5::read_block(dataset.id.get(), type, start, count, values); });
}

std::vector<std::size_t> Reader::row_ends(const std::string& path, std::size_t num_rows, std::size_t num_values) const {
    const std::vector<std::int64_t> counts = column<std::int64_t>(path, num_rows);
    std::vector<std::size_t> ends;
    std::size_t end = 0;
    for (const std::int64_t count : counts) {
        if (count < 0 || static_cast<std::uint64_t>(count) > num_values - end) {
            refuse(path, "0 to " + std::to_string(num_values - end), std::to_string(count));
        }
        end += static_cast<std::size_t>(count);
        ends.push_back(end);
    }
    if (end != num_values) refuse(path, "a sum of " + std::to_string(num_values), std::to_string(end));
    return ends;
}

Reader open_reader(const std::string& label, const std::byte* bytes, std::size_t num_bytes) {
    try {
        return {label, open_image(bytes, num_bytes), num_bytes};
    } catch (const Failure& failure) {
        throw InputError(label, "", "a readable HDF5 file", failure.what(), recompute_hint);
    }
}

Reader open_reader(const std::string& path, std::uint64_t num_bytes) {
    try {
        return {path, open_file(path), num_bytes};
    } catch (const Failure& failure) {
        throw InputError(path, "", "a readable HDF5 file", failure.what(), recompute_hint);
    }
}

void write_identity(hid_t file, const CheckpointIdentity& identity) {
    write_attribute(file, "job", identity.job);
    write_attribute(file, "model", identity.model);
    write_attribute(file, "tokenizer", identity.tokenizer);
    write_attribute(file, "numerics_version", std::int64_t{identity.numerics_version});
    write_attribute(file, "kv_dtype", identity.kv_dtype);
    write_attribute(file, "num_layers", identity.num_layers);
    write_attribute(file, "num_kv_heads", identity.num_kv_heads);
    write_attribute(file, "head_dim", identity.head_dim);
}

CheckpointIdentity read_identity(const Reader& reader) {
    constexpr std::int64_t limit = std::int64_t{1} << 20;
    CheckpointIdentity identity;
    identity.job = reader.text("job");
    identity.model = reader.text("model");
    identity.tokenizer = reader.text("tokenizer");
    identity.numerics_version = static_cast<int>(reader.number_up_to("numerics_version", limit));
    identity.kv_dtype = reader.text("kv_dtype");
    identity.num_layers = reader.number_up_to("num_layers", limit);
    identity.num_kv_heads = reader.number_up_to("num_kv_heads", limit);
    identity.head_dim = reader.number_up_to("head_dim", limit);
    return identity;
}

}  // namespace longhaul::engine::hdf5
