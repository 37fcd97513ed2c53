// Added tokens (special tokens and others) are matched in the text before pre-tokenization and BPE. PipelineTokenizer
// uses this twice: on the original text and on the normalized text.
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
    bool lstrip = false;       ///< also consumes white space before it
    bool rstrip = false;       ///< also consumes white space after it
    bool single_word = false;  ///< does not match inside a word
    bool normalized = false;   ///< matched in the normalized text, not in the original
};

/// Matches added tokens from left to right. At each position the longest token wins.
class AddedTokenMatcher {
  public:
    /// Longest content in bytes; the loaders refuse longer ones. Matching takes up to this many steps per byte of text.
    static constexpr std::size_t max_content_bytes = 1024;

    AddedTokenMatcher() = default;
    /// A token with empty content never matches.
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
    std::vector<Node> nodes_;          // trie over the bytes of the contents; [0] is the root
    std::vector<std::int32_t> roots_;  // [byte] child of the root, -1 for most bytes
};

}  // namespace longhaul::engine
