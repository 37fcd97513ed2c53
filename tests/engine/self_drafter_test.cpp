// Draft method `self` in a whole replica: the model drafts for itself over a part of its own keys and values. Under
// `coupled` the text is that of plain decoding; under the sampling rules it is one text of its own, whatever the batch,
// the split and the interruptions, and its distribution is the target's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "engine/draft/drafter.hpp"
#include "engine/draft/ranked_kv.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/kv/partial_kv.hpp"
#include "tests/engine/replica_harness.hpp"
#include "tests/engine/table_decoding.hpp"
#include "tests/engine/text_distribution.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Tokens = std::vector<std::int32_t>;
using Texts = std::map<std::int64_t, Tokens>;

Job job_of(VerifyRule verify, std::optional<Precision> copy, const char* tree = "4") {
    Job job{base_options()};
    job.options.draft.method = "self";
    job.options.draft.tree = tree;
    job.options.draft.partial_cache = {.mode = PartialMode::window, .max_positions = 128};
    job.options.verify = verify;
    job.copy = copy;
    return job;
}

/// Texts that are longer than their selection, which is made anew several times.
Job ranked_job(PartialMode::Value mode, VerifyRule verify, std::optional<Precision> copy, const char* tree = "4") {
    Job job = job_of(verify, copy, tree);
    job.options.draft.partial_cache = {.mode = mode, .max_positions = 256};
    job.items = 3;
    for (std::int32_t item = 0; item < job.items; ++item) {
        for (std::int32_t i = 0; i < 200 + 60 * item; ++i) job.prompts[item].push_back((i * i + 3 * item + i / 5) % 90);
    }
    job.generation.max_tokens = 250;
    return job;
}

TEST(SelfDrafter, CoupledGivesTheTextOfPlainDecoding) {
    const Texts plain = plain_texts();
    for (const auto copy :
         {std::optional<Precision>(), std::optional(Precision::int8), std::optional(Precision::int4)}) {
        for (const char* tree : {"4", "3x4:7", "auto"}) {
            for (const auto mode : {PartialMode::window, PartialMode::full}) {
                Job job = job_of(VerifyRule::coupled, copy, tree);
                job.options.draft.partial_cache.mode = mode;
                job.options.batch = copy ? 3 : 1;
                const JobResult result = launch(job);
                EXPECT_EQ(tokens_of(result.items), plain) << tree;
                EXPECT_GT(result.sum.accepted, std::string(tree) == "auto" ? 0 : result.sum.drafted / 8) << tree;
            }
        }
    }
}

TEST(SelfDrafter, CoupledOverRankedPositionsGivesTheTextOfPlainDecoding) {
    for (const auto mode : {PartialMode::dynamic, PartialMode::fixed_start}) {
        for (const char* tree : {"4", "3x4:7", "auto"}) {
            Job job = ranked_job(mode, VerifyRule::coupled, Precision::int4, tree);
            job.options.batch = std::string(tree) == "4" ? 1 : 3;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), plain_texts(job)) << tree;
            EXPECT_GT(result.sum.accepted, std::string(tree) == "auto" ? 0 : result.sum.drafted / 20) << tree;
        }
    }
}

TEST(SelfDrafter, CoupledOnTwoRanks) {
    for (const auto copy : {std::optional<Precision>(), std::optional(Precision::int4)}) {
        for (const char* tree : {"4", "auto"}) {  // `auto`: the first rank's measured prices decide for both
            Job job = job_of(VerifyRule::coupled, copy, tree);
            job.ranks = 2;
            EXPECT_EQ(tokens_of(launch(job).items), plain_texts()) << tree;
        }
    }
}

// Its own weights over all of its keys and values are the target, to the bit: every draft is accepted.
TEST(SelfDrafter, TheWholeModelIsRightInEveryDraft) {
    for (const double temperature : {0.0, 0.8}) {
        Job job = job_of(VerifyRule::coupled, {});
        job.options.draft.partial_cache.mode = PartialMode::full;
        job.generation.sampling.temperature = temperature;
        job.generation.max_tokens = 61;  // 1 + 12 steps of 5
        const JobResult result = launch(job);
        EXPECT_EQ(result.sum.accepted, result.sum.drafted) << temperature;
        EXPECT_GT(result.sum.drafted, 0);
    }
}

