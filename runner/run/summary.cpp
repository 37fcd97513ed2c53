#include "runner/run/summary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "runner/host/message_text.hpp"

namespace longhaul::runner {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// Heads and layers that were trained for another model of the same size cannot be told from the right ones, but for
/// what they draft.
std::string doubt_about_drafts(const Settings& settings, const JobOutcome& outcome) {
    constexpr std::int64_t enough = 200;
    constexpr double nearly_none = 0.005;
    const bool trained =
        settings.draft->part == engine::DraftPart::heads || settings.draft->part == engine::DraftPart::layer;
    // Of a wide tree few nodes can be accepted; with draft-tree = auto few target calls have drafts.
    const std::int64_t tried = std::min(outcome.drafted, outcome.target_calls);
    if (!trained || outcome.drafted < enough || ratio(outcome.accepted, tried) > nearly_none) return "";
    return settings.draft->own_layer ? ", nearly none: was its layer trained with this model? draft = self does without"
                                     : ", nearly none: were they trained for this model?";
}

/// A mean over questions, with its standard error.
struct AnswerMean {
    double value = 0, error = 0;

    /// Of zeros and ones.
    AnswerMean(std::int64_t part, std::int64_t questions)
        : AnswerMean(static_cast<double>(part), static_cast<double>(part), questions) {}
    AnswerMean(double sum, double sum_of_squares, std::int64_t questions) {
        const auto count = static_cast<double>(questions);
        if (questions > 0) value = sum / count;
        const double variance = questions > 0 ? std::max(sum_of_squares / count - value * value, 0.0) : 0;
        if (questions > 1) error = std::sqrt(variance / (count - 1));
    }
};

AnswerMean mc2_of(const AnswerCounts& answers) {
    return {answers.mc2, answers.squares_of_mc2, answers.with_mc2};
}

void put_answers(nlohmann::ordered_json& json, const AnswerCounts& answers) {
    const AnswerMean acc(answers.right, answers.questions), norm(answers.right_norm, answers.with_norm);
    json[answers.with_norm > 0 ? "questions" : "continuations"] = answers.questions;
    json["acc"] = acc.value;
    json["acc_stderr"] = acc.error;
    if (answers.with_norm == 0) return;
    json["acc_norm"] = norm.value;
    json["acc_norm_stderr"] = norm.error;
    if (answers.with_mc2 == 0) return;
    json["mc2"] = mc2_of(answers).value;
    json["mc2_stderr"] = mc2_of(answers).error;
}

std::string answers_text(const AnswerCounts& answers, std::int64_t items) {
    const AnswerMean acc(answers.right, answers.questions), norm(answers.right_norm, answers.with_norm),
        mc2 = mc2_of(answers);
    const std::string of_all = answers.questions < items ? grouped(answers.questions) + " of " : "";
    const std::string share = formatted("%.2f %% ± %.2f (acc), ", 100 * acc.value, 100 * acc.error);
    if (answers.with_norm == 0)
        return share + "of " + of_all +
               counted(of_all.empty() ? answers.questions : items, "continuation", "continuations") +
               ": all tokens are the most probable ones";
    return share + formatted("%.2f %% ± %.2f per character (acc_norm), ", 100 * norm.value, 100 * norm.error) +
           (answers.with_mc2 > 0 ? formatted("%.2f %% ± %.2f (mc2), ", 100 * mc2.value, 100 * mc2.error) : "") + "of " +
           of_all + counted(of_all.empty() ? answers.questions : items, "question", "questions");
}

}  // namespace

std::optional<double> Summary::speedup() const {
    if (!baseline || baseline->speed.tokens_per_second() <= 0) return std::nullopt;
    return outcome.speed.tokens_per_second() / baseline->speed.tokens_per_second();
}

std::optional<double> Summary::mbsu() const {
    if (!settings.draft->drafts() || settings.mode != Mode::generate || outcome.memory_bound_calls <= 0)
        return std::nullopt;
    return static_cast<double>(outcome.total_tokens) / outcome.memory_bound_calls;
}

