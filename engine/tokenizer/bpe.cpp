#include "engine/tokenizer/bpe.hpp"

#include <algorithm>
#include <bit>

#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

namespace {

// Longer words are cut where no merge can apply, before merging. For shorter ones the search does not pay.
constexpr std::size_t min_cut_bytes = 64;
// Longer words rarely repeat, so they are not cached.
constexpr std::size_t max_seen_bytes = 256;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::size_t mix(std::uint64_t key) {
    key *= 0x9E3779B97F4A7C15U;
    return static_cast<std::size_t>(key ^ key >> 32);
}

std::size_t table_size(std::size_t num_entries) {
    return std::bit_ceil(2 * num_entries + 2);
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const BpeOptions& options,
         ExtraChars extra_chars)
    : vocabulary_(vocabulary),
      options_(options),
      is_reserved_(static_cast<std::size_t>(vocabulary.size())),
      extra_chars_(std::move(extra_chars)),
      merges_(table_size(merges.size())),
      junctions_(table_size(merges.size()), empty_pair),
      bmp_ids_(0x10000, -1) {
    for (const std::int32_t id : options_.reserved_ids) is_reserved_[id] = true;
    for (std::size_t i = 0; i < extra_chars_.size(); ++i)
        extra_ids_.emplace(extra_chars_[i], vocabulary.size() + static_cast<std::int32_t>(i));
    std::string character;
    for (char32_t code = 0; code < 0x10000; ++code) {
        character.clear();
        unicode::append_char(code, character);  // includes surrogates, which valid text never contains
        bmp_ids_[code] = [&] {
            if (const auto id = find_word(character)) return *id;
            const auto extra = extra_ids_.find(character);
            return extra == extra_ids_.end() ? -1 : extra->second;
        }();
    }
    for (const Merge& merge : merges) {
        insert_merge(merge);
        const std::string_view left = symbol_text(merge.left);
        const std::string_view right = symbol_text(merge.right);
        if (left.empty() || right.empty()) continue;
        insert_junction(char_id(left.substr(unicode::last_char_start(left))),
                        char_id(right.substr(0, unicode::char_bytes(right[0]))));
    }
}

std::optional<std::int32_t> Bpe::find_word(std::string_view word) const {
    const auto id = vocabulary_.find(word);
    return id && !is_reserved_[*id] ? id : std::nullopt;
}

std::string_view Bpe::symbol_text(std::int32_t id) const {
    if (id < vocabulary_.size()) return vocabulary_.text(id);
    return extra_chars_[id - vocabulary_.size()];
}

std::int32_t Bpe::char_id(std::string_view character) const {
    const char32_t code = unicode::first_char(character);
    if (code < bmp_ids_.size()) return bmp_ids_[code];
    if (const auto id = find_word(character)) return *id;
    const auto extra = extra_ids_.find(character);
    return extra == extra_ids_.end() ? -1 : extra->second;
}

void Bpe::insert_merge(const Merge& merge) {
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::size_t at = mix(key) & (merges_.size() - 1);
    while (merges_[at].pair != empty_pair && merges_[at].pair != key) at = (at + 1) & (merges_.size() - 1);
    merges_[at] = {key, merge.rank, merge.merged};
}

const Bpe::Slot* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = pair_key(left, right);
    std::size_t at = mix(key) & (merges_.size() - 1);
    while (true) {
        if (merges_[at].pair == key) return &merges_[at];
        if (merges_[at].pair == empty_pair) return nullptr;
        at = (at + 1) & (merges_.size() - 1);
    }
}

void Bpe::insert_junction(std::int32_t left_char, std::int32_t right_char) {
    const std::uint64_t key = pair_key(left_char, right_char);
    std::size_t at = mix(key) & (junctions_.size() - 1);
    while (junctions_[at] != empty_pair && junctions_[at] != key) at = (at + 1) & (junctions_.size() - 1);
    junctions_[at] = key;
}

