#include "engine/hash.hpp"

#include <xxhash.h>

#include <cstdio>
#include <new>

namespace longhaul::engine {

Hash::Hash() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    reset();
}

Hash::~Hash() {
    XXH3_freeState(state_);
}

void Hash::add(const void* bytes, std::size_t num_bytes) {
    XXH3_64bits_update(state_, bytes, num_bytes);
}

std::uint64_t Hash::value() const {
    return XXH3_64bits_digest(state_);
}

void Hash::reset() {
    XXH3_64bits_reset(state_);
}

std::uint64_t hash_of(const void* bytes, std::size_t num_bytes) {
    return XXH3_64bits(bytes, num_bytes);
}

std::string hex(std::uint64_t value) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
    return digits;
}

}  // namespace longhaul::engine
