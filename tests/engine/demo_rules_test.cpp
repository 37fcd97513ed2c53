// The sampling rules on the demo model: two tokens at top-k 8, drafted by a real model with a paged KV cache, tested
// against the exact joint distribution of the target, which is enumerated from its own logits.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "engine/draft/drafter.hpp"
#include "engine/draft/heads.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "engine/replica/replica.hpp"
#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"
#include "kernels/numerics.hpp"
#include "tests/engine/chi_square.hpp"

namespace longhaul::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::size_t emitted = 2;
const Tokens prompt{310, 1022};

SamplingParams params() {
    SamplingParams wanted;
    wanted.temperature = 1.1;
    wanted.top_k = 8;
    wanted.repetition_penalty = 1.2;  // each node has its own context
    return wanted;
}

/// The demo models, loaded once.
struct Demo {
    std::unique_ptr<kernels::Device> device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    std::unique_ptr<Group> group = make_local_group();
    std::unique_ptr<Model> target = Model::load(LONGHAUL_DEMO_MODEL, Precision::bf16, *device, *group);
    std::unique_ptr<Model> small = load_small();
    std::unique_ptr<DraftHeads> heads =
        std::make_unique<DraftHeads>(std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "medusa", *target);
    std::map<Tokens, Distribution> distributions;
    std::map<Tokens, HiddenStates> states;

    static Demo& get() {
        static Demo demo;
        return demo;
    }

    /// Draft model of a chain. The target itself drafts for every second chain, and for all if there is no small model.
    Model* draft(int number) { return small && number % 2 == 0 ? small.get() : target.get(); }

    /// The target's distribution after the prompt and `text`.
    const Distribution& after(const Tokens& text) {
        const auto known = distributions.find(text);
        if (known != distributions.end()) return known->second;
        Tokens context = prompt;
        context.insert(context.end(), text.begin(), text.end());
        PassResult result = run(context);
        LogitsPipeline pipeline(params(), target->config().vocab_size);
        return distributions[text] = pipeline.apply(result.logits.all(), {context, {}});
    }

    /// The hidden state of the last token of `context`.
    std::span<const HiddenStates> state_of(const Tokens& context) {
        const auto known = states.find(context);
        if (known != states.end()) return std::span(&known->second, 1);
        return std::span(&states.emplace(context, std::move(run(context).taps.front())).first->second, 1);
    }

    /// The logits of the last row, and its hidden state.
    PassResult run(const Tokens& context) {
        KvPool pool(*device, target->kv_layouts(), std::int64_t{1} << 40);
        KvSequence kv(pool);
        EXPECT_TRUE(kv.reserve(static_cast<std::int64_t>(context.size())));
        std::vector<ForwardRow> rows;
        for (const std::int32_t token : context) rows.push_back(text_row(token, std::ssize(rows)));
        rows.back().wants_logits = true;
        const KvView view = kv.view();
        const Tap tap{.at = Tap::At::last_hidden, .rows = {static_cast<std::int32_t>(rows.size()) - 1}};
        return target->forward({.rows = rows, .sequences = std::span(&view, 1), .taps = std::span(&tap, 1)});
    }

    std::map<Tokens, double> joint() {
        return testing::joint_distribution(emitted, [&](const Tokens& text) { return after(text); });
    }

  private:
    /// The demo's draft model; nullptr if there is none.
    std::unique_ptr<Model> load_small() {
        const auto folder = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path() / "draft";
        if (!std::filesystem::exists(folder / "config.json")) return nullptr;
        return Model::load(folder, Precision::bf16, *device, *group);
    }
};

struct Case {
    const char *draft, *tree, *verify;
    int models = 1;
};

/// One text during generation.
struct Text {
    std::unique_ptr<SequenceDrafter> drafter;
    Tokens tokens;  ///< without the prompt
    Tokens context = prompt;
    std::uint64_t key = 0;
    TokenTree tree;
};

/// Passes to the drafter what a forward pass would: `num_new` tokens at the end of the text, and the state of the token
/// before the last one.
void observe(Drafter& drafter, Text& text, std::int64_t num_new, std::span<const std::int32_t> path) {
    const Tokens before(text.context.begin(), text.context.end() - 1);
    const Observation seen{.sequence = text.drafter.get(),
                           .context = text.context,
                           .num_new = num_new,
                           .path = path,
                           .num_rows = 1,
                           .first_position = static_cast<std::int64_t>(before.size()) - 1};
    drafter.observe(std::span(&seen, 1), Demo::get().state_of(before));
}

