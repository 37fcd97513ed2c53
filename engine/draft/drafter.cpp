#include "engine/draft/drafter.hpp"

#include <stdexcept>

#include "engine/draft/lm_drafter.hpp"
#include "engine/draft/ngram.hpp"
#include "engine/draft/replay.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/error.hpp"
#include "engine/replica.hpp"

namespace longhaul::engine {
namespace {

/// No drafts: every step is one target call and one token.
class AutoregressiveDrafter final : public Drafter {
    class Sequence final : public SequenceDrafter {
      public:
        void accepted(std::span<const std::int32_t>, std::int64_t, std::span<const std::int32_t>) override {}
    };

  public:
    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem&) override {
        return std::make_unique<Sequence>();
    }
    void propose(std::span<Proposal>) override {}
    [[nodiscard]] std::int64_t max_nodes() const override { return 0; }
    [[nodiscard]] std::int64_t max_depth() const override { return 0; }
};

}  // namespace

std::unique_ptr<TreeMethod> make_tree_method(const DraftMethod& method, const TreeShape& shape,
                                             std::int64_t num_models) {
    if (method.name == "sd") return make_chains(1, shape.depth, 1);
    if (method.name == "spectr" || method.name == "specinfer") return make_chains(shape.width, shape.depth, num_models);
    if (method.name == "rsd-c") return make_rsd_c(shape.branching);
    if (method.name == "rsd-s") return make_rsd_s(shape.width, shape.depth);
    throw std::logic_error("draft method '" + method.name + "' grows no trees from models");
}

std::unique_ptr<Drafter> make_drafter(const DraftOptions& options) {
    const DraftMethod& method = find_draft_method(options.method);
    // Without a table nothing can be proposed.
    if (method.name == "ar" || (method.name == "ngram" && options.ngram_top == 0))
        return std::make_unique<AutoregressiveDrafter>();
    if (method.name == "ngram") return make_ngram_drafter(options);
    if (method.name == "replay") return make_replay_drafter(options);
    return make_lm_drafter(options);
}

}  // namespace longhaul::engine
