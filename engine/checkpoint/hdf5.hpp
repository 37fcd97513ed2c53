// Wrapper of the HDF5 library: owned handles, checked results, the library's error stack turned into an exception
// instead of being printed, all calls under one mutex. hdf5_reader.hpp adds the checks for reading. Private to this
// folder.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longhaul::engine::hdf5 {

/// A failed HDF5 call; what() is the call and the innermost reason in the library's error stack. Readers turn it into
/// an InputError with file and dataset, the writer thread into a failed round.
class Failure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// Holds the mutex for one C call. Also turns off the library's error printing, which is a per-thread setting if HDF5
/// was built thread-safe.
class Section {
  public:
    Section();

  private:
    std::lock_guard<std::mutex> lock_;
};

[[noreturn]] void throw_failure(const char* what);

/// Runs one C call and throws Failure if its result is negative. `what`: name of the call, for the message.
template <class Call>
auto checked(const char* what, Call&& call) {
    const Section section;
    const auto result = call();
    if (result < 0) throw_failure(what);
    return result;
}

/// Owner of one HDF5 id. The destructor ignores errors; close() reports them.
class Handle {
  public:
    using Close = herr_t (*)(hid_t);

    Handle() = default;
    Handle(hid_t id, Close close) : id_(id), close_(close) {}
    Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Handle() { reset(); }

    void reset() noexcept;
    void close();  ///< like reset, but throws Failure
    [[nodiscard]] hid_t get() const { return id_; }

  private:
    hid_t id_ = -1;
    Close close_ = nullptr;
};

/// Uninitialised memory from malloc, which the library can take over or return. Avoids clearing and copying images.
struct Bytes {
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    std::unique_ptr<std::byte[], Free> data;
    std::size_t size = 0;

    Bytes() = default;
    explicit Bytes(std::size_t num_bytes);
};

/// The element types of our files, always little-endian.
enum class Type { u8, u16, i32, i64, u64, f32 };
[[nodiscard]] std::size_t type_bytes(Type type);
[[nodiscard]] const char* type_name(Type type);
/// The library's id of `type`, not owned. Call while a Section exists: the first call initialises the library.
[[nodiscard]] hid_t type_id(Type type);

/// The stored type of a C++ type. Any type of one byte is stored as u8.
template <class T>
inline constexpr Type type_of = [] {
    static_assert(sizeof(T) == 1);
    return Type::u8;
}();
template <>
inline constexpr Type type_of<std::int32_t> = Type::i32;
template <>
inline constexpr Type type_of<std::int64_t> = Type::i64;
template <>
inline constexpr Type type_of<std::uint64_t> = Type::u64;

using Dims = std::vector<hsize_t>;

/// An HDF5 file built in memory; the library never writes it to disk. take() closes it and keeps the library's buffer.
/// This avoids a second copy, and a bug of H5Fget_file_image in 1.10.8: it clears the flags of a version 2 superblock
/// without updating its checksum.
class MemoryFile {
  public:
    /// `increment`: bytes by which the memory grows. `btree_fanout`: half the children of a chunk index node; small if
    /// datasets have few chunks.
    MemoryFile(std::size_t increment, unsigned btree_fanout);
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    ~MemoryFile();

    [[nodiscard]] hid_t get() const { return file_.get(); }
    /// Closes the file and returns its bytes, followed by `tail_bytes` for the caller to fill. All handles inside the
    /// file must have been closed.
    [[nodiscard]] Bytes take(std::size_t tail_bytes);

  private:
    struct Buffer;                    ///< context of the library's memory callbacks
    std::unique_ptr<Buffer> buffer_;  ///< outlives the file
    Handle file_;
};
/// Opens the bytes of a file (copied) for reading.
[[nodiscard]] Handle open_image(const std::byte* bytes, std::size_t num_bytes);
/// Opens a file on disk for reading, without file locks: our files never change, and some file systems lack locks.
[[nodiscard]] Handle open_file(const std::string& path);

[[nodiscard]] Handle create_group(hid_t at, const char* name);
void write_attribute(hid_t at, const char* name, std::int64_t value);
void write_attribute(hid_t at, const char* name, std::string_view value);

/// Creates a dataset, chunked with the Fletcher32 filter. HDF5 cannot chunk a dataset without elements: it is
/// contiguous without a filter.
[[nodiscard]] Handle create_dataset(hid_t at, const char* name, Type type, const Dims& dims, const Dims& chunk);
void write_block(hid_t dataset, Type type, const Dims& start, const Dims& count, const void* values);
void read_block(hid_t dataset, Type type, const Dims& start, const Dims& count, void* values);

/// Creates and fills a one-dimensional dataset.
void write_values(hid_t at, const char* name, Type type, const void* values, std::size_t num_values);
template <class T>
void write_values(hid_t at, const char* name, const std::vector<T>& values) {
    write_values(at, name, type_of<T>, values.data(), values.size());
}

}  // namespace longhaul::engine::hdf5
