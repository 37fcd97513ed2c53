// The hash and its text, which are in fingerprints, checksums and identities on disk.
#include "engine/hash.hpp"

#include <gtest/gtest.h>

#include <string>

namespace longhaul::engine {
namespace {

TEST(Hash, IsXxh3OfAllPiecesSinceTheReset) {
    EXPECT_EQ(hash_of(""), 0x2d06800538d394c2U);  // as published
    const std::string text(1000, 'x');
    Hash hash;
    EXPECT_EQ(hash.value(), hash_of(""));
    for (std::size_t at = 0; at < text.size(); at += 300) hash.add(std::string_view(text).substr(at, 300));
    EXPECT_EQ(hash.value(), hash_of(text));
    hash.reset();
    hash.add(text.data(), 7);
    EXPECT_EQ(hash.value(), hash_of(std::string_view(text).substr(0, 7)));
}

TEST(Hash, TextHasSixteenDigits) {
    EXPECT_EQ(hex(0), "0000000000000000");
    EXPECT_EQ(hex(0x2d06800538d394c2U), "2d06800538d394c2");
    EXPECT_EQ(hex(~std::uint64_t{0}), "ffffffffffffffff");
}

}  // namespace
}  // namespace longhaul::engine
