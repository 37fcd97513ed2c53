#include "engine/tokenizer/added_tokens.hpp"

#include <utf8proc.h>

#include <algorithm>

#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

namespace {

// `\w` as single_word means it: letters, marks, decimal digits, connectors, joiners. The default case adds the circled
// and squared letters, which are symbols but Alphabetic.
bool is_word(char32_t code) {
    if (code == 0x200C || code == 0x200D) return true;
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC:
            return true;
        default:
            return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
                   (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
    }
}

bool inside_word(std::string_view text, std::size_t begin, std::size_t end) {
    const bool word_before =
        begin > 0 && is_word(unicode::first_char(text.substr(unicode::last_char_start(text.substr(0, begin)))));
    const bool word_behind = end < text.size() && is_word(unicode::first_char(text.substr(end)));
    return word_before || word_behind;
}

std::size_t white_space_before(std::string_view text, std::size_t low, std::size_t at) {
    while (at > low) {
        const std::size_t start = unicode::last_char_start(text.substr(0, at));
        if (!unicode::is_white_space(unicode::first_char(text.substr(start)))) break;
        at = start;
    }
    return at;
}

std::size_t white_space_behind(std::string_view text, std::size_t at) {
    while (at < text.size() && unicode::is_white_space(unicode::first_char(text.substr(at))))
        at += unicode::char_bytes(text[at]);
    return at;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    nodes_.emplace_back();
    for (std::size_t i = 0; i < tokens_.size(); ++i) insert(i);
    roots_.resize(256);
    for (int byte = 0; byte < 256; ++byte) roots_[byte] = child(0, static_cast<char>(byte));
}

void AddedTokenMatcher::insert(std::size_t token_index) {
    if (tokens_[token_index].content.empty()) return;
    std::int32_t at = 0;
    for (const char byte : tokens_[token_index].content) {
        std::int32_t next = child(at, byte);
        if (next < 0) {
            next = static_cast<std::int32_t>(nodes_.size());
            Node& parent = nodes_[at];
            const Node added{-1, parent.first_child, -1, byte};
            parent.first_child = next;
            nodes_.push_back(added);
        }
        at = next;
    }
    std::int32_t& index = nodes_[at].token_index;
    if (index < 0) index = static_cast<std::int32_t>(token_index);
}

std::int32_t AddedTokenMatcher::child(std::int32_t node, char byte) const {
    std::int32_t at = nodes_[node].first_child;
    while (at >= 0 && nodes_[at].byte != byte) at = nodes_[at].next_sibling;
    return at;
}

std::int32_t AddedTokenMatcher::longest_at(std::string_view text) const {
    std::int32_t node = roots_[static_cast<unsigned char>(text[0])];
    std::int32_t longest = -1;
    for (std::size_t i = 1; node >= 0; ++i) {
        const std::int32_t index = nodes_[node].token_index;
        if (index >= 0) longest = index;
        if (i == text.size()) break;
        node = child(node, text[i]);
    }
    return longest;
}

void AddedTokenMatcher::split(PieceList& pieces) const {
    if (nodes_.size() <= 1) return;
    pieces.replace_each([&](const Piece& piece, const auto& append) {
        const std::string_view text = piece.text;
        std::size_t done = 0;
        for (std::size_t at = 0; at < text.size();) {
            const std::int32_t index = longest_at(text.substr(at));
            if (index < 0) {
                ++at;
                continue;
            }
            const AddedToken& token = tokens_[index];
            const std::size_t content_end = at + token.content.size();
            if (!token.single_word || !inside_word(text, at, content_end)) {
                const std::size_t begin = token.lstrip ? white_space_before(text, std::min(done, at), at) : at;
                if (done < begin) append(sub_piece(piece, done, begin));
                append(Piece{{}, token.id, false});
                done = token.rstrip ? white_space_behind(text, content_end) : content_end;
            }
            at = content_end;
        }
        if (done < text.size()) append(sub_piece(piece, done, text.size()));
    });
}

}  // namespace longhaul::engine
