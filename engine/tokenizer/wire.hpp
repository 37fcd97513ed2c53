// Reader for the Protocol Buffers wire format, limited to what a SentencePiece model needs. Checks every length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/error.hpp"

namespace longhaul::engine {

/// Reads the fields of one message in order.
class WireReader {
  public:
    /// `name` is used in error messages.
    WireReader(std::string_view message, std::string_view file, std::string name)
        : rest_(message), size_(message.size()), file_(file), name_(std::move(name)) {}

    /// Advances to the next field; returns false at the end of the message. Throws InputError for a malformed field.
    bool next();

    [[nodiscard]] std::uint64_t field() const { return field_; }
    /// Value of the current field. Throws InputError if the field has another wire type.
    [[nodiscard]] std::string_view bytes() const;
    [[nodiscard]] std::int64_t integer() const;
    [[nodiscard]] bool boolean() const { return integer() != 0; }
    [[nodiscard]] float real() const;

    [[noreturn]] void fail(std::string_view expected, std::string_view got) const;

  private:
    enum class Kind { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

    std::uint64_t read_varint();
    std::string_view take(std::uint64_t num_bytes);
    void require(Kind kind) const;

    std::string_view rest_;
    std::size_t size_;
    std::string_view file_;
    std::string name_;
    std::uint64_t field_ = 0;
    Kind kind_ = Kind::varint;
    std::uint64_t integer_ = 0;
    std::string_view bytes_;  // payload of all kinds except varint
};

}  // namespace longhaul::engine
