// XXH3-64: the hash of fingerprints, checksums and identities, and its text. What it is computed over is written in
// files, so it must stay the same function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

struct XXH3_state_s;  // from xxhash.h

namespace longhaul::engine {

/// The hash of bytes that are added piece by piece.
class Hash {
  public:
    Hash();
    ~Hash();
    Hash(const Hash&) = delete;
    Hash& operator=(const Hash&) = delete;

    void add(const void* bytes, std::size_t num_bytes);
    void add(std::string_view bytes) { add(bytes.data(), bytes.size()); }
    [[nodiscard]] std::uint64_t value() const;  ///< of all bytes since the last reset
    void reset();

  private:
    XXH3_state_s* state_;
};

[[nodiscard]] std::uint64_t hash_of(const void* bytes, std::size_t num_bytes);
[[nodiscard]] inline std::uint64_t hash_of(std::string_view bytes) {
    return hash_of(bytes.data(), bytes.size());
}

/// 16 hexadecimal digits.
[[nodiscard]] std::string hex(std::uint64_t value);

}  // namespace longhaul::engine
