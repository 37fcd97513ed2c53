// `longhaul check`: checks whether a job can run, without running it. Needs no MPI and writes nothing.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/model_plan.hpp"
#include "kernels/ceilings.hpp"
#include "kernels/device.hpp"
#include "runner/commands/commands.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/job/value_text.hpp"
#include "runner/launch/draft_models.hpp"
#include "runner/launch/job_check.hpp"

namespace longhaul::runner {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t max_shown = 20;  ///< failing items listed on a terminal; the same limit for faults

std::int64_t runnable(const ItemSurvey& items) {
    return items.inputs - items.failed;
}

std::int64_t batch_size(const JobReport& report) {
    return std::min(report.settings.batch, report.items->positions.size());
}

/// Seconds that reading takes if plain decoding of all items brings them to their last token; 0: unknown.
double total_seconds(const JobReport& report, double bytes_per_second) {
    return bytes_per_second > 0 ? report.read_bytes / bytes_per_second : 0;
}

// Output as a table

using Rows = std::vector<std::pair<std::string, std::string>>;

void add_model(Rows& rows, const JobReport& report) {
    const ModelFacts& model = *report.model;
    const std::string active =
        model.config.has_experts() ? " (" + grouped(engine::num_active_parameters(model.config)) + " for a token)" : "";
    rows.emplace_back("model", model.config.model_type + ", " + grouped(engine::num_parameters(model.config)) +
                                   " parameters" + active + ", context " + grouped(model.config.max_positions) + "; " +
                                   counted(model.num_tensors, "tensor", "tensors") + " of " +
                                   size_text(model.tensor_bytes) + "; tokenizer of " + grouped(model.tokenizer_size));
    if (!model.adapter.empty()) rows.emplace_back("adapter", model.adapter);
}

void add_items(Rows& rows, const JobReport& report) {
    const ItemSurvey& items = *report.items;
    const Settings& settings = report.settings;
    rows.emplace_back("items", counted(items.inputs, "prompt", "prompts") +
                                   (settings.samples > 1 ? " x " + grouped(settings.samples) + " samples" : "") +
                                   (items.failed > 0 ? ", " + grouped(items.failed) + " would fail" : ""));
    if (runnable(items) == 0) return;
    rows.emplace_back("prompt tokens", "median " + grouped(items.prompt_tokens.quantile(0.5)) + ", 90 % at most " +
                                           grouped(items.prompt_tokens.quantile(0.9)) + ", longest " +
                                           grouped(items.prompt_tokens.largest()) + " (" +
                                           engine::printable(report.longest_id) + "), " +
                                           grouped(items.prompt_tokens.sum()) + " in all");
    rows.emplace_back("new tokens", "at most " + grouped(items.new_tokens));
}

/// Both ends of a text on one line.
std::string ends_of(const std::string& text) {
    constexpr std::size_t shown = 60;
    const auto quoted = [](const std::string& part) {
        const bool controls = std::any_of(part.begin(), part.end(), [](unsigned char c) {
            return (c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7f;
        });
        return is_text(part) && !controls ? quote_text(part) : '"' + engine::printable(part, 8 * shown) + '"';
    };
    if (text.size() <= 2 * shown + 20) return quoted(text);
    std::size_t head = shown, tail = text.size() - shown;
    const auto inside = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
    while (inside(head)) --head;  // not within a character
    while (tail < text.size() && inside(tail)) ++tail;
    return quoted(text.substr(0, head)) + " … " + quoted(text.substr(tail));
}

std::string ends_of(const std::vector<std::int32_t>& tokens) {
    constexpr std::size_t shown = 6;
    const std::size_t size = tokens.size();
    std::string text;
    for (std::size_t i = 0; i < size; ++i) {
        if (i == shown && size > 2 * shown) {
            text += " …";
            i = size - shown;
        }
        text += (i == 0 ? "" : " ") + std::to_string(tokens[i]);
    }
    return text;
}

void add_first_prompt(Rows& rows, const FirstPrompt& prompt) {
    rows.emplace_back("first prompt", engine::printable(prompt.id) + ": " + ends_of(prompt.text));
    rows.emplace_back("its tokens",
                      counted(std::ssize(prompt.tokens), "token", "tokens") + ": " + ends_of(prompt.tokens));
    constexpr std::size_t shown = 6;
    std::string choices;
    for (const FirstChoice& choice : std::span(prompt.choices).first(std::min(prompt.choices.size(), shown)))
        choices += (choices.empty() ? "" : ", ") + ends_of(choice.text) + " (" +
                   counted(choice.num_tokens, "token", "tokens") + (choice.is_right ? ", right)" : ")");
    if (!choices.empty()) rows.emplace_back("its choices", choices + (prompt.choices.size() > shown ? ", …" : ""));
}

/// Memory of a rank with one item, and time of a token and of the job that only reading limits.
void add_lengths(Rows& rows, const JobReport& report, double bytes_per_second) {
    for (const LengthCost& cost : report.lengths) {
        std::string text = size_text(cost.kv_bytes) + " of keys and values";
        if (report.memory) text += ", " + size_text(report.memory->weights + cost.kv_bytes) + " with the weights";
        if (bytes_per_second > 0) {
            char time[64];
            std::snprintf(time, sizeof time, "; at least %.3g ms per token without drafts",
                          1e3 * static_cast<double>(cost.read_bytes) / bytes_per_second);
            text += time;
        }
        rows.emplace_back("at " + counted(cost.positions, "token", "tokens"), text);
    }
    if (const double seconds = total_seconds(report, bytes_per_second); seconds > 0) {
        const Counts& positions = report.items->positions;
        char shown[32];
        std::snprintf(shown, sizeof shown, "%.2g s", seconds);
        rows.emplace_back("time", "at least about " + (seconds < 10 ? shown : duration_text(seconds)) + " for " +
                                      counted(positions.size(), "item", "items") + " of up to " +
                                      counted(positions.largest(), "token", "tokens") + ", " +
                                      grouped(batch_size(report)) +
                                      " at a time in one replica, without drafts, if none ends before max-tokens");
    }
    if (bytes_per_second > 0) {
        char rate[64];
        std::snprintf(rate, sizeof rate, "%.1f GB/s, measured now", bytes_per_second / 1e9);
        rows.emplace_back("reading memory", rate);
    }
}

void add_needs(Rows& rows, const JobReport& report) {
    if (report.memory) {
        const MemoryNeed& need = *report.memory;
        const DraftFolders folders = draft_folders(report.settings);
        const char* drafts =
            folders.target_copy || !folders.models.empty() ? " of weights (draft models and all), " : " of weights, ";
        rows.emplace_back(
            "memory per rank",
            size_text(need.weights) + drafts + size_text(need.batch_kv) + " of keys and values for the " +
                counted(batch_size(report), "longest item", "longest items") +
                (need.available > 0 ? "; " + need.host + " has " + size_text(need.available) + " free" : "") +
                (need.host_memory > 0 ? ", host-memory adds " + size_text(need.host_memory) : ""));
    }
    if (report.disk) {
        rows.emplace_back("disk", "at most about " + size_text(report.disk->checkpoints) +
                                      " of checkpoints per replica and " + size_text(report.disk->results) +
                                      " of results; " + size_text(report.disk->available) + " free");
    }
}

std::string table_of(const JobReport& report, double bytes_per_second) {
    Rows rows;
    if (report.model) add_model(rows, report);
    if (report.items) add_items(rows, report);
    if (report.first_prompt) add_first_prompt(rows, *report.first_prompt);
    if (!report.settings.output.empty()) {
        rows.emplace_back("output", report.settings.output.string() +
                                        (report.is_begun ? ", a run of this job with " +
                                                               counted(report.items_before, "result", "results")
                                                         : ""));
    }
    add_needs(rows, report);
    add_lengths(rows, report, bytes_per_second);
    if (const std::string faster = faster_kernels(report.settings, kernels::has_bf16_tiles());
        report.model && !faster.empty())
        rows.emplace_back("kernels", faster);
    std::size_t width = 0;
    for (const auto& row : rows) width = std::max(width, row.first.size());
    std::string table;
    for (const auto& [name, value] : rows)
        table.append("  ").append(name).append(width - name.size() + 2, ' ').append(value).append("\n");
    return table;
}

std::string and_more(std::int64_t all) {
    return all > max_shown ? "and " + grouped(all - max_shown) + " more: --json has all\n" : "";
}

std::string text_of(const JobReport& report, double bytes_per_second) {
    std::string text = table_of(report, bytes_per_second);
    const std::int64_t faults = report.faults.size();
    for (std::int64_t i = 0; i < std::min(faults, max_shown); ++i) text += "error: " + report.faults[i].line + "\n";
    text += and_more(faults);
    if (report.items) {
        for (const ItemSurvey::Failure& failure : report.items->failures)
            text += "item " + engine::printable(failure.id) + " would fail: " + failure.error + "\n";
        text += and_more(report.items->failed);
    }
    for (const std::string& line : report.warnings) text += "warning: " + line + "\n";
    const std::int64_t failing = report.items ? report.items->failed : 0;
    if (faults > 0) text += "cannot run: " + counted(faults, "fault", "faults") + "\n";
    if (faults > 0 && !report.items) text += "the items were not checked: fix these first\n";
    if (faults == 0 && failing > 0)
        text += "can run, but for " + counted(failing, "item", "items") + " that would fail\n";
    if (faults > 0 || failing > 0) return text;
    if (report.warnings.empty()) return text + "all good\n";
    return text + "can run, with " + counted(report.warnings.size(), "warning", "warnings") + "\n";
}

// Output as JSON

Json describe_items(const JobReport& report) {
    const ItemSurvey& items = *report.items;
    Json json{{"inputs", items.inputs},
              {"samples", report.settings.samples},
              {"failed", items.failed},
              {"new_tokens_at_most", items.new_tokens}};
    if (runnable(items) > 0) {
        json["prompt_tokens"] = {{"median", items.prompt_tokens.quantile(0.5)},
                                 {"p90", items.prompt_tokens.quantile(0.9)},
                                 {"longest", items.prompt_tokens.largest()},
                                 {"longest_id", report.longest_id},
                                 {"total", items.prompt_tokens.sum()}};
    }
    json["failures"] = Json::array();
    for (const ItemSurvey::Failure& failure : items.failures)
        json["failures"].push_back({{"index", failure.index}, {"id", failure.id}, {"error", failure.error}});
    return json;
}

Json to_json(const JobReport& report, double bytes_per_second) {
    Json json{{"exit_code", static_cast<int>(report.code())}, {"faults", Json::array()}};
    for (const JobFault& fault : report.faults)
        json["faults"].push_back({{"part", fault.part}, {"line", fault.line}, {"code", static_cast<int>(fault.code)}});
    json["warnings"] = report.warnings;
    if (report.model) {
        json["model"] = {{"model_type", report.model->config.model_type},
                         {"parameters", engine::num_parameters(report.model->config)},
                         {"context", report.model->config.max_positions},
                         {"tensors", report.model->num_tensors},
                         {"bytes", report.model->tensor_bytes},
                         {"tokenizer_size", report.model->tokenizer_size}};
        if (!report.model->adapter.empty()) json["model"]["adapter"] = report.model->adapter;
        if (report.model->config.has_experts())
            json["model"]["active_parameters"] = engine::num_active_parameters(report.model->config);
    }
    if (report.items) json["items"] = describe_items(report);
    if (report.first_prompt)
        json["first_prompt"] = {{"id", report.first_prompt->id},
                                {"text", report.first_prompt->text},
                                {"token_ids", report.first_prompt->tokens}};
    for (const FirstChoice& choice : report.first_prompt ? report.first_prompt->choices : std::vector<FirstChoice>())
        json["first_prompt"]["choices"].push_back(
            {{"text", choice.text}, {"tokens", choice.num_tokens}, {"right", choice.is_right}});
    if (!report.lengths.empty()) json["lengths"] = Json::array();
    for (const LengthCost& cost : report.lengths) {
        Json entry{{"positions", cost.positions}, {"kv", cost.kv_bytes}, {"read_bytes", cost.read_bytes}};
        if (bytes_per_second > 0) entry["seconds_at_least"] = static_cast<double>(cost.read_bytes) / bytes_per_second;
        json["lengths"].push_back(std::move(entry));
    }
    if (const double seconds = total_seconds(report, bytes_per_second); seconds > 0) json["seconds_at_least"] = seconds;
    if (report.memory) {
        json["memory"] = {{"weights", report.memory->weights},        {"batch_kv", report.memory->batch_kv},
                          {"longest_kv", report.memory->longest_kv},  {"most_kv", report.memory->max_kv},
                          {"available", report.memory->available},    {"host", report.memory->host},
                          {"host_memory", report.memory->host_memory}};
    }
    if (report.disk) {
        json["disk"] = {{"checkpoints", report.disk->checkpoints},
                        {"results", report.disk->results},
                        {"available", report.disk->available}};
    }
    json["output"] = {
        {"folder", report.settings.output.string()}, {"begun", report.is_begun}, {"results", report.items_before}};
    return json;
}

/// The value of the key that --print names.
std::string value_of(const CommandLine& line) {
    const std::string what = line.value("print");
    if (what != "output" && what != "tensor-parallel")
        throw UsageError(InputError::format("command line", "print", "output or tensor-parallel", in_quotes(what), ""));
    const Settings settings = load_settings(line.places.front(), line.keys);
    if (what == "tensor-parallel") return std::to_string(settings.tensor_parallel) + "\n";
    return settings.output.lexically_normal().string() + "\n";
}

/// An estimate in less than a second: less memory than `bench` takes.
double measured_bandwidth(int threads) {
    constexpr std::int64_t max_bytes = std::int64_t{256} << 20;
    return kernels::ReadBandwidth(threads, max_bytes).measure();
}

std::string report_text(const CommandLine& line, ExitCode& code) {
    const bool json = line.has("json");
    const JobReport report =
        check_job(line.places.front(), line.keys, json ? std::numeric_limits<std::int64_t>::max() : max_shown);
    code = report.code();
    const double bytes_per_second = report.threads > 0 ? measured_bandwidth(static_cast<int>(report.threads)) : 0;
    return json ? engine::json_text(to_json(report, bytes_per_second), 2) + "\n" : text_of(report, bytes_per_second);
}

}  // namespace

int check_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("check"));
    ExitCode code = ExitCode::done;
    const std::string text = line.has("print") ? value_of(line) : report_text(line, code);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return static_cast<int>(code);
}

}  // namespace longhaul::runner