TEST(SelfDrafter, APromptOfOneToken) {
    Job job = job_of(VerifyRule::coupled, Precision::int8);
    job.items = 1;
    job.prompts[0] = {1};
    const Texts drafted = tokens_of(launch(job).items);
    job.options.draft.method = "ar";
    EXPECT_EQ(tokens_of(launch(job).items), drafted);
}

TEST(SelfDrafter, SamplingRulesGiveOneTextWhateverTheBatchAndTheSplit) {
    for (const char* verify : {"recursive", "rejection"}) {
        Job job = job_of(verify, Precision::int4);
        if (std::string(verify) == "recursive") job.options.draft.tree = "3x3";
        job.options.batch = 1;
        const Texts alone = tokens_of(launch(job).items);
        EXPECT_NE(alone, plain_texts()) << "an independent draw";
        job.options.batch = 8;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << verify;
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), alone) << verify << ", 2 ranks";
    }
}

TEST(SelfDrafter, RankedPositionsFollowFromTheTextAlone) {
    const auto folder = std::filesystem::temp_directory_path() / ("ranked_test." + std::to_string(getpid()));
    std::map<PartialMode::Value, Texts> texts;
    for (const auto mode : {PartialMode::dynamic, PartialMode::fixed_start}) {
        Job job = ranked_job(mode, VerifyRule::recursive, Precision::int8, "2x3");
        job.options.batch = 1;
        texts[mode] = tokens_of(launch(job).items);
        job.options.batch = 3;
        EXPECT_EQ(tokens_of(launch(job).items), texts[mode]) << "another batch";
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), texts[mode]) << "2 ranks";
        job.ranks = 1;
        for (const bool store_kv : {true, false}) {
            job.options.checkpoint.store_kv = store_kv;
            std::filesystem::remove_all(folder);
            const JobResult result = launch_in_parts({job}, folder, 97);
            EXPECT_EQ(tokens_of(result.items), texts[mode]) << "resumed";
            EXPECT_GT(result.sum.resumes, 3);
        }
        job.options.checkpoint = {};
        job.options.kv_memory_bytes = std::int64_t{400} << 10;
        EXPECT_EQ(tokens_of(launch(job).items), texts[mode]) << "short memory";
    }
    EXPECT_NE(texts[PartialMode::dynamic], texts[PartialMode::fixed_start]) << "the selection decides the drafts";
    std::filesystem::remove_all(folder);
}

// Nothing of the draft is stored, and what it reads follows from the text alone.
TEST(SelfDrafter, StoppedAndResumedTheTextGoesOn) {
    const auto folder = std::filesystem::temp_directory_path() / ("self_drafter_test." + std::to_string(getpid()));
    for (const VerifyRule verify : {VerifyRule::coupled, VerifyRule::recursive}) {
        for (const bool store_kv : {true, false}) {
            Job job = job_of(verify, Precision::int8, "2x3");
            const Texts whole = tokens_of(launch(job).items);
            job.options.checkpoint.store_kv = store_kv;
            std::filesystem::remove_all(folder);
            const JobResult result = launch_in_parts({job}, folder, 37);
            EXPECT_EQ(tokens_of(result.items), whole) << verify.name();
            EXPECT_GT(result.sum.resumes, 3);
        }
    }
    std::filesystem::remove_all(folder);
}

TEST(SelfDrafter, ShortMemoryDoesNotChangeTheText) {
    Job job = job_of(VerifyRule::recursive, Precision::int8, "2x3");
    const Texts whole = tokens_of(launch(job).items);
    job.options.kv_memory_bytes = std::int64_t{400} << 10;
    job.options.batch = 8;
    EXPECT_EQ(tokens_of(launch(job).items), whole);
}

// While the copy pauses, n-grams draft alone: here of a given text that repeats itself.
TEST(SelfDrafter, NgramsDraftWithoutTheCopy) {
    Job job = job_of(VerifyRule::coupled, Precision::int4, "auto");
    job.items = 1;
    for (std::int32_t i = 0; i < 60; ++i) job.continuations[0].push_back(11 + i % 5);
    job.options.draft.tree_limits = [] { return TreeLimits{.depth = 0, .width = 0}; };
    EXPECT_GT(launch(job).sum.accepted, 20);
    job.options.draft.ngram_top = 0;
    EXPECT_EQ(launch(job).sum.drafted, 0);
}

