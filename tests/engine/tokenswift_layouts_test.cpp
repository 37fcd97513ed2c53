// Published TokenSwift checkpoints are whole models with heads in one folder, which is the target and the heads of a
// job. Tiny models in their layouts (tests/data/parity/tokenswift-*) against PyTorch: the positions that are selected
// and the logits of a draft pass over them. Also what other draft methods do with such a folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <string>

#include "engine/draft/drafter.hpp"
#include "engine/draft/heads.hpp"
#include "engine/draft/partial_sequence.hpp"
#include "engine/json.hpp"
#include "tests/engine/model_harness.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

constexpr std::array layout_names{"tokenswift-llama3.1", "tokenswift-yarn", "tokenswift-qwen2.5"};
constexpr std::int64_t page_tokens = kernels::KvLayout::page_tokens;
constexpr std::int64_t num_levels = 4;   // the target's own and 3 heads
constexpr std::int64_t tree_slots = 41;  // the root and a tree of 1,3,3,3

kernels::CpuVariant best_variant() {
    return kernels::available_cpu_variants().back();
}

std::filesystem::path layout_folder(const std::string& name) {
    return std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / name;
}

/// Positions by layer and KV head of the whole model.
using HeadPositions = std::vector<std::vector<std::vector<std::int64_t>>>;

/// golden.json and drafts.json of a folder (tests/data/parity/README.md).
struct DraftGolden {
    struct Draft {
        PartialMode::Value mode;
        std::int64_t num_tokens;    ///< positions before the root
        std::int64_t ranked_at;     ///< -1: nothing is ranked
        std::vector<float> logits;  ///< [levels, vocabulary]
    };

    struct Selection {
        HeadPositions positions;         ///< those read before `ranked_before`, `count` of each layer and head
        std::int64_t ranked_before = 0;  ///< all from here on are read
        std::int64_t count = 0;
    };

    explicit DraftGolden(const std::string& name) : folder(layout_folder(name)) {
        tokens = read_json(folder / "golden.json")["tokens"].get<std::vector<std::int32_t>>();
        const Json json = read_json(folder / "drafts.json");
        max_positions = json["max_positions"].get<std::int64_t>();
        prompt_tokens = json["prompt_tokens"].get<std::int64_t>();
        for (const Json& made : json["selections"]) {
            Selection selection{made["skipped"].get<HeadPositions>(), made["ranked_before"].get<std::int64_t>(),
                                made["selected"].get<std::int64_t>()};
            for (auto& layer : selection.positions) {
                for (auto& head : layer) head = others(head, selection.ranked_before);
            }
            selections[made["ranked_at"].get<std::int64_t>()] = std::move(selection);
        }
        for (const Json& draft : json["drafts"]) {
            std::vector<float> logits;
            for (const Json& row : draft["logits"]) {
                const auto values = row.get<std::vector<float>>();
                logits.insert(logits.end(), values.begin(), values.end());
            }
            drafts.push_back({draft["mode"] == "window" ? PartialMode::window : PartialMode::dynamic,
                              draft["num_tokens"].get<std::int64_t>(), draft.value("ranked_at", std::int64_t{-1}),
                              std::move(logits)});
        }
    }

    /// As the runner sets it for `draft = tokenswift`.
    [[nodiscard]] PartialCache cache(PartialMode::Value mode) const {
        return {.mode = mode, .max_positions = max_positions, .of_prompt = true};
    }

    std::filesystem::path folder;
    std::vector<std::int32_t> tokens;
    std::int64_t max_positions = 0, prompt_tokens = 0;
    std::map<std::int64_t, Selection> selections;  ///< by the position whose queries rank
    std::vector<Draft> drafts;

  private:
    /// The numbers from 0 to `end` that are not in `skipped`.
    static std::vector<std::int64_t> others(const std::vector<std::int64_t>& skipped, std::int64_t end) {
        std::vector<std::int64_t> rest;
        for (std::int64_t position = 0; position < end; ++position) {
            if (!std::binary_search(skipped.begin(), skipped.end(), position)) rest.push_back(position);
        }
        return rest;
    }
};

/// A rank's text in a model and its heads, which grows.
class GrowingText {
  public:
    GrowingText(Model& model, const DraftGolden& golden)
        : model_(model),
          golden_(golden),
          heads_(golden.folder, model),
          pool_(model.device(), model.kv_layout(), testing::plenty),
          kv_(pool_) {
        kv_.reserve(std::ssize(golden.tokens));
    }

