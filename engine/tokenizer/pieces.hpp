// A text on its way to tokens: a row of pieces, each a stretch of text or a token already found.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine {

struct Piece {
    std::string_view text;
    std::int32_t token_id = -1;  ///< of an added token; -1: text still to be split and merged
    bool at_text_start = false;  ///< whether the whole text starts with this piece: some prefixes go there only
};

/// Pieces and the texts they point into. Views stay valid as long as this lives.
class PieceList {
  public:
    explicit PieceList(std::string_view text) {
        if (!text.empty()) pieces_.push_back({text, -1, true});
    }

    [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }

    /// Replaces every text piece by what `split(piece, append)` appends; empty pieces vanish.
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

    /// Keeps a text that pieces will point into.
    std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }

    /// An empty text that pieces will point into; it must not grow beyond the capacity it is given here.
    std::string& keep_room(std::size_t num_bytes) {
        texts_.emplace_back().reserve(num_bytes);
        return texts_.back();
    }

  private:
    std::vector<Piece> pieces_;
    std::deque<std::string> texts_;  // a deque: short strings must not move
};

/// `piece` from byte `begin` to `end`.
inline Piece sub_piece(const Piece& piece, std::size_t begin, std::size_t end) {
    return {piece.text.substr(begin, end - begin), -1, piece.at_text_start && begin == 0};
}

}  // namespace longhaul::engine