// A rerun drafts the texts of the run before, and writes the same.
TEST(SelfDrafter, ACorpusOfItsOwnTextsGainsAndChangesNothing) {
    Job job = job_of(VerifyRule::coupled, Precision::int4, "auto");
    job.options.draft.tree_limits = [] { return TreeLimits{.depth = 0, .width = 0}; };  // n-grams alone
    const JobResult before = launch(job);
    DraftCorpus texts;
    for (const auto& [index, item] : before.items) texts.push_back(item.tokens);
    job.options.draft.corpus = std::make_shared<DraftCorpus>(texts);
    const JobResult again = launch(job);
    EXPECT_EQ(tokens_of(again.items), tokens_of(before.items));
    EXPECT_GT(again.sum.accepted, before.sum.accepted + 50);
}

// Where n-grams are sure enough they begin the tree, and one pass of the copy reads them all: its drafts below are
// those of a text that already goes on so.
TEST(SelfDrafter, SureNgramsTakeThePlaceOfPasses) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    DraftOptions options;
    options.method = "self";
    options.tree = "auto";
    options.partial_cache = {.mode = PartialMode::full};
    options.models = {model.get()};
    const auto drafter = make_drafter({options, model.get()});
    PagePool pool(*device, model->kv_layout(), std::int64_t{1} << 30);
    Tokens text;
    for (std::int32_t i = 0; i < 52; ++i) text.push_back(11 + i % 5);

    const auto propose = [&](const Tokens& context, double sure, std::int64_t depth) {
        KvSequence kv(pool);
        EXPECT_TRUE(kv.reserve(std::ssize(context)));
        std::vector<ForwardRow> rows;
        for (std::size_t i = 0; i + 1 < context.size(); ++i)
            rows.push_back(text_row(context[i], static_cast<std::int64_t>(i)));
        const KvView view = kv.view();
        model->forward({.rows = rows, .sequences = std::span(&view, 1)});
        kv.set_committed(std::ssize(rows));
        const auto sequence = drafter->make_sequence({.id = "", .prompt_tokens = 1});
        sequence->begin(context);
        const SamplingParams greedy{.temperature = 0};
        TokenTree tree;
        tree.reset(context.back());
        Proposal proposal{.sequence = sequence.get(),
                          .context = context,
                          .noise = {1, Noise::Kind::silent},
                          .sampling = &greedy,
                          .kv = &kv,
                          .text_depth = depth,
                          .max_depth = depth,
                          .max_width = 1,
                          .min_probability = 2,  // n-grams extend no tree here
                          .prices = {.sure_ngram = sure},
                          .tree = &tree};
        drafter->propose(std::span(&proposal, 1));
        return std::pair(tree, proposal.model_passes);
    };
    const auto [alone, passes] = propose(text, 1, 3);
    EXPECT_EQ(alone.ngram_chain(), 0);
    EXPECT_EQ(passes, 3);

    const auto [all_sure, none] = propose(text, 0.5, 3);
    EXPECT_EQ(all_sure.token, (Tokens{12, 13, 14, 15}));
    EXPECT_EQ(all_sure.ngram_chain(), 3);
    EXPECT_EQ(none, 0) << "no pass of the copy";

    text.insert(text.begin() + 30, {41, 42, 43});
    text.insert(text.begin() + 20, {41, 42, 43, 44});  // 43 is sure behind 42, and nothing behind 43
    text.insert(text.end(), {41, 42});
    const auto [mixed, few] = propose(text, 0.55, 5);
    const std::int64_t sure = mixed.ngram_chain();
    ASSERT_GT(sure, 0);
    ASSERT_LT(sure, 5);
    EXPECT_EQ(few, 5 - sure);
    EXPECT_EQ(mixed.num_nodes(), 6);
    Tokens longer = text;
    longer.insert(longer.end(), mixed.token.begin() + 1, mixed.token.begin() + 1 + sure);
    const auto [below, calls] = propose(longer, 1, 5 - sure);
    EXPECT_EQ(calls, few);
    EXPECT_TRUE(std::equal(below.token.begin() + 1, below.token.end(), mixed.token.begin() + 1 + sure));
}

