#include "engine/checkpoint/hdf5.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>

namespace longhaul::engine::hdf5 {
namespace {

std::mutex& library_mutex() {
    static std::mutex mutex;
    return mutex;
}

/// Callback of H5Ewalk2, which goes from the innermost error outwards: the first description is the reason, the others
/// are its consequences.
herr_t keep_first(unsigned, const H5E_error2_t* error, void* to) {
    auto& text = *static_cast<std::string*>(to);
    if (text.empty() && error->desc != nullptr) text = error->desc;
    return 0;
}

/// The core driver treats two open files of one name as the same file, so each gets a unique name.
std::string fresh_name() {
    static std::atomic<std::uint64_t> counter{0};
    return "longhaul-image-" + std::to_string(counter.fetch_add(1));
}

Handle property_list(hid_t (*list_class)()) {
    return {checked("H5Pcreate", [&] { return H5Pcreate(list_class()); }), H5Pclose};
}

/// File access for images in memory. The version bounds are fixed to 1.8: its superblock lacks the open-for-write flag
/// that a killed writer leaves behind, and metadata has checksums.
Handle core_access(std::size_t increment) {
    Handle access = property_list([]() -> hid_t { return H5P_FILE_ACCESS; });
    checked("H5Pset_fapl_core", [&] { return H5Pset_fapl_core(access.get(), increment, false); });
    checked("H5Pset_libver_bounds", [&] { return H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18); });
    return access;
}

Handle simple_space(const Dims& dims) {
    return {checked("H5Screate_simple",
                    [&] { return H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr); }),
            H5Sclose};
}

Handle scalar_space() {
    return {checked("H5Screate", [] { return H5Screate(H5S_SCALAR); }), H5Sclose};
}

/// File and memory dataspace of one block of a dataset.
std::pair<Handle, Handle> block_spaces(hid_t dataset, const Dims& start, const Dims& count) {
    Handle in_file{checked("H5Dget_space", [&] { return H5Dget_space(dataset); }), H5Sclose};
    checked("H5Sselect_hyperslab", [&] {
        return H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
    });
    return {std::move(in_file), simple_space(count)};
}

}  // namespace

Section::Section() : lock_(library_mutex()) {
    static thread_local bool quiet = false;
    if (!quiet) H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    quiet = true;
}

void throw_failure(const char* what) {
    std::string reason;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
    H5Eclear2(H5E_DEFAULT);
    throw Failure(std::string(what) + ": " + (reason.empty() ? "unknown reason" : reason));
}

void Handle::reset() noexcept {
    if (id_ < 0) return;
    const Section section;
    close_(std::exchange(id_, -1));
}

void Handle::close() {
    checked("close", [&] { return close_(std::exchange(id_, -1)); });
}

std::size_t type_bytes(Type type) {
    switch (type) {
        case Type::u8:
            return 1;
        case Type::u16:
            return 2;
        case Type::i32:
        case Type::f32:
            return 4;
        case Type::i64:
        case Type::u64:
            return 8;
    }
    throw std::logic_error("hdf5: unknown type");
}

const char* type_name(Type type) {
    switch (type) {
        case Type::u8:
            return "uint8";
        case Type::u16:
            return "uint16";
        case Type::i32:
            return "int32";
        case Type::f32:
            return "float32";
        case Type::i64:
            return "int64";
        case Type::u64:
            return "uint64";
    }
    throw std::logic_error("hdf5: unknown type");
}

hid_t type_id(Type type) {
    switch (type) {
        case Type::u8:
            return H5T_STD_U8LE;
        case Type::u16:
            return H5T_STD_U16LE;
        case Type::i32:
            return H5T_STD_I32LE;
        case Type::f32:
            return H5T_IEEE_F32LE;
        case Type::i64:
            return H5T_STD_I64LE;
        case Type::u64:
            return H5T_STD_U64LE;
    }
    throw std::logic_error("hdf5: unknown type");
}