// Unknown and extra characters are not looked up: they may always join.
bool Bpe::may_join(std::int32_t left_char, std::int32_t right_char) const {
    if (left_char < 0 || right_char < 0 || left_char >= vocabulary_.size() || right_char >= vocabulary_.size())
        return true;
    const std::uint64_t key = pair_key(left_char, right_char);
    std::size_t at = mix(key) & (junctions_.size() - 1);
    while (junctions_[at] != empty_pair && junctions_[at] != key) at = (at + 1) & (junctions_.size() - 1);
    return junctions_[at] == key;
}

bool Bpe::append_bytes(std::string_view character, std::vector<std::int32_t>& ids) const {
    if (!options_.byte_fallback) return false;
    const auto id_of = [&](char byte) { return options_.byte_ids.at(static_cast<unsigned char>(byte)); };
    if (std::any_of(character.begin(), character.end(), [&](char byte) { return id_of(byte) < 0; })) return false;
    for (const char byte : character) ids.push_back(id_of(byte));
    return true;
}

// An unknown token is held back while the next unknown character may fuse with it. Byte-fallback tokens are emitted
// before a held one, as in the tokenizers package; this shows only if some bytes have tokens and others do not.
void Bpe::append_symbols(std::string_view word, std::vector<std::int32_t>& ids) const {
    bool unk_held = false;
    const auto release = [&] {
        if (unk_held) ids.push_back(*options_.unk_id);
        unk_held = false;
    };
    while (!word.empty()) {
        const std::string_view character = word.substr(0, unicode::char_bytes(word[0]));
        word.remove_prefix(character.size());
        if (const std::int32_t id = char_id(character); id >= 0) {
            release();
            ids.push_back(id);
        } else if (!append_bytes(character, ids) && options_.unk_id) {
            if (!options_.fuse_unk) release();
            unk_held = true;
        }
    }
    release();
}

void Bpe::Session::encode(std::string_view word, std::vector<std::int32_t>& token_ids) {
    if (word.empty()) return;
    if (bpe_.options_.ignore_merges) {
        if (const auto id = bpe_.find_word(word)) {
            token_ids.push_back(*id);
            return;
        }
    }
    if (word.size() < min_cut_bytes) return encode_part(word, token_ids);

    // SentencePiece treats a whole book as one word. No merge joins two characters that are not a junction, so the word
    // is cut there and each part is merged on its own. The result is the same and much faster.
    std::size_t begin = 0;
    std::int32_t left_char = -1;
    for (std::size_t at = 0; at < word.size();) {
        const std::string_view character = word.substr(at, unicode::char_bytes(word[at]));
        const std::int32_t right_char = bpe_.char_id(character);
        if (at > begin && !bpe_.may_join(left_char, right_char)) {
            encode_part(word.substr(begin, at - begin), token_ids);
            begin = at;
        }
        left_char = right_char;
        at += character.size();
    }
    encode_part(word.substr(begin), token_ids);
}

void Bpe::Session::encode_part(std::string_view part, std::vector<std::int32_t>& token_ids) {
    if (part.size() > max_seen_bytes) return encode_new(part, token_ids);
    const auto [entry, is_new] = seen_.try_emplace(part);
    if (is_new) {
        const std::size_t begin = seen_ids_.size();
        encode_new(part, seen_ids_);
        entry->second = {begin, seen_ids_.size()};
    }
    const auto [begin, end] = entry->second;
    token_ids.insert(token_ids.end(), seen_ids_.begin() + static_cast<std::ptrdiff_t>(begin),
                     seen_ids_.begin() + static_cast<std::ptrdiff_t>(end));
}

void Bpe::Session::encode_new(std::string_view part, std::vector<std::int32_t>& token_ids) {
    ids_.clear();
    bpe_.append_symbols(part, ids_);
    if (ids_.size() <= max_short_symbols) {
        merge_short();
    } else {
        merge_long();
    }
    emit(token_ids);
}

