// A text while it is tokenized: a list of pieces. A piece is a stretch of text or an added token that was already
// found.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine {

struct Piece {
    std::string_view text;
    std::int32_t token_id = -1;  ///< id of an added token; -1: text that is not tokenized yet
    bool at_text_start = false;  ///< the text starts with this piece (some prefixes are added only there)
};

/// Pieces and the texts they refer to. The views are valid as long as this object lives.
class PieceList {
  public:
    explicit PieceList(std::string_view text) {
        if (!text.empty()) pieces_.push_back({text, -1, true});
    }

    [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }

    /// Replaces every text piece by the pieces that `split(piece, append)` appends. Empty pieces are dropped.
    template <class Split>
    void replace_each(Split&& split) {
        std::vector<Piece> result;
        result.reserve(pieces_.size());
        const auto append = [&](const Piece& piece) {
            if (!piece.text.empty() || piece.token_id >= 0) result.push_back(piece);
        };
        for (const Piece& piece : pieces_) {
            if (piece.token_id >= 0) {
                result.push_back(piece);
            } else {
                split(piece, append);
            }
        }
        pieces_ = std::move(result);
    }

    /// Stores a text that pieces will refer to.
    std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }

    /// Stores an empty text with capacity for `num_bytes` that pieces will refer to. It must not grow beyond that.
    std::string& keep_room(std::size_t num_bytes) {
        texts_.emplace_back().reserve(num_bytes);
        return texts_.back();
    }

  private:
    std::vector<Piece> pieces_;
    std::deque<std::string> texts_;  // a deque, because short strings must not move
};

/// Bytes [begin, end) of `piece`.
inline Piece sub_piece(const Piece& piece, std::size_t begin, std::size_t end) {
    return {piece.text.substr(begin, end - begin), -1, piece.at_text_start && begin == 0};
}

}  // namespace longhaul::engine