void verify_one(Drafter& drafter, Text& text, const Verifier& verifier) {
    Demo& demo = Demo::get();
    const auto target = [&](std::int32_t node) -> const Distribution& {
        Tokens path = text.tokens;
        for (const std::int32_t above : text.tree.path_to(node))
            path.push_back(text.tree.token[static_cast<std::size_t>(above)]);
        return demo.after(path.size() < emitted ? path : Tokens{});  // beyond `emitted` the token is not used
    };
    const Verdict verdict =
        verifier.verify(text.tree, target, text.key, static_cast<std::int64_t>(text.context.size()));
    const auto append = [&](std::int32_t token) {
        text.tokens.push_back(token);
        text.context.push_back(token);
    };
    for (const std::int32_t node : verdict.nodes) append(text.tree.token[static_cast<std::size_t>(node)]);
    append(verdict.next_token);
    const bool done = text.tokens.size() >= emitted;
    if (!done) observe(drafter, text, static_cast<std::int64_t>(verdict.nodes.size()) + 1, verdict.nodes);
}

/// One step of all unfinished texts; false if there are none.
bool step(Drafter& drafter, const Verifier& verifier, VerifyRule rule, std::vector<Text>& batch) {
    static const SamplingParams sampling = params();
    std::vector<Proposal> proposals;
    std::vector<Text*> open;
    for (Text& text : batch) {
        if (text.tokens.size() >= emitted) continue;
        text.tree.reset(text.context.back());
        open.push_back(&text);
        proposals.push_back({.sequence = text.drafter.get(),
                             .context = text.context,
                             .noise = {text.key, rule == VerifyRule::coupled ? Noise::Kind::shared : Noise::Kind::own},
                             .sampling = &sampling,
                             .max_depth = drafter.max_depth(),
                             .tree = &text.tree});
    }
    if (open.empty()) return false;
    drafter.propose(proposals);
    for (Text* text : open) verify_one(drafter, *text, verifier);
    return true;
}

double p_value_of(const Case& wanted, std::int64_t draws) {
    Demo& demo = Demo::get();
    DraftOptions options;
    options.method = wanted.draft;
    options.tree = wanted.tree;
    for (int i = 0; i < wanted.models; ++i) options.models.push_back(demo.draft(i));
    options.model_temperature = 0.6;  // differs from the target's, so that drafts are rejected often
    options.heads = demo.heads.get();
    const auto drafter = make_drafter({options, demo.target.get()});
    const auto verifier = make_verifier(wanted.verify);
    std::map<Tokens, std::int64_t> counts;
    for (std::int64_t first = 0; first < draws; first += 100) {
        std::vector<Text> batch(100);
        for (std::size_t i = 0; i < batch.size(); ++i) {
            batch[i].drafter = drafter->make_sequence({});
            batch[i].drafter->begin(prompt);
            observe(*drafter, batch[i], 0, {});
            batch[i].key = noise_key(11, std::to_string(first + static_cast<std::int64_t>(i)), 0);
        }
        while (step(*drafter, *verifier, wanted.verify, batch)) {
        }
        for (const Text& text : batch) ++counts[Tokens(text.tokens.begin(), text.tokens.begin() + emitted)];
    }
    return testing::chi_square_p(counts, demo.joint());
}

TEST(DemoRules, EveryRuleOnEveryMethodEmitsTheTarget) {
    const std::vector<Case> cases{
        {"sd", "2", "rejection"},
        {"sd", "2", "multi-round"},
        {"sd", "2", "k-seq"},
        {"sd", "2", "recursive"},
        {"sd", "2", "coupled"},
        {"spectr", "3x2", "multi-round"},
        {"spectr", "3x2", "k-seq"},
        {"spectr", "3x2", "coupled"},
        {"specinfer", "3x2", "k-seq"},
        {"specinfer", "3x2", "multi-round", 2},
        {"specinfer", "3x2", "coupled", 2},
        {"rsd-c", "2,2", "recursive"},
        {"rsd-c", "2,2", "coupled"},
        {"rsd-s", "3x2", "recursive"},
        {"rsd-s", "3x2", "coupled"},
        {"ngram", "2x2", "recursive", 0},
        {"medusa", "3,2", "recursive", 0},
        {"medusa", "3,2", "coupled", 0},
    };
    const std::int64_t draws = Demo::get().small ? 1500 : 800;  // seconds if the target is its own draft
    for (const Case& wanted : cases) EXPECT_GT(p_value_of(wanted, draws), 1e-4) << wanted.draft << " " << wanted.verify;
}

TEST(DemoRules, AWrongPairFails) {
    // Drafts drawn with replacement, verified by a rule for drafts without.
    EXPECT_LT(p_value_of({"spectr", "4x1", "recursive"}, 10000), 1e-4);
}

}  // namespace
}  // namespace longhaul::engine
