// What speculation gains at a known acceptance: an autoregressive run, then the same text with its tokens as drafts,
// some made wrong (engine/draft/replay.hpp).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "engine/replica.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "runner/bench/bench.hpp"

namespace longhaul::runner {
namespace {

/// Random weights say nothing that could be read.
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
    double seconds = 0;  ///< of decoding alone
    double block_efficiency = 0;
};

constexpr std::int64_t prompt_tokens = 16, text_tokens = 64;
/// Plain decoding beside drafts is asked for its rate alone, which fewer tokens show.
constexpr std::int64_t plain_tokens = 16;

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
        engine::WorkItem item{.index = 0, .id = "bench", .sample = 0, .checkpoint_key = "bench", .prompt = {}};
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
    decoded.seconds = replica.run().decode_seconds;
    return decoded;
}

/// Tokens a second; throws Error unless the tokens are the first of `text`.
double checked_rate(const Decoded& got, const std::vector<std::int32_t>& text) {
    const bool same =
        got.tokens.size() <= text.size() && std::equal(got.tokens.begin(), got.tokens.end(), text.begin());
    if (!same) throw Error("bench speculation: expected the text of plain decoding, got another; please report it");
    return static_cast<double>(got.tokens.size()) / got.seconds;
}

}  // namespace

BenchTable bench_speculation(BenchSetup& setup) {
    const auto model = bench_model(setup);
    BenchTable table{.title = ", 64 tokens after 16, temperature 1 (medians of " + std::to_string(setup.rounds) +
                              " rounds; each begins with plain decoding)",
                     .columns = {{"tree", "tree"},
                                 {"accept", "accept", 1, 2},
                                 {"block_efficiency", "tokens a call", 1, 2},
                                 {"tokens_per_second", "tokens/s", 1, 1},
                                 {"ar_tokens_per_second", "AR tokens/s", 1, 1},
                                 {"speedup", "speedup", 1, 2},
                                 {"same_text", "same text"}},
                     .lines = {},
                     .details = {}};
    engine::DraftOptions plain;
    plain.method = "ar";
    const std::vector<std::int32_t> text = decode(*model, *setup.group, plain, text_tokens).tokens;
    const std::vector<double> accepts{0.5, 0.7, 0.8, 0.9};
    const std::vector<std::string> trees =
        setup.tree.empty() ? std::vector<std::string>{"4", "8", "2x4", "4x4"} : std::vector<std::string>{setup.tree};
    for (const std::string& tree : trees) {
        std::vector<double> plain_rates;
        std::vector<std::vector<double>> rates(accepts.size()), speedups(accepts.size());
        std::vector<double> efficiency(accepts.size());
        for (std::int64_t round = 0; round < setup.rounds; ++round) {
            plain_rates.push_back(checked_rate(decode(*model, *setup.group, plain, plain_tokens), text));
            for (std::size_t a = 0; a < accepts.size(); ++a) {
                engine::DraftOptions replay;
                replay.method = "replay";
                replay.tree = tree;
                replay.recorded = [&](const std::string&, std::int64_t) { return text; };
                replay.replay_accept = accepts[a];
                const Decoded with = decode(*model, *setup.group, replay, text_tokens);
                efficiency[a] = with.block_efficiency;
                rates[a].push_back(checked_rate(with, text));
                speedups[a].push_back(rates[a].back() / plain_rates.back());
            }
        }
        for (std::size_t a = 0; a < accepts.size(); ++a) {
            setup.add(table, {{"tree", tree},
                              {"accept", accepts[a]},
                              {"block_efficiency", efficiency[a]},
                              {"tokens_per_second", bench_median(rates[a])},
                              {"ar_tokens_per_second", bench_median(plain_rates)},
                              {"speedup", bench_median(speedups[a])},
                              {"same_text", true}});
        }
    }
    return table;
}

}  // namespace longhaul::runner
