// What a forward pass takes and gives: rows, the keys and values they read, what to keep of them, and the results.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/logits.hpp"
#include "engine/model/result_memory.hpp"

namespace longhaul::engine {

/// Where the key and value of a row go.
struct KvPlace {
    enum class In : std::uint8_t { pages, scratch, nowhere };
    In in = In::nowhere;
    std::int64_t slot = 0;  ///< of the sequence's pages, or of its scratch pages
};

/// One row of a forward pass: a prompt token, the root of a tree, or a draft node. It sees the first `in_pages` slots
/// of the pages, then the scratch slots of `path`; itself only where it stores to one of these. Made by `text_row`
/// and `tree_row`.
struct ForwardRow {
    std::int32_t token_id = 0;
    std::int32_t state = -1;         ///< row of Pass::states that enters in place of the token's embedding; -1: none
    std::int64_t position = 0;       ///< in the text: its rotation, or its learned position
    std::int32_t sequence = 0;       ///< index into Pass::sequences
    std::int64_t in_pages = 0;       ///< page slots it sees
    std::vector<std::int32_t> path;  ///< scratch slots it sees behind them, in order
    KvPlace place;
    bool wants_logits = false;
    bool of_prompt = false;  ///< given text, by its position alone; such rows stand together (PassRows)
};

/// A row of text: it sees all before it and itself, in the pages, where slots are positions.
inline ForwardRow text_row(std::int32_t token_id, std::int64_t position, std::int32_t sequence = 0) {
    ForwardRow row;
    row.token_id = token_id;
    row.position = position;
    row.sequence = sequence;
    row.in_pages = position + 1;
    row.place = {KvPlace::In::pages, position};
    return row;
}

/// A node of a tree whose root is the row of text at `root_position`. `slots`: scratch slots of the nodes from below
/// the root to this one, which it stores to. Empty: the root, which is certain and goes straight to the pages.
inline ForwardRow tree_row(std::int32_t token_id, std::int64_t root_position, std::vector<std::int32_t> slots,
                           std::int32_t sequence = 0) {
    ForwardRow row = text_row(token_id, root_position, sequence);
    if (slots.empty()) return row;
    row.position += static_cast<std::int64_t>(slots.size());
    row.place = {KvPlace::In::scratch, slots.back()};
    row.path = std::move(slots);
    return row;
}

/// What to keep of some rows.
struct Tap {
    enum class At : std::uint8_t {
        layer_input,   ///< the residual stream before layer `layer`; of layer 0 the embeddings
        last_hidden,   ///< after the last layer, before the final norm
        normed_hidden  ///< after the final norm; where the model has none, as last_hidden
    };
    At at = At::last_hidden;
    std::int64_t layer = 0;          ///< of layer_input
    std::vector<std::int32_t> rows;  ///< indices into the pass's rows, in the order of the result
};

struct Pass {
    std::span<const ForwardRow> rows;
    std::span<const KvView> sequences;
    const HiddenStates* states = nullptr;  ///< where rows enter as such: what a tap of layer 0's input gives
    std::span<const Tap> taps = {};
};

struct PassResult {
    Logits logits;                   ///< of the rows that want them, in the order of the rows
    std::vector<HiddenStates> taps;  ///< in the order of Pass::taps
};

}  // namespace longhaul::engine