TEST(SelfDrafter, PlansCountItsNodes) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    for (const char* tree : {"", "auto", "5", "3x4:7"}) {
        for (const std::int64_t top : {0, 20}) {
            DraftOptions options;
            options.method = "self";
            options.tree = tree;
            options.ngram_top = top;
            options.models = {model.get()};
            EXPECT_EQ(make_drafter({options, model.get()})->max_nodes(), max_tree_nodes(options, options.shape()))
                << tree;
        }
    }
}

// --- the distribution of texts

TEST(SelfDrafter, TextsAreDistributedAsTheTargets) {
    struct Case {
        const char *verify, *tree;
    };
    for (const Case& wanted : {Case{"coupled", "3"}, Case{"rejection", "3"}, Case{"recursive", "3x2"},
                               Case{"recursive", "3x2:4"}, Case{"k-seq", "2"}, Case{"multi-round", "2"}}) {
        Job job = job_of(wanted.verify, Precision::int4, wanted.tree);
        job.options.draft.partial_cache.max_positions = 64;
        expect_distribution_of_target(std::move(job), prompt_of(4), 2000);
    }
    Job ranked = ranked_job(PartialMode::dynamic, "recursive", Precision::int4, "2x2");
    const Tokens prompt = ranked.prompts[2];
    expect_distribution_of_target(std::move(ranked), prompt, 1000);
}

// --- the chances of its drafts

/// Any distribution of a few tokens.
Distribution any_distribution(std::mt19937& random) {
    std::vector<double> row(4);
    for (double& p : row) p = std::pow(std::uniform_real_distribution<>(0.01, 1)(random), 3);
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& p : row) p /= sum;
    return Table::distribution(row);
}

/// Grows a tree whose nodes all have the draft distribution `p`.
TokenTree grown(const Distribution& p, const BeamOptions& beams, const Noise& noise, std::int64_t position,
                double min_probability) {
    TokenTree tree;
    tree.reset(0);
    const auto method = make_rsd_s(beams);
    const auto growth = method->begin(tree, noise, position, beams.depth, TreeLimits::none, {.level = min_probability});
    while (!growth->wanted().empty()) {
        std::vector<Distribution> drafts(growth->wanted().size(), p);
        growth->grow(drafts);
    }
    return tree;
}

// If the target's log-probabilities are the draft's plus Gumbel noise of this scale, the chances are exact: as many
// drafts as they say are the target's draw, within four standard errors.
TEST(SelfDrafter, ChancesAreThoseOfTheTargetsDraw) {
    constexpr double scatter = 0.3;
    std::mt19937 random(3);
    const Noise noise{7, Noise::Kind::shared}, differences{8, Noise::Kind::shared};
    std::array<double, 3> stated{}, variance{}, found{};
    for (std::int64_t position = 0; position < 4000; ++position) {
        const Distribution p = any_distribution(random);
        const TokenTree tree = grown(p, {.width = 3, .depth = 1, .scatter = scatter}, noise, position, 0);
        Distribution q = p;
        for (std::size_t v = 0; v < q.ids.size(); ++v)
            q.log_weights[v] += scatter * static_cast<double>(differences.row(position, 0, 0).gumbel(q.ids[v]));
        const std::int32_t drawn = gumbel_argmax(q, noise.row(position, 0, 0));
        for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
            const auto chance = static_cast<double>(tree.probability[node]);
            stated[node - 1] += chance;
            variance[node - 1] += chance * (1 - chance);
            found[node - 1] += tree.token[node] == drawn ? 1 : 0;
        }
    }
    for (std::size_t i = 0; i < stated.size(); ++i)
        EXPECT_NEAR(found[i], stated[i], 4 * std::sqrt(variance[i])) << "draft " << i;
    EXPECT_GT(stated[0], 2 * stated[1]);
}