    void grow_to(std::int64_t num_tokens) {
        std::vector<ForwardRow> rows;
        for (std::int64_t p = kv_.committed(); p < num_tokens; ++p) rows.push_back(text_row(golden_.tokens.at(p), p));
        const KvView view = kv_.view();
        if (!rows.empty()) static_cast<void>(model_.forward({.rows = rows, .sequences = std::span(&view, 1)}));
        kv_.set_committed(num_tokens);
    }

    /// A proposal for the next token of the text.
    [[nodiscard]] Proposal proposal(SequenceDrafter& sequence, const SamplingParams& sampling, TokenTree& tree) {
        const std::span<const std::int32_t> context(golden_.tokens.data(), kv_.committed() + 1);
        tree.reset(context.back());
        return {.sequence = &sequence,
                .context = context,
                .noise = {0, Noise::Kind::silent},
                .sampling = &sampling,
                .kv = &kv_,
                .text_depth = num_levels,
                .max_depth = num_levels,
                .tree = &tree};
    }

    /// Logits [levels, vocabulary] of a draft pass over what `sequence` has selected.
    std::vector<float> draft_logits(PartialSequence& sequence) {
        kv_.reserve_scratch(tree_slots);
        TokenTree tree;
        const SamplingParams sampling;
        const Proposal root = proposal(sequence, sampling, tree);
        const ForwardRow row = sequence.draft_row(root, 0, 0);
        const KvView view = sequence.view(root);
        const std::vector<Tap> taps{{.at = Tap::At::last_hidden, .rows = {0}},
                                    {.at = Tap::At::normed_hidden, .rows = {0}}};
        const PassResult pass =
            model_.forward({.rows = std::span(&row, 1), .sequences = std::span(&view, 1), .taps = taps});
        static const Norm none;
        Logits logits = model_.logits(chained_heads(model_, heads_, pass.taps[0], pass.taps[1], num_levels - 1), &none);
        const std::span<const float> all = logits.all();
        return {all.begin(), all.end()};
    }

    /// HeadPositions of the first `count` slots of `selected`, of this rank's KV heads: found by their keys and values.
    [[nodiscard]] HeadPositions positions_in(const PartialKv& selected, std::int64_t count) const {
        HeadPositions found;
        for (std::int64_t layer = 0; layer < model_.kv_layout().num_layers; ++layer) {
            auto& heads = found.emplace_back();
            for (std::int64_t head = 0; head < model_.kv_layout().num_kv_heads; ++head) {
                std::map<std::string, std::int64_t> places;
                const std::vector<std::string> text = slots_of(kv_.pages(), layer, head, kv_.committed());
                for (const std::string& bytes : text) places.emplace(bytes, std::ssize(places));
                EXPECT_EQ(places.size(), text.size()) << "two positions with the same key and value";
                auto& positions = heads.emplace_back();
                for (const std::string& bytes : slots_of(selected.pages, layer, head, count)) {
                    const auto place = places.find(bytes);
                    positions.push_back(place == places.end() ? -1 : place->second);
                }
            }
        }
        return found;
    }

    /// Replaces what is in the first slots of `selected` by the keys and values at these positions.
    void gather(const PartialKv& selected, const HeadPositions& positions) {
        const kernels::KvLayout& layout = model_.kv_layout();
        kernels::Device& device = model_.device();
        for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
            std::vector<std::int32_t> places;
            for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
                const auto& of_head = positions[layer].at(model_.first_kv_head() + head);
                places.insert(places.end(), of_head.begin(), of_head.end());
            }
            const kernels::Buffer there(device, places.size() * sizeof(std::int32_t));
            device.upload(there.data(), places.data(), there.num_bytes());
            device.gather_positions(layout, layer, kv_.pages(), there.as<std::int32_t>(),
                                    std::ssize(positions[layer][0]), selected.pages, 0);
        }
    }

    [[nodiscard]] KvSequence& kv() { return kv_; }
    [[nodiscard]] const DraftHeads& heads() const { return heads_; }

  private:
    /// Keys and values of the first `count` slots of one layer and head, as bytes.
    [[nodiscard]] std::vector<std::string> slots_of(std::span<std::byte* const> pages, std::int64_t layer,
                                                    std::int64_t head, std::int64_t count) const {
        const kernels::KvLayout& layout = model_.kv_layout();
        std::vector<std::string> slots(static_cast<std::size_t>(count));
        std::string bytes(layout.token_bytes(), '\0');
        for (std::int64_t slot = 0; slot < count; ++slot) {
            for (const bool values : {false, true}) {
                model_.device().kv_export(layout, pages[slot / page_tokens], layer, head, values, slot % page_tokens, 1,
                                          reinterpret_cast<std::byte*>(bytes.data()));
                slots[slot] += bytes;
            }
        }
        return slots;
    }

    Model& model_;
    const DraftGolden& golden_;
    DraftHeads heads_;
    PagePool pool_;
    KvSequence kv_;
};

