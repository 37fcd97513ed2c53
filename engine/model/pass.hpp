// Input and output of a forward pass (Model::forward): rows, the KV sequences they read, taps for hidden states, and
// the results.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/config.hpp"
#include "engine/model/logits.hpp"
#include "engine/model/result_memory.hpp"

namespace longhaul::engine {

/// Where the key and value of a row are stored.
struct KvPlace {
    enum class In : std::uint8_t { pages, scratch, nowhere };
    In in = In::nowhere;
    std::int64_t slot = 0;  ///< index into the sequence's pages or scratch pages
};

/// One row of a forward pass: a prompt token, the root of a token tree, or a draft node. It attends to the first
/// `in_pages` slots of the pages, then to the scratch slots in `path`; to itself only if its own slot is among these.
/// Created by `text_row` and `tree_row`.
struct ForwardRow {
    std::int32_t token_id = 0;
    std::int32_t state = -1;         ///< row of Pass::states that replaces the token's embedding; -1: none
    std::int64_t position = 0;       ///< position in the text, for RoPE or learned positions
    std::int64_t text_length = 0;    ///< positions of the text that the pass continues, for longrope; 0: position + 1
    std::int32_t sequence = 0;       ///< index into Pass::sequences
    std::int64_t in_pages = 0;       ///< number of page slots it attends to
    std::vector<std::int32_t> path;  ///< scratch slots it attends to after these, in order
    KvPlace place;
    bool wants_logits = false;
    /// Row of given text (prompt or scored document). Set by position in the text alone, because a device may sum in
    /// another order for such rows. They must be consecutive in a pass (PassRows).
    bool of_prompt = false;
};

/// A row of text: it attends to all earlier positions and itself, in the pages, where slot = position.
inline ForwardRow text_row(std::int32_t token_id, std::int64_t position, std::int32_t sequence = 0) {
    ForwardRow row;
    row.token_id = token_id;
    row.position = position;
    row.sequence = sequence;
    row.in_pages = position + 1;
    row.place = {KvPlace::In::pages, position};
    return row;
}

/// A node of a tree whose root is the text row at `root_position`. `slots`: scratch slots of the nodes on the path from
/// the root's child to this node; the KV of this node is stored in the last one. Empty: the row is the root, which is
/// already accepted, so its KV is stored in the pages.
inline ForwardRow tree_row(std::int32_t token_id, std::int64_t root_position, std::vector<std::int32_t> slots,
                           std::int32_t sequence = 0) {
    ForwardRow row = text_row(token_id, root_position, sequence);
    if (slots.empty()) return row;
    row.position += static_cast<std::int64_t>(slots.size());
    row.place = {KvPlace::In::scratch, slots.back()};
    row.path = std::move(slots);
    return row;
}

/// Requests the hidden states of some rows at one point of the pass.
struct Tap {
    enum class At : std::uint8_t {
        layer_input,   ///< the residual stream before layer `layer`; for layer 0 the embeddings
        last_hidden,   ///< after the last layer, before the final norm
        normed_hidden  ///< after the final norm; same as last_hidden if the model has none
    };
    At at = At::last_hidden;
    std::int64_t layer = 0;          ///< for layer_input
    std::vector<std::int32_t> rows;  ///< indices into the pass's rows; the result has this order
};

/// The rows' queries in one layer, after RoPE, on this rank.
struct LayerQueries {
    LayerPlace layer;
    const std::byte* data = nullptr;  ///< KvLayout::query_type [rows, q_heads, head_dim], device memory
    std::int64_t q_heads = 0;

    [[nodiscard]] const std::byte* of_row(std::int64_t row, const kernels::KvLayout& layout) const {
        return data +
               row * q_heads * layout.head_dim * static_cast<std::int64_t>(kernels::bytes_of(layout.query_type()));
    }
};

struct Pass {
    std::span<const ForwardRow> rows;
    std::span<const KvView> sequences;
    const HiddenStates* states = nullptr;  ///< for rows with `state` >= 0: the result of a layer_input tap of layer 0
    std::span<const Tap> taps = {};
    /// Called in each layer between the queries and attention; it may change keys and values of that layer which the
    /// rows then read.
    std::function<void(const LayerQueries&)> before_attention = {};
};

struct PassResult {
    Logits logits;                   ///< of the rows with wants_logits, in the order of the rows
    std::vector<HiddenStates> taps;  ///< in the order of Pass::taps
};

}  // namespace longhaul::engine
