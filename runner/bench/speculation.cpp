// `longhaul bench speculation`: speedup of speculative decoding at a given acceptance. An autoregressive run gives the
// text; then its tokens are replayed as drafts, some of them made wrong (engine/draft/replay.cpp). With --draft-shape a
// draft model of random weights drafts too, so that its passes are part of the time (planted_drafts.hpp).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/model/model.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/parallel/group.hpp"
#include "engine/replica/replica.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "runner/bench/bench.hpp"
#include "runner/bench/planted_drafts.hpp"
#include "runner/launch/engine_options.hpp"

namespace longhaul::runner {
namespace {

/// Random weights generate no readable text, so no tokenizer is needed.
class NoTokenizer final : public engine::Tokenizer {
  public:
    explicit NoTokenizer(std::int64_t vocab_size) : vocab_size_(static_cast<std::int32_t>(vocab_size)) {}
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view) const override { return {}; }
    [[nodiscard]] const std::string& token_bytes(std::int32_t) const override { return nothing_; }
    [[nodiscard]] bool is_special(std::int32_t) const override { return false; }
    [[nodiscard]] std::string decode(std::span<const std::int32_t>, bool) const override { return {}; }
    void decode_next(engine::DecodeState&, std::int32_t, std::string&) const override {}
    void decode_rest(engine::DecodeState&, std::string&) const override {}
    [[nodiscard]] std::int32_t vocab_size() const override { return vocab_size_; }
    [[nodiscard]] std::optional<std::int32_t> bos_id() const override { return {}; }
    [[nodiscard]] bool adds_bos() const override { return false; }
    [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }

