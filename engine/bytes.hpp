// Serialization of plain values, vectors and strings for messages between ranks of the same build. Never used for
// files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace longhaul::engine {

class ByteWriter {
  public:
    template <typename T>
    requires std::is_trivially_copyable_v<T>
    void put(const T& value) {
        const auto* from = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), from, from + sizeof(T));
    }
    template <typename T>
    requires std::is_trivially_copyable_v<T>
    void put(const std::vector<T>& values) {
        put(static_cast<std::uint64_t>(values.size()));
        const auto* from = reinterpret_cast<const std::byte*>(values.data());
        bytes_.insert(bytes_.end(), from, from + values.size() * sizeof(T));
    }
    void put(const std::string& text) { put(std::vector<char>(text.begin(), text.end())); }

    [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
};

class ByteReader {
  public:
    explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    template <typename T>
    requires std::is_trivially_copyable_v<T> T get() {
        T value;
        std::memcpy(&value, take(sizeof(T)), sizeof(T));
        return value;
    }
    template <typename T>
    requires std::is_trivially_copyable_v<T> std::vector<T> get_vector() {
        const auto count = get<std::uint64_t>();
        if (count > bytes_.size() / sizeof(T)) throw std::logic_error("message between ranks is shorter than it says");
        std::vector<T> values(count);
        if (count > 0) std::memcpy(values.data(), take(count * sizeof(T)), count * sizeof(T));
        return values;
    }
    std::string get_string() {
        const auto chars = get_vector<char>();
        return {chars.begin(), chars.end()};
    }
    /// Count of items that follow, each at least one byte long. Throws std::logic_error if the rest of the message is
    /// shorter.
    std::uint64_t get_count() {
        const auto count = get<std::uint64_t>();
        if (count > bytes_.size()) throw std::logic_error("message between ranks is shorter than it says");
        return count;
    }
    [[nodiscard]] bool empty() const { return bytes_.empty(); }

  private:
    const std::byte* take(std::size_t count) {
        if (count > bytes_.size()) throw std::logic_error("message between ranks is shorter than it says");
        const std::byte* at = bytes_.data();
        bytes_ = bytes_.subspan(count);
        return at;
    }
    std::span<const std::byte> bytes_;
};

/// FieldWriter and FieldReader define both directions of a message by one list of its fields: a function
/// `fields(archive, value)` calls archive(field) for each field in order and works with either of them as the archive.
class FieldWriter {
  public:
    template <typename T>
    void operator()(const T& field) {
        writer_.put(field);
    }
    /// Number of items that follow one by one.
    void count(std::uint64_t number) { writer_.put(number); }
    [[nodiscard]] std::vector<std::byte>& bytes() { return writer_.bytes(); }

  private:
    ByteWriter writer_;
};

class FieldReader {
  public:
    explicit FieldReader(std::span<const std::byte> bytes) : reader_(bytes) {}

    template <typename T>
    void operator()(T& field) {
        field = reader_.get<T>();
    }
    template <typename T>
    void operator()(std::vector<T>& field) {
        field = reader_.get_vector<T>();
    }
    void operator()(std::string& field) { field = reader_.get_string(); }
    void count(std::uint64_t& number) { number = reader_.get_count(); }
    [[nodiscard]] bool empty() const { return reader_.empty(); }

  private:
    ByteReader reader_;
};

}  // namespace longhaul::engine