// Short words: repeatedly scan all symbols for the best merge.
void Bpe::Session::merge_short() {
    const auto rank_at = [&](std::size_t left) {
        if (left + 1 >= ids_.size()) return no_rank;
        const Slot* merge = bpe_.find_merge(ids_[left], ids_[left + 1]);
        return merge ? merge->rank : no_rank;
    };
    ranks_.resize(ids_.size());
    for (std::size_t i = 0; i < ids_.size(); ++i) ranks_[i] = rank_at(i);
    while (ids_.size() > 1) {
        const auto best = std::min_element(ranks_.begin(), ranks_.end());  // leftmost minimum
        if (*best == no_rank) return;
        const auto left = best - ranks_.begin();
        const auto at = static_cast<std::size_t>(left);
        ids_[at] = bpe_.find_merge(ids_[at], ids_[at + 1])->merged;
        ids_.erase(ids_.begin() + left + 1);
        ranks_.erase(ranks_.begin() + left + 1);
        ranks_[at] = rank_at(at);
        if (at > 0) ranks_[at - 1] = rank_at(at - 1);
    }
}

void Bpe::Session::push_candidate(std::int32_t position) {
    const Symbol& left = symbols_[position];
    if (left.next < 0) return;
    const Slot* merge = bpe_.find_merge(left.id, symbols_[left.next].id);
    if (!merge) return;
    heap_.push_back({merge->rank, position, merge->merged});
    std::push_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) {
        return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
    });
}

// Long words (up to a whole book): a linked list of symbols and a heap of candidate merges, O(n log n). A candidate is
// stale if its symbols have changed since it was pushed; stale candidates are dropped when popped.
void Bpe::Session::merge_long() {
    symbols_.clear();
    heap_.clear();
    const auto num_symbols = static_cast<std::int32_t>(ids_.size());
    for (std::int32_t i = 0; i < num_symbols; ++i)
        symbols_.push_back({ids_[i], i - 1, i + 1 < num_symbols ? i + 1 : -1});
    for (std::int32_t i = 0; i < num_symbols; ++i) push_candidate(i);

    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) {
            return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
        });
        const Candidate best = heap_.back();
        heap_.pop_back();
        Symbol& left = symbols_[best.position];
        if (left.id < 0 || left.next < 0) continue;
        Symbol& right = symbols_[left.next];
        const Slot* merge = bpe_.find_merge(left.id, right.id);
        if (!merge || merge->merged != best.merged || merge->rank != best.rank) continue;
        left.id = merge->merged;
        left.next = right.next;
        right.id = -1;
        if (left.next >= 0) symbols_[left.next].previous = best.position;
        if (left.previous >= 0) push_candidate(left.previous);
        push_candidate(best.position);
    }
    ids_.clear();
    for (std::int32_t i = 0; i >= 0 && i < num_symbols; i = symbols_[i].next) ids_.push_back(symbols_[i].id);
}

// An extra character that was not merged has no token: it becomes byte tokens or the unknown token.
void Bpe::Session::emit(std::vector<std::int32_t>& token_ids) const {
    const std::size_t begin = token_ids.size();
    for (const std::int32_t id : ids_) {
        if (id < bpe_.vocabulary_.size()) {
            token_ids.push_back(id);
        } else if (!bpe_.append_bytes(bpe_.symbol_text(id), token_ids) && bpe_.options_.unk_id) {
            token_ids.push_back(*bpe_.options_.unk_id);
        }
    }
    if (bpe_.extra_chars_.empty() || !bpe_.options_.fuse_unk || !bpe_.options_.unk_id) return;
    const auto both_unknown = [&](std::int32_t a, std::int32_t b) { return a == b && a == *bpe_.options_.unk_id; };
    token_ids.erase(std::unique(token_ids.begin() + static_cast<std::ptrdiff_t>(begin), token_ids.end(), both_unknown),
                    token_ids.end());
}

}  // namespace longhaul::engine