TEST(SelfDrafter, AChainEndsWhereTheNextPassDoesNotPay) {
    std::mt19937 random(4);
    const BeamOptions chain{.width = 1, .depth = 5, .scatter = 0.3};
    std::map<std::int32_t, int> lengths;
    for (std::int64_t position = 0; position < 200; ++position) {
        const Distribution p = any_distribution(random);
        const TokenTree tree = grown(p, chain, {7, Noise::Kind::shared}, position, 0.8);
        const std::int32_t last = tree.num_nodes() - 1;
        for (std::int32_t node = 1; node < last; ++node) EXPECT_GE(tree.probability[node], 0.8F);
        if (last < chain.depth) {
            EXPECT_LT(tree.probability[last], 0.8F);
        }
        ++lengths[last];
        EXPECT_EQ(grown(p, chain, {7, Noise::Kind::shared}, position, 0).num_nodes(), 6) << "no price";
        EXPECT_EQ(grown(p, chain, {7, Noise::Kind::own}, position, 0.8).num_nodes(), 6) << "drafts decide the text";
    }
    EXPECT_EQ(lengths.size(), 5U) << "all lengths";
}

// --- the selection

TEST(PartialKv, TheWindowHasTheFirstPageAndTheLast) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    kernels::KvLayout layout{.dtype = kernels::DType::bf16, .num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
    layout.pages_together = device->kv_pages_together(layout);
    PagePool pool(*device, layout, std::int64_t{1} << 30);
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(1000));
    const PartialCache window{.mode = PartialMode::window, .max_positions = 200};  // four pages
    const auto selected = [&](std::int64_t committed, const PartialCache& cache) {
        kv.set_committed(committed);
        const PartialKv partial = PartialKv::select(kv, cache, 0);
        std::vector<std::int64_t> pages;
        for (const std::byte* page : partial.pages)
            pages.push_back(std::find(kv.pages().begin(), kv.pages().end(), page) - kv.pages().begin());
        return std::pair(pages, partial.num_slots);
    };
    using Selected = std::pair<std::vector<std::int64_t>, std::int64_t>;
    EXPECT_EQ(selected(0, window), (Selected{{}, 0}));
    EXPECT_EQ(selected(10, window), (Selected{{0}, 10}));
    EXPECT_EQ(selected(256, window), (Selected{{0, 1, 2, 3}, 256}));
    EXPECT_EQ(selected(257, window), (Selected{{0, 2, 3, 4}, 193}));
    EXPECT_EQ(selected(900, window), (Selected{{0, 12, 13, 14}, 196}));
    EXPECT_EQ(selected(900, {.mode = PartialMode::full}).second, 900);
}

TEST(PartialKv, RanksWhereTheTextHasGrown) {
    const PartialCache dynamic{.mode = PartialMode::dynamic, .max_positions = 2048};
    EXPECT_FALSE(dynamic.selection({2048, 10})) << "all positions";
    const auto places = [](const PartialCache& cache, std::int64_t committed, std::int64_t prompt) {
        const RankedSelection made = cache.selection({committed, prompt}).value();
        return std::array{made.ranked_at, made.ranked_before, made.gathered, made.recent_from};
    };
    using Places = std::array<std::int64_t, 4>;
    EXPECT_EQ(places(dynamic, 2049, 10), (Places{2048, 1984, 1728, 1984}));
    EXPECT_EQ(places(dynamic, 2304, 10), (Places{2048, 1984, 1728, 1984}));
    EXPECT_EQ(places(dynamic, 2305, 10), (Places{2304, 2240, 1728, 2240}));
    const PartialCache once{.mode = PartialMode::fixed_start, .max_positions = 2048};
    EXPECT_EQ(places(once, 5000, 3000), (Places{2998, 2880, 1664, 4672})) << "behind the prompt";
    EXPECT_EQ(places(once, 3001, 3000), (Places{2998, 2880, 1664, 2880}));
    EXPECT_EQ(places(once, 5000, 10)[0], 2048) << "the prompt is shorter than the selection";
}