  private:
    std::int32_t vocab_size_;
    std::string nothing_;
};

struct Decoded {
    std::vector<std::int32_t> tokens;
    double seconds = 0;  ///< decoding only
    double block_efficiency = 0;
    double draft_seconds = 0, target_seconds = 0;  ///< per target call
};

constexpr std::int64_t prompt_tokens = 16, text_tokens = 64;
/// The plain decoding next to the drafts only measures its rate, for which fewer tokens are enough.
constexpr std::int64_t plain_tokens = 16;
/// Enough tokens that the initial cost of `draft-tree = auto` is a small part.
constexpr std::int64_t auto_tokens = 640;

engine::DraftOptions plain_decoding() {
    engine::DraftOptions draft;
    draft.method = "ar";
    return draft;
}

Decoded decode(engine::Model& model, engine::Group& group, const engine::DraftOptions& draft, std::int64_t max_tokens) {
    const NoTokenizer tokenizer(model.config().vocab_size);
    engine::ReplicaOptions options;
    options.batch = 1;
    options.draft = draft;
    options.kv_memory_bytes = std::int64_t{1} << 40;
    Decoded decoded;
    bool handed_out = false;
    engine::ReplicaHooks hooks;
    hooks.next_work = [&]() -> std::optional<engine::WorkItem> {
        if (handed_out) return {};
        handed_out = true;
        engine::WorkItem item{.number = 0, .id = "bench", .sample = 0, .checkpoint_key = "bench", .prompt = {}};
        item.options =
            std::make_shared<const engine::GenerationOptions>(engine::GenerationOptions{.max_tokens = max_tokens});
        for (std::int64_t i = 0; i < prompt_tokens; ++i) {
            item.prompt.push_back(static_cast<std::int32_t>((i * i + 17 * i) % model.config().vocab_size));
        }
        return item;
    };
    hooks.finished = [&](const engine::FinishedItem& item) {
        decoded.tokens = item.tokens;
        decoded.block_efficiency = item.statistics.block_efficiency();
    };
    engine::Replica replica(model, group, tokenizer, options, hooks);
    const engine::ReplicaOutcome outcome = replica.run();
    const double calls = std::max<double>(1, static_cast<double>(outcome.progress.target_calls));
    decoded.seconds = outcome.decode_seconds;
    decoded.draft_seconds = outcome.draft_seconds / calls;
    decoded.target_seconds = outcome.decode_seconds / calls - decoded.draft_seconds;
    return decoded;
}

/// Tokens/s; throws Error unless the tokens are the first ones of `text`.
double checked_rate(const Decoded& got, const std::vector<std::int32_t>& text) {
    const bool same =
        got.tokens.size() <= text.size() && std::equal(got.tokens.begin(), got.tokens.end(), text.begin());
    if (!same) throw Error("bench speculation: expected the text of plain decoding, got another; please report it");
    return static_cast<double>(got.tokens.size()) / got.seconds;
}

/// Results of one tree at one acceptance, one number per round.
struct Measured {
    std::string tree;
    double accept = 0, block_efficiency = 0;
    std::vector<double> rates{}, speedups{};  ///< tokens/s, and speedup over plain decoding in the same round
};

void measure(engine::Model& model, engine::Group& group, const std::vector<std::int32_t>& text, double plain_rate,
             Measured& measured) {
    engine::DraftOptions replay;
    replay.method = "replay";
    replay.tree = measured.tree;
    replay.recorded = [&](const std::string&, std::int64_t) { return text; };
    replay.replay_accept = measured.accept;
    const Decoded with = decode(model, group, replay, text.size());
    measured.block_efficiency = with.block_efficiency;
    measured.rates.push_back(checked_rate(with, text));
    measured.speedups.push_back(measured.rates.back() / plain_rate);
}

void add_line(BenchSetup& setup, const Measured& measured, const std::vector<double>& plain_rates, BenchTable& table) {
    setup.add(table, {{"tree", measured.tree},
                      {"accept", measured.accept},
                      {"block_efficiency", measured.block_efficiency},
                      {"tokens_per_second", bench_median(measured.rates)},
                      {"ar_tokens_per_second", bench_median(plain_rates)},
                      {"speedup", bench_median(measured.speedups)},
                      {"same_text", true}});
}

std::vector<double> acceptances(const BenchSetup& setup) {
    return setup.acceptances.empty() ? std::vector<double>{0.5, 0.7, 0.8, 0.9} : setup.acceptances;
}

/// Each tree separately: `rounds` times plain decoding followed by every acceptance.
void sweep_acceptance(BenchSetup& setup, engine::Model& model, const std::vector<std::int32_t>& text,
                      BenchTable& table) {
    const std::vector<std::string> trees =
        setup.tree.empty() ? std::vector<std::string>{"4", "8", "2x4", "4x4"} : std::vector<std::string>{setup.tree};
    for (const std::string& tree : trees) {
        std::vector<double> plain_rates;
        std::vector<Measured> lines;
        for (const double accept : acceptances(setup)) lines.push_back({.tree = tree, .accept = accept});
        for (std::int64_t round = 0; round < setup.rounds; ++round) {
            plain_rates.push_back(checked_rate(decode(model, *setup.group, plain_decoding(), plain_tokens), text));
            for (Measured& line : lines) measure(model, *setup.group, text, plain_rates.back(), line);
        }
        for (const Measured& line : lines) add_line(setup, line, plain_rates, table);
    }
}

/// All fixed trees and `draft-tree = auto`, alternating in the same rounds: how close auto is to the best of them.
void compare_auto(BenchSetup& setup, engine::Model& model, const std::vector<std::int32_t>& text, BenchTable& table) {
    for (const double accept : {0.0, 0.5, 0.9}) {
        std::vector<double> plain_rates;
        std::vector<Measured> lines;
        for (const char* tree : {"1", "2", "4", "8", "12", "2x2", "2x4", "4x2", "4x4", "auto"})
            lines.push_back({.tree = tree, .accept = accept});
        for (std::int64_t round = 0; round < setup.rounds; ++round) {
            const std::int64_t tokens = text.size();
            plain_rates.push_back(checked_rate(decode(model, *setup.group, plain_decoding(), tokens), text));
            for (Measured& line : lines) measure(model, *setup.group, text, plain_rates.back(), line);
        }
        for (const Measured& line : lines) add_line(setup, line, plain_rates, table);
    }
}

// --- with a draft model

/// A decoder at one acceptance, one number per round.
struct DecoderTimes {
    std::string method, tree;
    double accept = 0, block_efficiency = 0;
    std::vector<double> rates{}, speedups{}, draft_seconds{}, target_seconds{};
};

/// The decoders of the paper on recursive speculative decoding with 6, 10 and 30 drafted tokens per target call, or the
/// one of --draft.
std::vector<DecoderTimes> decoders(const BenchSetup& setup) {
    std::vector<std::pair<std::string, std::string>> pairs{
        {"sd", "6"},  {"spectr", "2x3"}, {"rsd-c", "2,1,1"},     {"rsd-s", "2x3"},
        {"sd", "10"}, {"spectr", "2x5"}, {"rsd-c", "2,1,1,1,1"}, {"rsd-s", "2x5"},
        {"sd", "30"}, {"spectr", "6x5"}, {"rsd-c", "2,2,2,2"},   {"rsd-s", "6x5"}};
    if (!setup.draft.empty()) {
        const std::string& own = engine::find_draft_method(setup.draft).default_tree;
        pairs = {{setup.draft, setup.tree.empty() ? own : setup.tree}};
    }
    std::vector<DecoderTimes> all;
    for (const auto& [method, tree] : pairs) {
        const engine::DraftMethod& row = engine::find_draft_method(method);
        if (row.make_trees == nullptr || engine::chooses_tree(row, tree)) {
            throw UsageError(
                "command line: draft: expected a method over language models with a fixed draft-tree, got " + method +
                " with " + tree);
        }
        static_cast<void>(engine::tree_of(row, tree));
        for (const double accept : acceptances(setup))
            all.push_back({.method = method, .tree = tree, .accept = accept});
    }
    return all;
}

void measure(engine::Model& model, engine::Model& drafter, engine::Group& group, const Decoded& plain,
             double plain_rate, DecoderTimes& times) {
    PlantedText text{.tokens = plain.tokens, .prompt_tokens = prompt_tokens, .accept = times.accept};
    const PlantedMethod planted(engine::find_draft_method(times.method), text);
    engine::DraftOptions draft;
    draft.method = planted.row();
    draft.tree = times.tree;
    draft.models = {&drafter};
    const Decoded with = decode(model, group, draft, std::ssize(plain.tokens));
    times.block_efficiency = with.block_efficiency;
    times.rates.push_back(checked_rate(with, plain.tokens));
    times.speedups.push_back(times.rates.back() / plain_rate);
    times.draft_seconds.push_back(with.draft_seconds);
    times.target_seconds.push_back(with.target_seconds);
}

BenchTable bench_decoders(BenchSetup& setup) {
    std::vector<DecoderTimes> lines = decoders(setup);  // before models are made: the command line may be wrong
    engine::ModelConfig shape = bench_shape(setup.draft_shape);
    shape.vocab_size = setup.shape.vocab_size;
    const double ratio = static_cast<double>(engine::num_active_parameters(shape)) /
                         static_cast<double>(engine::num_active_parameters(setup.shape));
    char about[64];
    std::snprintf(about, sizeof about, "ratio of parameters %.4f", ratio);
    BenchTable table{.title = ", drafts of shape " + setup.draft_shape + " with the target's vocabulary, " + about +
                              ", " + std::to_string(text_tokens) + " tokens after 16, temperature 1 (medians of " +
                              std::to_string(setup.rounds) + " rounds)",
                     .columns = {{"draft", "draft"},
                                 {"tree", "tree    "},
                                 {"accept", "accept", 1, 2},
                                 {"block_efficiency", "tokens per call", 1, 2},
                                 {"draft_seconds", "ms drafts", 1e3, 1},
                                 {"target_seconds", "ms target", 1e3, 1},
                                 {"tokens_per_second", "tokens/s", 1, 2},
                                 {"ar_tokens_per_second", "AR tokens/s", 1, 2},
                                 {"speedup", "speedup", 1, 2}},
                     .lines = {},
                     .details = {}};
    const auto model = bench_model(setup);
    const auto drafter = engine::Model::random(shape, precision_of(setup.settings), *setup.device, *setup.group, 2,
                                               kv_dtype_of(setup.settings));
    const Decoded plain = decode(*model, *setup.group, plain_decoding(), text_tokens);
    std::vector<double> plain_rates;
    for (std::int64_t round = 0; round < setup.rounds; ++round) {
        const Decoded again = decode(*model, *setup.group, plain_decoding(), plain_tokens);
        plain_rates.push_back(checked_rate(again, plain.tokens));
        for (DecoderTimes& line : lines) measure(*model, *drafter, *setup.group, plain, plain_rates.back(), line);
    }
    for (const DecoderTimes& line : lines) {
        setup.add(table, {{"draft", line.method},
                          {"tree", line.tree},
                          {"accept", line.accept},
                          {"ratio", ratio},
                          {"block_efficiency", line.block_efficiency},
                          {"draft_seconds", bench_median(line.draft_seconds)},
                          {"target_seconds", bench_median(line.target_seconds)},
                          {"tokens_per_second", bench_median(line.rates)},
                          {"ar_tokens_per_second", bench_median(plain_rates)},
                          {"speedup", bench_median(line.speedups)},
                          {"same_text", true}});
    }
    return table;
}

}  // namespace

BenchTable bench_speculation(BenchSetup& setup) {
    if (!setup.draft_shape.empty()) return bench_decoders(setup);
    const bool with_auto = setup.tree == "auto";
    const std::int64_t tokens = with_auto ? auto_tokens : text_tokens;
    const auto model = bench_model(setup);
    BenchTable table{.title = ", " + std::to_string(tokens) + " tokens after 16, temperature 1 (medians of " +
                              std::to_string(setup.rounds) + " rounds; each begins with plain decoding)",
                     .columns = {{"tree", "tree"},
                                 {"accept", "accept", 1, 2},
                                 {"block_efficiency", "tokens per call", 1, 2},
                                 {"tokens_per_second", "tokens/s", 1, 1},
                                 {"ar_tokens_per_second", "AR tokens/s", 1, 1},
                                 {"speedup", "speedup", 1, 2},
                                 {"same_text", "same text"}},
                     .lines = {},
                     .details = {}};
    const std::vector<std::int32_t> text = decode(*model, *setup.group, plain_decoding(), tokens).tokens;
    if (with_auto) {
        compare_auto(setup, *model, text, table);
    } else {
        sweep_acceptance(setup, *model, text, table);
    }
    return table;
}

}  // namespace longhaul::runner
