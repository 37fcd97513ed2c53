#include "engine/draft/drafter.hpp"

#include <charconv>

#include "engine/draft/ngram.hpp"
#include "engine/draft/replay.hpp"
#include "engine/error.hpp"
#include "engine/replica.hpp"

namespace longhaul::engine {
namespace {

/// No drafts: every step is one target call and one token.
class AutoregressiveDrafter final : public Drafter {
    class Sequence final : public SequenceDrafter {
      public:
        void accepted(std::span<const std::int32_t>, std::int64_t) override {}
        void propose(std::span<const std::int32_t>, std::uint64_t, std::int64_t, std::int64_t, double,
                     TokenTree&) override {}
    };

  public:
    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem&) const override {
        return std::make_unique<Sequence>();
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return 0; }
    [[nodiscard]] std::int64_t max_depth() const override { return 0; }
};

constexpr std::int64_t max_tree_nodes = 1024;

[[noreturn]] void refuse_tree(const std::string& text) {
    throw UsageError("draft-tree: expected a chain '5', width x depth '4x3' or with a node budget '4x3:12' (at most " +
                     std::to_string(max_tree_nodes) + " nodes), got '" + text + "'");
}

std::int64_t take_number(std::string_view& rest, const std::string& text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || number < 1 || number > max_tree_nodes) refuse_tree(text);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return number;
}

}  // namespace

TreeShape parse_tree_shape(const std::string& text) {
    std::string_view rest = text;
    TreeShape shape;
    shape.depth = take_number(rest, text);
    if (rest.starts_with('x')) {
        rest.remove_prefix(1);
        shape.width = shape.depth;
        shape.depth = take_number(rest, text);
    }
    shape.budget = shape.width * shape.depth;
    if (rest.starts_with(':')) {
        rest.remove_prefix(1);
        shape.budget = take_number(rest, text);
    }
    if (!rest.empty() || shape.budget > max_tree_nodes) refuse_tree(text);
    return shape;
}

// Where methods are named: a new one is a line here and a file beside this one.
std::unique_ptr<Drafter> make_drafter(const DraftOptions& options) {
    // Without a table nothing can be proposed.
    if (options.method == "ar" || (options.method == "ngram" && options.ngram_top == 0))
        return std::make_unique<AutoregressiveDrafter>();
    if (options.method == "ngram") return make_ngram_drafter(options);
    if (options.method == "replay") return make_replay_drafter(options);
    throw UsageError("draft: '" + options.method + "' is not in this version; it has ar, ngram, replay");
}

}  // namespace longhaul::engine
