#include "engine/tokenizer/wire.hpp"

#include <bit>

namespace longhaul::engine {

void WireReader::fail(std::string_view expected, std::string_view got) const {
    const std::string place = name_ + (field_ > 0 ? ", field " + std::to_string(field_) : "") + ", byte " +
                              std::to_string(size_ - rest_.size());
    throw InputError(file_, place, expected, got);
}

std::uint64_t WireReader::read_varint() {
    std::uint64_t value = 0;
    for (unsigned int shift = 0; shift < 64; shift += 7) {
        if (rest_.empty()) fail("an integer", "the end of the message");
        const auto byte = static_cast<unsigned char>(rest_[0]);
        rest_.remove_prefix(1);
        value |= std::uint64_t{byte & 0x7FU} << shift;
        if (byte < 0x80) return value;
    }
    fail("an integer of at most 10 bytes", "a longer one");
}

std::string_view WireReader::take(std::uint64_t num_bytes) {
    if (num_bytes > rest_.size()) fail("at most " + std::to_string(rest_.size()) + " bytes", std::to_string(num_bytes));
    const std::string_view taken = rest_.substr(0, num_bytes);
    rest_.remove_prefix(num_bytes);
    return taken;
}

bool WireReader::next() {
    if (rest_.empty()) return false;
    const std::uint64_t tag = read_varint();
    field_ = tag >> 3;
    kind_ = static_cast<Kind>(tag & 7U);
    switch (kind_) {
        case Kind::varint:
            integer_ = read_varint();
            break;
        case Kind::fixed64:
            bytes_ = take(8);
            break;
        case Kind::bytes:
            bytes_ = take(read_varint());
            break;
        case Kind::fixed32:
            bytes_ = take(4);
            break;
        default:
            fail("a field of Protocol Buffers", "kind " + std::to_string(tag & 7U));
    }
    if (field_ == 0) fail("a field of Protocol Buffers", "number 0");
    return true;
}

void WireReader::require(Kind kind) const {
    if (kind_ != kind)
        fail("kind " + std::to_string(static_cast<int>(kind)), "kind " + std::to_string(static_cast<int>(kind_)));
}

std::string_view WireReader::bytes() const {
    require(Kind::bytes);
    return bytes_;
}

std::int64_t WireReader::integer() const {
    require(Kind::varint);
    return std::bit_cast<std::int64_t>(integer_);
}

float WireReader::real() const {
    require(Kind::fixed32);
    std::uint32_t bits = 0;
    for (unsigned int i = 0; i < 4; ++i) bits |= std::uint32_t{static_cast<unsigned char>(bytes_[i])} << 8 * i;
    return std::bit_cast<float>(bits);
}

}  // namespace longhaul::engine