std::optional<double> Summary::perplexity() const {
    if (outcome.scored_tokens == 0) return std::nullopt;
    return std::exp(outcome.nll / static_cast<double>(outcome.scored_tokens));
}

std::optional<double> Summary::bits_per_byte() const {
    if (outcome.scored_bytes == 0) return std::nullopt;
    return outcome.nll / (std::numbers::ln2 * static_cast<double>(outcome.scored_bytes));
}

std::optional<double> Summary::token_accuracy() const {
    if (outcome.judged_tokens == 0) return std::nullopt;
    return ratio(outcome.greedy_tokens, outcome.judged_tokens);
}

nlohmann::ordered_json Summary::to_json() const {
    nlohmann::ordered_json json;
    json["items"] = outcome.items;
    json["done"] = outcome.done;
    json["failed"] = outcome.failed;
    if (!settings.reasoning_end.empty() || outcome.without_answer > 0) json["without_answer"] = outcome.without_answer;
    json["tokens"] = outcome.total_tokens;
    if (shards > 0) {
        json["shards"] = shards;
    } else {
        json["launch"] = {{"tokens", outcome.tokens},
                          {"seconds", outcome.seconds},
                          {"ranks", ranks},
                          {"replicas", replicas},
                          {"threads", threads},
                          {"kernels", kernels},
                          {"checkpoint_rounds", outcome.rounds}};
        if (std::any_of(devices.begin(), devices.end(), [](const std::string& device) { return !device.empty(); }))
            json["launch"]["devices"] = devices;
    }
    if (device_kinds.size() > 1) json["device_kinds"] = device_kinds;
    json["prompt_tokens"] = outcome.prompt_tokens;
    json["cached_tokens"] = outcome.cached_tokens;
    json["draft"] = settings.draft->name;
    json["target_calls"] = outcome.target_calls;
    json["block_efficiency"] = ratio(outcome.total_tokens, outcome.target_calls);
    if (mbsu()) json["mbsu"] = *mbsu();
    json["drafted"] = outcome.drafted;
    json["accepted"] = outcome.accepted;
    json["acceptance"] = ratio(outcome.accepted, outcome.drafted);
    json["branched_trees"] = outcome.branched_trees;
    json["resumed_items"] = outcome.resumed_items;
    json["recomputed_tokens"] = outcome.recomputed_tokens;
    json["recomputed_rows"] = outcome.recomputed_rows;
    json["checkpoint_stall_seconds"] = outcome.checkpoint_stall_seconds;
    json["working_seconds"] = outcome.working_seconds;
    json["decode_tokens_per_second"] = outcome.speed.tokens_per_second();
    if (perplexity()) {
        json["nll"] = outcome.nll;
        json["scored_tokens"] = outcome.scored_tokens;
        json["perplexity"] = *perplexity();
    }
    if (token_accuracy()) {
        json["token_accuracy"] = *token_accuracy();
        json["greedy_tokens"] = outcome.greedy_tokens;
        json["judged_tokens"] = outcome.judged_tokens;
    }
    if (bits_per_byte()) json["bits_per_byte"] = *bits_per_byte();
    if (outcome.answers.questions > 0) put_answers(json, outcome.answers);
    for (const auto& [group, answers] : outcome.groups) put_answers(json["groups"][group], answers);
    if (baseline) {
        json["baseline"] = {{"decode_tokens_per_second", baseline->speed.tokens_per_second()}};
        if (baseline->identical) json["baseline"]["identical"] = *baseline->identical;
        if (speedup()) json["speedup"] = *speedup();
    }
    json["results"] = results;
    if (!results_hash.empty()) json["results_xxh3"] = results_hash;
    return json;
}