Bytes::Bytes(std::size_t num_bytes) : data(static_cast<std::byte*>(std::malloc(num_bytes))), size(num_bytes) {
    if (data == nullptr && num_bytes > 0) throw std::bad_alloc();
}

/// The memory of one file image. The library allocates and grows it through these callbacks. It "frees" it when the
/// file is closed; the image is then complete, so `keep` does not free it.
struct MemoryFile::Buffer {
    std::byte* memory = nullptr;
    std::size_t size = 0;

    static void* allocate(std::size_t size, H5FD_file_image_op_t, void* buffer) {
        return resize(nullptr, size, H5FD_FILE_IMAGE_OP_FILE_RESIZE, buffer);
    }
    static void* copy(void* to, const void* from, std::size_t size, H5FD_file_image_op_t, void*) {
        return std::memcpy(to, from, size);
    }
    static void* resize(void* memory, std::size_t size, H5FD_file_image_op_t, void* buffer) {
        void* resized = std::realloc(memory, size);
        if (resized != nullptr) {
            static_cast<Buffer*>(buffer)->memory = static_cast<std::byte*>(resized);
            static_cast<Buffer*>(buffer)->size = size;
        }
        return resized;
    }
    static herr_t keep(void*, H5FD_file_image_op_t, void*) { return 0; }
    static void* same(void* buffer) { return buffer; }
    static herr_t leave(void*) { return 0; }
};

MemoryFile::MemoryFile(std::size_t increment, unsigned btree_fanout) : buffer_(std::make_unique<Buffer>()) {
    const Handle access = core_access(increment);
    H5FD_file_image_callbacks_t callbacks{Buffer::allocate, Buffer::copy,  Buffer::resize, Buffer::keep,
                                          Buffer::same,     Buffer::leave, buffer_.get()};
    checked("H5Pset_file_image_callbacks", [&] { return H5Pset_file_image_callbacks(access.get(), &callbacks); });
    const Handle creation = property_list([]() -> hid_t { return H5P_FILE_CREATE; });
    checked("H5Pset_istore_k", [&] { return H5Pset_istore_k(creation.get(), btree_fanout); });
    const std::string name = fresh_name();
    file_ = {checked("H5Fcreate", [&] { return H5Fcreate(name.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()); }),
             H5Fclose};
}

MemoryFile::~MemoryFile() {
    file_.reset();
    std::free(buffer_->memory);
}

Bytes MemoryFile::take(std::size_t tail_bytes) {
    constexpr std::size_t end_of_file_at = 28;  // offset in a version 2 superblock with 8-byte addresses
    file_.close();
    std::uint64_t num_bytes = 0;
    if (buffer_->size >= end_of_file_at + sizeof num_bytes) {
        std::memcpy(&num_bytes, buffer_->memory + end_of_file_at, sizeof num_bytes);
    }
    if (num_bytes == 0 || num_bytes > buffer_->size) throw Failure("H5Fclose: no complete image");
    Buffer::resize(buffer_->memory, num_bytes + tail_bytes, H5FD_FILE_IMAGE_OP_FILE_RESIZE, buffer_.get());
    if (buffer_->size < num_bytes + tail_bytes) throw std::bad_alloc();
    Bytes image;
    image.data.reset(std::exchange(buffer_->memory, nullptr));
    image.size = num_bytes + tail_bytes;
    return image;
}

Handle open_image(const std::byte* bytes, std::size_t num_bytes) {
    const Handle access = core_access(1 << 16);
    // The library's parameter is not const, but it copies the buffer before use.
    checked("H5Pset_file_image",
            [&] { return H5Pset_file_image(access.get(), const_cast<std::byte*>(bytes), num_bytes); });
    const std::string name = fresh_name();
    return {checked("H5Fopen", [&] { return H5Fopen(name.c_str(), H5F_ACC_RDONLY, access.get()); }), H5Fclose};
}

