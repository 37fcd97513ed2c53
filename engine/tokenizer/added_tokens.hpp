// Tokens that are found in the text before it is split and merged: special tokens and others that were added.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/pieces.hpp"

namespace longhaul::engine {

struct AddedToken {
    std::string content;
    std::int32_t id = -1;
    bool special = false;
    bool lstrip = false;       ///< white space before it belongs to it
    bool rstrip = false;       ///< white space behind it belongs to it
    bool single_word = false;  ///< not inside a word
    bool normalized = false;   ///< looked for in the normalized text, not in the original
};

/// Finds the leftmost, among those the longest, added token, again and again.
class AddedTokenMatcher {
  public:
    /// Longer contents are refused by who loads them: matching costs this much for each byte of a text, at worst.
    static constexpr std::size_t max_content_bytes = 1024;

    AddedTokenMatcher() = default;
    /// Tokens without content are never found.
    explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

    /// Splits the text pieces at the added tokens.
    void split(PieceList& pieces) const;

  private:
    struct Node {
        std::int32_t first_child = -1;
        std::int32_t next_sibling = -1;
        std::int32_t token_index = -1;
        char byte = 0;
    };

    void insert(std::size_t token_index);
    [[nodiscard]] std::int32_t child(std::int32_t node, char byte) const;
    [[nodiscard]] std::int32_t longest_at(std::string_view text) const;

    std::vector<AddedToken> tokens_;
    std::vector<Node> nodes_;          // a trie over the bytes of the contents; [0] is the root
    std::vector<std::int32_t> roots_;  // [byte] child of the root: most bytes of a text are none
};

}  // namespace longhaul::engine