/// Checks that at least the share `min_common` of the selected positions is that of the golden; 1: equal.
void expect_selected(const HeadPositions& found, const HeadPositions& wanted, std::int64_t first_kv_head,
                     double min_common) {
    for (std::size_t layer = 0; layer < found.size(); ++layer) {
        for (std::size_t head = 0; head < found[layer].size(); ++head) {
            const std::vector<std::int64_t>& got = found[layer][head];
            const std::vector<std::int64_t>& expected = wanted.at(layer).at(first_kv_head + head);
            ASSERT_EQ(got.size(), expected.size());
            std::vector<std::int64_t> common;
            std::set_intersection(got.begin(), got.end(), expected.begin(), expected.end(), std::back_inserter(common));
            const double share = static_cast<double>(common.size()) / static_cast<double>(expected.size());
            EXPECT_GE(share, min_common) << "layer " << layer << ", KV head " << first_kv_head + head;
        }
    }
}

/// The logits of all drafts of a golden on this rank, in one text that grows. Checks which positions they read; where
/// rounding may select a few others, drafts read those of the golden.
std::vector<std::vector<float>> run_drafts(Model& model, const DraftGolden& golden, double min_common = 1) {
    GrowingText text(model, golden);
    std::map<PartialMode::Value, PartialSequence> sequences;
    std::vector<std::vector<float>> logits;
    for (const DraftGolden::Draft& draft : golden.drafts) {
        SCOPED_TRACE(draft.num_tokens);
        text.grow_to(draft.num_tokens);
        PartialSequence& sequence = sequences.try_emplace(draft.mode, std::nullopt, golden.prompt_tokens).first->second;
        KvRanker ranker(golden.cache(draft.mode), tree_slots);
        const KvRanker::Request request{&sequence.selected, &text.kv(), golden.tokens, golden.prompt_tokens};
        ranker.select(model, std::span(&request, 1));
        EXPECT_EQ(sequence.selected.ranked_at, draft.ranked_at);
        if (draft.ranked_at >= 0) {
            const auto& [positions, ranked_before, count] = golden.selections.at(draft.ranked_at);
            EXPECT_EQ(sequence.selected.kv.num_slots, count + draft.num_tokens - ranked_before);
            expect_selected(text.positions_in(sequence.selected.kv, count), positions, model.first_kv_head(),
                            min_common);
            if (min_common < 1) text.gather(sequence.selected.kv, positions);
        }
        logits.push_back(text.draft_logits(sequence));
    }
    return logits;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
    EXPECT_EQ(got.size(), expected.size());
    const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
    double greatest = 0;
    for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
        const double error = std::abs(double{got[i]} - double{expected[i]});
        if (!(error <= greatest)) greatest = error;  // NaN counts as an error
    }
    return greatest / (double{*high} - double{*low});
}

class TokenSwiftLayout : public ::testing::TestWithParam<const char*> {
  protected:
    const DraftGolden golden{GetParam()};

    std::vector<std::vector<float>> run(Precision precision, kernels::CpuVariant variant, double min_common = 1) const {
        const auto device = kernels::make_cpu_device(variant, 1);
        const auto group = make_local_group();
        const auto model = Model::load(golden.folder, precision, *device, *group);
        return run_drafts(*model, golden, min_common);
    }
    void expect_close(const std::vector<std::vector<float>>& drafts, double bound) {
        ASSERT_EQ(drafts.size(), golden.drafts.size());
        for (std::size_t i = 0; i < drafts.size(); ++i) {
            const double error = relative_error(drafts[i], golden.drafts[i].logits);
            RecordProperty("relative_error_" + std::to_string(i), std::to_string(error));
            EXPECT_LT(error, bound) << "behind " << golden.drafts[i].num_tokens;
        }
    }
};

// The positions that PyTorch ranks best, and logits within the bound of parity_test.cpp; the same bits with all
// kernels.
TEST_P(TokenSwiftLayout, Fp32DraftsAreThoseOfPyTorch) {
    const auto drafts = run(Precision::fp32, kernels::CpuVariant::reference);
    expect_close(drafts, 1e-4);
    for (const kernels::CpuVariant variant : kernels::available_cpu_variants())
        EXPECT_EQ(run(Precision::fp32, variant), drafts) << kernels::variant_name(variant);
}

// Rounding to bf16 swaps up to 2 of 128 positions.
TEST_P(TokenSwiftLayout, Bf16DraftsStayClose) {
    expect_close(run(Precision::bf16, best_variant(), 0.97), 2e-2);
}

