// Byte pair encoding (Sennrich et al. 2016). A word is a sequence of symbols. The adjacent pair whose merge has the
// lowest rank is merged first, the leftmost among equals, until no merge applies. PipelineTokenizer uses it for
// byte-level BPE (rank = position in the list of merges) and for SentencePiece BPE (rank = position in the order of the
// scores).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/tokenizer/vocabulary.hpp"

namespace longhaul::engine {

/// left + right -> merged. The lowest rank is merged first.
struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t merged;
    std::int32_t rank;
};

struct BpeOptions {
    std::optional<std::int32_t> unk_id;
    bool fuse_unk = false;       ///< adjacent unknown characters become one token
    bool ignore_merges = false;  ///< a word that is itself a token becomes that token without merging
    /// Byte fallback: an unknown character becomes the tokens of its UTF-8 bytes. `byte_ids`: [byte] token, or -1 if
    /// there is none.
    bool byte_fallback = false;
    std::array<std::int32_t, 256> byte_ids{};
    /// Ids that a lookup of text never returns: added tokens, control tokens and byte tokens.
    std::vector<std::int32_t> reserved_ids;
};

/// Characters that have no token but take part in merges (SentencePiece only). Their ids start at vocabulary.size().
using ExtraChars = std::vector<std::string>;

class Bpe {
  public:
    /// Every id in `merges` must be in `vocabulary` or `extra_chars`. If a pair has two merges, the later one wins.
    /// `vocabulary` must outlive this object.
    Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const BpeOptions& options,
        ExtraChars extra_chars = {});

    /// State for encoding one text: buffers, and a cache of the words seen so far. The cache holds views, so the words
    /// must stay valid.
    class Session {
      public:
        explicit Session(const Bpe& bpe) : bpe_(bpe) {}

        /// Appends the ids of `word`, which must be valid UTF-8.
        void encode(std::string_view word, std::vector<std::int32_t>& token_ids);

      private:
        friend class Bpe;
        struct Symbol {
            std::int32_t id;
            std::int32_t previous;
            std::int32_t next;
        };
        struct Candidate {
            std::int32_t rank;
            std::int32_t position;
            std::int32_t merged;
        };

        void encode_part(std::string_view part, std::vector<std::int32_t>& token_ids);
        void encode_new(std::string_view part, std::vector<std::int32_t>& token_ids);
        void push_candidate(std::int32_t position);

        const Bpe& bpe_;
        std::vector<std::int32_t> ids_;    // symbols of a short word
        std::vector<std::int32_t> ranks_;  // rank of the merge with the right neighbour
        std::vector<Symbol> symbols_;      // symbols of a long word
        std::vector<Candidate> heap_;
        std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>> seen_;  // [begin, end) in seen_ids_
        std::vector<std::int32_t> seen_ids_;

        void merge_short();
        void merge_long();
        void emit(std::vector<std::int32_t>& token_ids) const;

      public:
        /// Words of up to this many symbols take merge_short, longer ones merge_long. Tests set it: both must give the
        /// same ids.
        std::size_t max_short_symbols = 24;
    };

    /// Id of one character, or -1.
    [[nodiscard]] std::int32_t char_id(std::string_view character) const;

  private:
    struct Slot {
        std::uint64_t pair = empty_pair;
        std::int32_t rank = 0;
        std::int32_t merged = 0;
    };
    static constexpr std::uint64_t empty_pair = ~std::uint64_t{0};
    static constexpr std::int32_t no_rank = 0x7FFFFFFF;

    [[nodiscard]] const Slot* find_merge(std::int32_t left, std::int32_t right) const;
    void insert_merge(const Merge& merge);
    void insert_junction(std::int32_t left_char, std::int32_t right_char);
    [[nodiscard]] bool may_join(std::int32_t left_char, std::int32_t right_char) const;
    [[nodiscard]] std::optional<std::int32_t> find_word(std::string_view word) const;
    [[nodiscard]] std::string_view symbol_text(std::int32_t id) const;
    void append_symbols(std::string_view word, std::vector<std::int32_t>& ids) const;
    [[nodiscard]] bool append_bytes(std::string_view character, std::vector<std::int32_t>& ids) const;

    const Vocabulary& vocabulary_;
    BpeOptions options_;
    std::vector<bool> is_reserved_;  // [token_id]
    ExtraChars extra_chars_;
    std::vector<Slot> merges_;              // hash table with open addressing; the size is a power of two
    std::vector<std::uint64_t> junctions_;  // same kind of table: pairs of characters that some merge joins
    std::vector<std::int32_t> bmp_ids_;     // [code point < 65536] char_id; a string map is too slow
    std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>> extra_ids_;
};

}  // namespace longhaul::engine