Handle open_file(const std::string& path) {
    const Handle access = property_list([]() -> hid_t { return H5P_FILE_ACCESS; });
    checked("H5Pset_file_locking", [&] { return H5Pset_file_locking(access.get(), false, true); });
    return {checked("H5Fopen", [&] { return H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()); }), H5Fclose};
}

Handle create_group(hid_t at, const char* name) {
    return {checked("H5Gcreate2", [&] { return H5Gcreate2(at, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT); }),
            H5Gclose};
}

void write_attribute(hid_t at, const char* name, std::int64_t value) {
    const Handle space = scalar_space();
    const Handle attribute{
        checked("H5Acreate2",
                [&] { return H5Acreate2(at, name, type_id(Type::i64), space.get(), H5P_DEFAULT, H5P_DEFAULT); }),
        H5Aclose};
    checked("H5Awrite", [&] { return H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value); });
}

void write_attribute(hid_t at, const char* name, std::string_view value) {
    const Handle type{checked("H5Tcopy", [] { return H5Tcopy(H5T_C_S1); }), H5Tclose};
    // HDF5 has no strings of length zero. Reader::text removes the padding byte.
    checked("H5Tset_size", [&] { return H5Tset_size(type.get(), std::max<std::size_t>(value.size(), 1)); });
    checked("H5Tset_strpad", [&] { return H5Tset_strpad(type.get(), H5T_STR_NULLPAD); });
    const Handle space = scalar_space();
    const Handle attribute{
        checked("H5Acreate2", [&] { return H5Acreate2(at, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT); }),
        H5Aclose};
    const std::string bytes = value.empty() ? std::string(1, '\0') : std::string(value);
    checked("H5Awrite", [&] { return H5Awrite(attribute.get(), type.get(), bytes.data()); });
}

Handle create_dataset(hid_t at, const char* name, Type type, const Dims& dims, const Dims& chunk) {
    const Handle space = simple_space(dims);
    const Handle creation = property_list([]() -> hid_t { return H5P_DATASET_CREATE; });
    checked("H5Pset_obj_track_times", [&] { return H5Pset_obj_track_times(creation.get(), false); });
    if (std::find(dims.begin(), dims.end(), 0U) == dims.end()) {
        checked("H5Pset_chunk",
                [&] { return H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data()); });
        checked("H5Pset_fletcher32", [&] { return H5Pset_fletcher32(creation.get()); });
        checked("H5Pset_fill_time", [&] { return H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER); });
    }
    return {
        checked(
            "H5Dcreate2",
            [&] { return H5Dcreate2(at, name, type_id(type), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT); }),
        H5Dclose};
}

void write_block(hid_t dataset, Type type, const Dims& start, const Dims& count, const void* values) {
    const auto [in_file, in_memory] = block_spaces(dataset, start, count);
    checked("H5Dwrite", [&, &in_file = in_file, &in_memory = in_memory] {
        return H5Dwrite(dataset, type_id(type), in_memory.get(), in_file.get(), H5P_DEFAULT, values);
    });
}

void read_block(hid_t dataset, Type type, const Dims& start, const Dims& count, void* values) {
    const auto [in_file, in_memory] = block_spaces(dataset, start, count);
    checked("H5Dread", [&, &in_file = in_file, &in_memory = in_memory] {
        return H5Dread(dataset, type_id(type), in_memory.get(), in_file.get(), H5P_DEFAULT, values);
    });
}

void write_values(hid_t at, const char* name, Type type, const void* values, std::size_t num_values) {
    constexpr std::size_t chunk_bytes = 512 * 1024;
    const Dims dims{num_values};
    const Dims chunk{std::min(num_values, chunk_bytes / type_bytes(type))};
    const Handle dataset = create_dataset(at, name, type, dims, chunk);
    if (num_values > 0) write_block(dataset.get(), type, {0}, dims, values);
}

}  // namespace longhaul::engine::hdf5