std::string Summary::to_table() const {
    std::vector<std::pair<std::string, std::string>> rows;
    const double rate = outcome.seconds > 0 ? static_cast<double>(outcome.tokens) / outcome.seconds : 0;
    rows.emplace_back("items", grouped(outcome.done) + " of " + grouped(outcome.items) + " done" +
                                   (outcome.failed > 0 ? ", " + grouped(outcome.failed) + " of them failed" : ""));
    if (outcome.without_answer > 0)
        rows.emplace_back("without answer",
                          counted(outcome.without_answer, "item", "items") + ": the reasoning has no end");
    if (!outcome.first_failure.empty()) rows.emplace_back("first failure", outcome.first_failure);
    rows.emplace_back("tokens", grouped(outcome.total_tokens) + " in finished items");
    if (shards > 0) {
        rows.emplace_back("shards", grouped(shards) + ", all done");
    } else {
        rows.emplace_back("launch " + std::to_string(epoch),
                          counted(outcome.tokens, "token", "tokens") + " in " +
                              formatted("%.1f s, %.1f tokens/s, ", outcome.seconds, rate) +
                              counted(replicas, "replica", "replicas") + ", " + counted(ranks, "rank", "ranks") + ", " +
                              counted(threads, "thread", "threads") + " per rank, " + kernels + " kernels");
    }
    if (outcome.cached_tokens > 0)
        rows.emplace_back("prefix caching", grouped(outcome.cached_tokens) + " of " +
                                                counted(outcome.prompt_tokens, "prompt token", "prompt tokens") +
                                                " copied from items that begin alike");
    if (perplexity()) {
        rows.emplace_back("perplexity",
                          formatted("%.4f over ", *perplexity()) +
                              counted(outcome.scored_tokens, "scored token", "scored tokens") +
                              (bits_per_byte() ? formatted(", %.4f bits per byte", *bits_per_byte()) : "") +
                              (token_accuracy() ? formatted(", token accuracy %.2f %%", 100 * *token_accuracy()) : ""));
    }
    if (outcome.answers.questions > 0) rows.emplace_back("accuracy", answers_text(outcome.answers, outcome.items));
    if (settings.mode == Mode::generate && outcome.target_calls > 0) {  // 0 if it was stopped before the first call
        rows.emplace_back("block efficiency",
                          formatted("%.2f tokens per target call", ratio(outcome.total_tokens, outcome.target_calls)) +
                              (mbsu() ? formatted(", memory-bound speedup (MBSU) %.2f", *mbsu()) : ""));
        if (outcome.speed.seconds > 0)
            rows.emplace_back("token rate", formatted("%.1f tokens/s per replica, in decode-only passes",
                                                      outcome.speed.tokens_per_second()));
    }
    if (outcome.drafted > 0) {
        rows.emplace_back("acceptance", formatted("%.1f %% of ", 100 * ratio(outcome.accepted, outcome.drafted)) +
                                            grouped(outcome.drafted) + " drafted tokens (" + settings.draft->name +
                                            ")" + doubt_about_drafts(settings, outcome));
    }
    if (speedup()) {
        rows.emplace_back("speedup", formatted("%.2f over autoregressive decoding's %.1f tokens/s per replica",
                                               *speedup(), baseline->speed.tokens_per_second()));
        rows.emplace_back("same text", !baseline->identical ? "not comparable: verify = " + settings.verify.name() +
                                                                  " samples differently"
                                       : *baseline->identical ? "yes, byte for byte"
                                                              : "NO: the two runs differ");
    }
    if (shards == 0)
        rows.emplace_back("checkpoints",
                          counted(outcome.rounds, "round", "rounds") + " written in launch " + std::to_string(epoch));
    rows.emplace_back("resumed", counted(outcome.resumed_items, "item", "items") + ", " +
                                     counted(outcome.recomputed_tokens, "token", "tokens") + " computed again");
    rows.emplace_back("results", results);
    if (settings.task == "openai-batch" && outcome.all_done)
        rows.emplace_back("answers", "batch_output.jsonl beside it, as OpenAI's batch API writes them");
    std::size_t width = 0;
    for (const auto& row : rows) width = std::max(width, row.first.size());
    std::string table;
    for (const auto& [name, value] : rows) {
        table.append("  ").append(name).append(width - name.size() + 2, ' ').append(value).append("\n");
    }
    return table;
}

}  // namespace longhaul::runner
