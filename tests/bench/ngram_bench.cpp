// Question: how long does the host work for n-gram drafts, per token of the text and per node of a tree?
// Build: cmake --build build --target ngram_bench
// Command: ngram_bench MODEL TEXT, for example jobs/demo/model and a book of jobs/demo/books
// Answer: microseconds for inserting a token (into the counts of the sequence and of the replica), and for a tree;
// medians of five runs over the text.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "engine/draft/ngram_sequence.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {
namespace {

constexpr int tokens_per_step = 5;

/// Seconds of processor time: other programs do not count.
double seconds_of(const std::vector<std::int32_t>& text, bool with_trees, std::int64_t& nodes) {
    NgramOptions options;
    options.shape = {.width = 2, .depth = 8, .budget = 12, .branching = {}};
    NgramSequence sequence(options, std::make_shared<CommonNgrams>(options, nullptr));
    TokenTree tree;
    nodes = 0;
    const std::clock_t start = std::clock();
    for (std::size_t end = 1; end <= text.size(); ++end) {
        sequence.insert(std::span(text).subspan(end - 1, 1));
        if (!with_trees || end % tokens_per_step != 0) continue;
        tree.reset(text[end - 1]);
        sequence.propose({.sequence = &sequence,
                          .context = std::span(text).first(end),
                          .noise = {1, Noise::Kind::shared},
                          .max_depth = 8,
                          .min_probability = 0.1,
                          .tree = &tree},
                         8);
        nodes += tree.num_nodes() - 1;
    }
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

int main_of(const char* folder, const char* file) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const std::vector<std::int32_t> text = Tokenizer::load(folder)->encode(bytes);
    const auto tokens = static_cast<double>(text.size());
    const double steps = tokens / tokens_per_step;
    std::vector<double> inserts, trees;
    std::int64_t nodes = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
        inserts.push_back(seconds_of(text, false, nodes));
        trees.push_back(seconds_of(text, true, nodes) - inserts.back());
    }
    std::sort(inserts.begin(), inserts.end());
    std::sort(trees.begin(), trees.end());
    std::printf("%zu tokens: insert %.2f us per token; a tree %.2f us (%.1f nodes)\n", text.size(),
                inserts[2] / tokens * 1e6, trees[2] / steps * 1e6, static_cast<double>(nodes) / steps);
    return 0;
}

}  // namespace
}  // namespace longhaul::engine

int main(int argc, char** argv) {
    if (argc != 3) {
        std::cerr << "usage: ngram_bench MODEL TEXT\n";
        return 2;
    }
    try {
        return longhaul::engine::main_of(argv[1], argv[2]);
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << '\n';
        return 1;
    }
}