/// The tokens with the `count` greatest logits, best first.
std::vector<std::int32_t> best_tokens(std::span<const float> logits, std::int64_t count) {
    std::vector<std::int32_t> tokens(logits.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    std::sort(tokens.begin(), tokens.end(), [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
    tokens.resize(static_cast<std::size_t>(count));
    return tokens;
}

// The draft method itself: the best tokens of each row of the golden, as a full tree.
TEST_P(TokenSwiftLayout, TreesHaveTheBestTokensOfEachRow) {
    const auto device = kernels::make_cpu_device(best_variant(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(golden.folder, Precision::fp32, *device, *group);
    GrowingText text(*model, golden);
    const SamplingParams sampling;
    for (const DraftGolden::Draft& draft : golden.drafts) {
        text.grow_to(draft.num_tokens);
        DraftOptions options;
        options.method = "tokenswift";
        options.tree = "1,3,3,3";
        options.ngram_top = 0;
        options.models = {model.get()};
        options.partial_cache = golden.cache(draft.mode);
        options.heads = &text.heads();
        const auto drafter = make_drafter({options, model.get()});
        const auto sequence = drafter->make_sequence({.id = "", .prompt_tokens = golden.prompt_tokens});
        TokenTree tree;
        Proposal proposal = text.proposal(*sequence, sampling, tree);
        drafter->propose(std::span(&proposal, 1));
        ASSERT_EQ(tree.num_nodes(), 41);
        std::vector<std::vector<std::int32_t>> levels;
        for (std::int64_t level = 0; level < num_levels; ++level) {
            const std::int64_t vocabulary = model->config().vocab_size;
            levels.push_back(
                best_tokens(std::span(draft.logits).subspan(level * vocabulary, vocabulary), level == 0 ? 1 : 3));
        }
        for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
            const std::int32_t first_child = tree.find_child(tree.parent[node], levels[tree.depth[node] - 1].front());
            ASSERT_GE(first_child, 0);
            EXPECT_EQ(tree.token[node], levels[tree.depth[node] - 1].at(node - first_child)) << "node " << node;
        }
    }
}

// The folder as the model of any job: other methods do not see the heads, or use them in their own way. Texts long
// enough for a new selection.
TEST_P(TokenSwiftLayout, EveryMethodWritesTheTextOfPlainDecoding) {
    testing::Job job{testing::base_options()};
    job.model = golden.folder;
    job.items = 1;
    job.prompts[0].assign(golden.tokens.begin(), golden.tokens.end() - 60);
    job.generation.max_tokens = 70;
    job.options.draft.partial_cache = golden.cache(PartialMode::dynamic);
    job.options.draft.method = "ar";
    const auto plain = testing::tokens_of(testing::launch(job).items);
    ASSERT_EQ(plain.at(0).size(), 70U) << "no end of text";
    const auto expect_plain = [&](const testing::Job& drafting) {
        const testing::JobResult result = testing::launch(drafting);
        EXPECT_EQ(testing::tokens_of(result.items), plain) << drafting.options.draft.method->name;
        EXPECT_GT(result.sum.accepted, 0) << drafting.options.draft.method->name;
    };
    job.options.draft.method = "self";
    job.options.draft.tree = "3";
    job.copy = Precision::int8;
    expect_plain(job);
    job.copy = {};
    job.heads = golden.folder;
    job.options.draft.tree = "1,3,3,3";
    job.options.draft.method = "tokenswift";
    for (const auto mode : {PartialMode::window, PartialMode::dynamic, PartialMode::fixed_start, PartialMode::full}) {
        job.options.draft.partial_cache.mode = mode;
        expect_plain(job);
    }
    job.options.draft.tree = "3,3,3";
    job.options.draft.method = "medusa";
    expect_plain(job);
}

INSTANTIATE_TEST_SUITE_P(Published, TokenSwiftLayout, ::testing::ValuesIn(layout_names), [](const auto& info) {
    std::string name = info.param;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return name;
});

// Each rank selects for its own KV heads.
TEST(TokenSwiftLayouts, RanksSelectForTheirOwnHeads) {
    for (const auto& [name, ranks] : {std::pair("tokenswift-llama3.1", 2), {"tokenswift-yarn", 4}}) {
        const DraftGolden golden(name);
        const auto make_device = [] { return kernels::make_cpu_device(best_variant(), 1); };
        std::vector<std::vector<float>> alone;
        testing::on_each_rank(golden.folder, Precision::fp32, make_device, 1,
                              [&](Model& model, int) { alone = run_drafts(model, golden); });
        testing::on_each_rank(golden.folder, Precision::fp32, make_device, ranks, [&](Model& model, int rank) {
            EXPECT_EQ(run_drafts(model, golden), alone) << name << ", rank " << rank;
        });
    }
}

}  // namespace
}  // namespace longhaul::engine
