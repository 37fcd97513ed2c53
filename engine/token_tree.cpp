#include "engine/token_tree.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace longhaul::engine {

std::int32_t TokenTree::find_child(std::int32_t node, std::int32_t token_id) const {
    for (std::int32_t child = node + 1; child < num_nodes(); ++child) {  // level order: children follow their parent
        const auto at = static_cast<std::size_t>(child);
        if (parent[at] == node && token[at] == token_id) return child;
    }
    return -1;
}

void TokenTree::cut(std::int32_t first) {
    if (sampled) throw std::logic_error("a sampled tree grows level by level");
    const auto num = static_cast<std::size_t>(first);
    token.resize(num);
    parent.resize(num);
    depth.resize(num);
    origin.resize(num);
    by_ngram.resize(num);
    probability.resize(num);
}

std::int64_t TokenTree::ngram_chain() const {
    std::int32_t node = 0;
    for (std::int32_t next = 1; next < num_nodes() && origin[next] == Origin::ngram && parent[next] == node; ++next) {
        if (next + 1 < num_nodes() && depth[next + 1] == depth[next]) break;
        node = next;
    }
    return depth[node];
}

bool TokenTree::branches() const {
    std::vector<bool> has_child(token.size(), false);
    for (std::size_t node = 1; node < token.size(); ++node) {
        const auto above = static_cast<std::size_t>(parent[node]);
        if (has_child[above]) return true;
        has_child[above] = true;
    }
    return false;
}

/// The nodes of `tree` in this order, which has parents before children and may leave nodes out.
static TokenTree reordered(const TokenTree& tree, std::span<const std::int32_t> order) {
    std::vector<std::int32_t> place(tree.token.size(), -1);
    TokenTree result;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const auto from = static_cast<std::size_t>(order[i]);
        place[from] = static_cast<std::int32_t>(i);
        result.token.push_back(tree.token[from]);
        result.parent.push_back(tree.parent[from] < 0 ? -1 : place[tree.parent[from]]);
        result.depth.push_back(tree.depth[from]);
        result.origin.push_back(tree.origin[from]);
        result.by_ngram.push_back(tree.by_ngram[from]);
        result.probability.push_back(tree.probability[from]);
    }
    return result;
}

void TokenTree::keep(std::span<const std::int32_t> nodes) {
    if (sampled) throw std::logic_error("a sampled tree grows level by level");
    std::vector<std::int32_t> order{0};
    order.insert(order.end(), nodes.begin(), nodes.end());
    *this = reordered(*this, order);
}

void sort_by_level(TokenTree& tree) {
    if (tree.sampled) throw std::logic_error("a sampled tree grows level by level");
    std::vector<std::int32_t> order(tree.token.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return tree.depth[a] < tree.depth[b]; });
    tree = reordered(tree, order);
}

void TokenTree::merge(const TokenTree& other, Origin from, std::int64_t max_new) {
    std::vector<std::size_t> order(other.token.size() - 1);
    std::iota(order.begin(), order.end(), 1);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return other.probability[a] > other.probability[b]; });
    std::vector<std::int32_t> here(other.token.size(), -1);  // by node of `other`; -1: left out
    here.front() = 0;
    for (const std::size_t node : order) {
        const std::int32_t above = here[static_cast<std::size_t>(other.parent[node])];
        if (above < 0) continue;
        here[node] = find_child(above, other.token[node]);
        if (here[node] >= 0 || max_new == 0) continue;
        here[node] = add(above, other.token[node], from, static_cast<double>(other.probability[node]));
        --max_new;
    }
    sort_by_level(*this);
}

}  // namespace longhaul::engine