TEST(PartialKv, NoSelectionReadsMoreThanItsPositions) {
    for (const PartialCache& settings :
         {PartialCache{.mode = PartialMode::dynamic}, PartialCache{.mode = PartialMode::fixed_start},
          PartialCache{.mode = PartialMode::dynamic, .of_prompt = true},
          PartialCache{.mode = PartialMode::fixed_start, .of_prompt = true}}) {
        for (const std::int64_t budget : {0, 20, 300, 600, 1024, 2000, 5000}) {
            PartialCache cache = settings;
            cache.max_positions = budget;
            for (const std::int64_t prompt : {5, 1500, 9000}) {
                std::int64_t most = 0, ranked_at = 0;
                for (std::int64_t tokens = prompt; tokens < 40000; tokens += 1 + tokens / 100) {
                    const TextSize text{tokens, prompt};
                    const auto made = cache.selection(text);
                    most = std::max(most, cache.max_gathered(text));
                    EXPECT_EQ(made.has_value(), cache.positions_of(text) < tokens);
                    if (!made) continue;
                    EXPECT_LT(made->ranked_at, tokens);
                    EXPECT_LE(made->recent_from, tokens - 64);
                    EXPECT_GE(made->ranked_before, made->gathered) << tokens << " of " << budget;
                    EXPECT_LE(made->gathered + tokens - made->recent_from, cache.positions_of(text));
                    EXPECT_GE(made->gathered, 64);
                    EXPECT_LE(made->gathered, most);
                    if (cache.mode == PartialMode::fixed_start && ranked_at > 0) {
                        EXPECT_EQ(made->ranked_at, ranked_at);
                    }
                    ranked_at = made->ranked_at;
                }
            }
        }
    }
}

/// The keys (values) of one layer and head at the positions [0, count) of `pages`.
std::vector<std::vector<std::byte>> tokens_at(const KvSequence& kv, std::span<std::byte* const> pages,
                                              std::int64_t layer, std::int64_t head, bool values, std::int64_t count) {
    std::vector<std::vector<std::byte>> tokens;
    for (std::int64_t i = 0; i < count; ++i) {
        tokens.emplace_back(kv.layout().token_bytes());
        kv.pool().device().kv_export(kv.layout(), pages[static_cast<std::size_t>(i / 64)], layer, head, values, i % 64,
                                     1, tokens.back().data());
    }
    return tokens;
}

// In the first layer the positions are those that the token's own queries rank best; in all layers sinks come first,
// and every slot is a copy of a position, in ascending order.
TEST(KvRanker, GathersWhatTheQueriesRankBest) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 2);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    PagePool pool(*device, model->kv_layout(), std::int64_t{1} << 30);
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(700));
    Tokens text;
    std::vector<ForwardRow> rows;
    for (std::int32_t i = 0; i < 700; ++i) {
        text.push_back((i * i + i / 7) % 90);
        rows.push_back(text_row(text.back(), i));
    }
    const KvView view = kv.view();
    const kernels::KvLayout& layout = model->kv_layout();
    const PartialCache cache{.mode = PartialMode::dynamic, .max_positions = 300};
    const RankedSelection made = cache.selection({690, 1}).value();
    std::vector<std::int32_t> best(static_cast<std::size_t>(layout.num_kv_heads * (made.gathered - 16)));
    model->forward({.rows = rows, .sequences = std::span(&view, 1), .before_attention = [&](const LayerQueries& q) {
                        if (q.layer.index == 0)
                            device->rank_positions(layout, 0, q.of_row(made.ranked_at, layout), q.q_heads,
                                                   {kv.pages(), 16, made.ranked_before, made.gathered - 16},
                                                   best.data());
                    }});
    kv.set_committed(690);

    KvRanker ranker(cache, 70);
    SelectedKv selected;
    const KvRanker::Request request{&selected, &kv, text, 1};
    ranker.select(*model, std::span(&request, 1));
    EXPECT_EQ(ranker.scratch_slots({690, 1}), 128 + made.gathered);
    ASSERT_EQ(selected.kv.num_slots, made.gathered + 690 - made.recent_from);
    EXPECT_EQ(selected.kv.pages.back(), kv.pages()[10]);
    for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
        for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
            for (const bool values : {false, true}) {
                const auto all = tokens_at(kv, kv.pages(), layer, head, values, made.ranked_before);
                const auto gathered = tokens_at(kv, selected.kv.pages, layer, head, values, made.gathered);
                std::int64_t position = -1;
                for (std::int64_t slot = 0; slot < made.gathered; ++slot) {
                    const auto found = std::find(all.begin() + position + 1, all.end(), gathered[slot]);
                    ASSERT_NE(found, all.end()) << "layer " << layer << ", slot " << slot;
                    position = found - all.begin();
                    if (slot < 16) {
                        EXPECT_EQ(position, slot);
                    } else if (layer == 0) {
                        const std::int32_t wanted = best[head * (made.gathered - 16) + slot - 16];
                        EXPECT_EQ(gathered[slot], all[wanted]);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
