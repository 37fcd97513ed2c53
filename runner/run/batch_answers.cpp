#include "runner/run/batch_answers.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/error.hpp"
#include "engine/grammar/reasoning_end.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "runner/data/batch_requests.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;
using Samples = std::span<const ResultRecord>;

struct TokenChoice {
    std::int32_t token = 0;
    double logprob = 0;
};

/// What a line of `logprobs` says of one token: the chosen one first, then the best others.
std::vector<TokenChoice> choices_of(const Json& row) {
    std::vector<TokenChoice> choices;
    for (const Json& entry : row) choices.push_back({entry.at(0).get<std::int32_t>(), entry.at(1).get<double>()});
    return choices;
}

/// The `count` most probable of them, best first.
std::vector<TokenChoice> best_of(std::vector<TokenChoice> choices, std::size_t count) {
    std::stable_sort(choices.begin(), choices.end(),
                     [](const TokenChoice& a, const TokenChoice& b) { return a.logprob > b.logprob; });
    choices.resize(std::min(choices.size(), count));
    return choices;
}

Ordered chat_token(const TokenChoice& choice, const engine::Tokenizer& tokenizer) {
    const std::string& text = tokenizer.token_bytes(choice.token);
    return {{"token", text},
            {"logprob", choice.logprob},
            {"bytes", std::vector<int>(reinterpret_cast<const unsigned char*>(text.data()),
                                       reinterpret_cast<const unsigned char*>(text.data() + text.size()))}};
}

Ordered chat_logprobs(const Json& rows, std::size_t top, const engine::Tokenizer& tokenizer) {
    Ordered content = Ordered::array();
    for (const Json& row : rows) {
        const std::vector<TokenChoice> choices = choices_of(row);
        Ordered token = chat_token(choices.front(), tokenizer);
        token["top_logprobs"] = Ordered::array();
        for (const TokenChoice& choice : best_of(choices, top))
            token["top_logprobs"].push_back(chat_token(choice, tokenizer));
        content.push_back(std::move(token));
    }
    return {{"content", std::move(content)}};
}

Ordered completion_logprobs(const Json& rows, std::size_t top, const engine::Tokenizer& tokenizer) {
    Ordered tokens = Ordered::array(), values = Ordered::array(), best = Ordered::array(), offsets = Ordered::array();
    std::int64_t offset = 0;
    for (const Json& row : rows) {
        std::vector<TokenChoice> choices = choices_of(row);
        const TokenChoice chosen = choices.front();
        const std::string& text = tokenizer.token_bytes(chosen.token);
        tokens.push_back(text);
        values.push_back(chosen.logprob);
        offsets.push_back(offset);
        offset += num_characters(text);  // a token may hold parts of characters
        // The chosen token is there even if it is not among the best. Of tokens with one text the best counts.
        Ordered map = Ordered::object();
        if (top > 0) {
            for (const TokenChoice& choice : best_of(std::move(choices), top + 1))
                map.emplace(tokenizer.token_bytes(choice.token), choice.logprob);
        } else {
            map.emplace(text, chosen.logprob);
        }
        best.push_back(std::move(map));
    }
    return {{"text_offset", std::move(offsets)},
            {"token_logprobs", std::move(values)},
            {"tokens", std::move(tokens)},
            {"top_logprobs", std::move(best)}};
}

/// The name that a client knows the job's model by if it gives none.
std::string model_name(const std::filesystem::path& folder) {
    return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

class BatchAnswers {
  public:
    explicit BatchAnswers(const Settings& settings) : requests_(settings), model_(settings.model) {}

    [[nodiscard]] std::int64_t size() const { return requests_.lines().size(); }

    std::string line(std::int64_t index, Samples samples) {
        const ResultRecord& first = samples.front();
        if (first.id != requests_.lines().id(index)) {
            throw InputError(requests_.lines().label(index), "custom_id", "'" + engine::printable(first.id) + "'",
                             "'" + engine::printable(requests_.lines().id(index)) + "'",
                             "the data has changed since the run");
        }
        const std::string name = engine::hex(engine::hash_of(std::to_string(index) + ":" + first.id));
        Ordered line{{"id", "batch_req_" + name}, {"custom_id", first.id}};
        const auto failed = std::find_if(samples.begin(), samples.end(),
                                         [](const ResultRecord& of) { return of.finish_reason == "error"; });
        if (failed != samples.end()) {
            line["response"] = nullptr;
            line["error"] = {{"code", failed->prompt_tokens == 0 ? "invalid_request" : "server_error"},
                             {"message", failed->error}};
        } else {
            line["response"] = {
                {"status_code", 200}, {"request_id", "req_" + name}, {"body", body(index, samples, name)}};
            line["error"] = nullptr;
        }
        return engine::json_text(line);
    }

  private:
    Ordered body(std::int64_t index, Samples samples, const std::string& name) {
        const BatchRequest request = requests_.read(index);
        Ordered choices = Ordered::array();
        std::int64_t completion_tokens = 0;
        for (const ResultRecord& sample : samples) {
            choices.push_back(choice(request, sample));
            completion_tokens += sample.num_tokens;
        }
        const std::int64_t prompt_tokens = samples.front().prompt_tokens;
        return {{"id", (request.chat ? "chatcmpl-" : "cmpl-") + name},
                {"object", request.chat ? "chat.completion" : "text_completion"},
                {"created", 0},
                {"model", request.model.empty() ? model_name(model_) : request.model},
                {"choices", std::move(choices)},
                {"usage",
                 {{"prompt_tokens", prompt_tokens},
                  {"completion_tokens", completion_tokens},
                  {"total_tokens", prompt_tokens + completion_tokens}}}};
    }

    Ordered choice(const BatchRequest& request, const ResultRecord& sample) {
        Ordered choice{{"index", sample.key.sample}};
        bool calls = false;
        if (request.chat) {
            choice["message"] = message(*request.settings, sample);
            calls = move_calls(request, sample, choice["message"]);
        } else {
            choice["text"] = sample.text;
        }
        choice["logprobs"] = logprobs(request, sample);
        const bool chose_to_call = calls && request.tools.named.empty() && sample.finish_reason == "stop";
        choice["finish_reason"] = chose_to_call ? "tool_calls" : sample.finish_reason;
        return choice;
    }

    /// Moves the calls of tools from a message's content to tool_calls. Returns whether there are any.
    static bool move_calls(const BatchRequest& request, const ResultRecord& sample, Ordered& message) {
        if (!message["content"].is_string()) return false;
        ToolAnswer found = answer_with_tools(message["content"].get<std::string>(), request.tools);
        if (found.calls.empty()) return false;
        message["content"] = found.content.empty() ? Ordered() : Ordered(std::move(found.content));
        constexpr std::size_t id_length = 9;  // chat templates of Mistral take no other ids
        Ordered calls = Ordered::array();
        for (ToolCall& call : found.calls) {
            const std::string place = sample.id + ":" + std::to_string(sample.key.index) + ":" +
                                      std::to_string(sample.key.sample) + ":" + std::to_string(calls.size());
            calls.push_back({{"id", engine::hex(engine::hash_of(place)).substr(0, id_length)},
                             {"type", "function"},
                             {"function", {{"name", call.name}, {"arguments", std::move(call.arguments)}}}});
        }
        message["tool_calls"] = std::move(calls);
        return true;
    }

    /// A chat's answer apart from its reasoning, as servers give them.
    Ordered message(const Settings& settings, const ResultRecord& sample) {
        if (!sample.has_reasoning) return {{"role", "assistant"}, {"content", sample.text}};
        const std::string before = reasoning(settings.reasoning_end, sample);
        return {{"role", "assistant"},
                {"content", sample.answer ? Ordered(*sample.answer) : Ordered()},
                {"reasoning_content", before.empty() ? Ordered() : Ordered(before)}};
    }

    /// What stands before the answer, without the texts that begin and end it.
    std::string reasoning(const std::string& end, const ResultRecord& sample) {
        const auto trimmed = engine::without_space;
        std::string_view text = sample.text;
        if (sample.answer) {
            text = trimmed(text.substr(0, text.size() - std::min(text.size(), sample.answer->size())));
            const std::string shown_end = tokenizer().decode(tokenizer().encode(end), true);
            const std::string_view last = trimmed(shown_end);
            if (text.ends_with(last)) text.remove_suffix(last.size());
        }
        text = trimmed(text);
        const std::string begin = end.starts_with("</") ? "<" + end.substr(2) : "";
        if (text.starts_with(begin)) text.remove_prefix(begin.size());
        return std::string(trimmed(text));
    }

    const engine::Tokenizer& tokenizer() {
        if (!tokenizer_) tokenizer_ = engine::Tokenizer::load(model_);
        return *tokenizer_;
    }

    Ordered logprobs(const BatchRequest& request, const ResultRecord& sample) {
        if (!request.top_logprobs || sample.logprobs.empty()) return nullptr;
        const Json rows = engine::try_parse_json(sample.logprobs);
        return (request.chat ? chat_logprobs : completion_logprobs)(rows, *request.top_logprobs, tokenizer());
    }

    BatchRequests requests_;
    std::filesystem::path model_;
    std::unique_ptr<engine::Tokenizer> tokenizer_;  ///< loaded when it is needed
};

/// All samples of a request; empty if one is missing.
std::vector<ResultRecord> samples_of(const ResultIndex& results, std::int64_t index, std::int64_t count) {
    std::vector<ResultRecord> samples;
    for (std::int64_t sample = 0; sample < count; ++sample) {
        const ResultIndex::Entry* entry = results.find({index, sample});
        if (entry == nullptr) return {};
        samples.push_back(results.load(*entry));
    }
    return samples;
}

}  // namespace

void each_batch_answer(const ResultIndex& results, const Settings& settings,
                       const std::function<void(const std::string& line)>& visit) {
    BatchAnswers answers(settings);
    for (std::int64_t index = 0; index < answers.size(); ++index) {
        const std::vector<ResultRecord> samples = samples_of(results, index, settings.samples);
        if (!samples.empty()) visit(answers.line(index, samples));
    }
}

void write_batch_answers(const std::filesystem::path& to, const std::string& tag, const ResultIndex& results,
                         const Settings& settings) {
    FileReplacement file(to / "batch_output.jsonl", tag);
    each_batch_answer(results, settings, [&](const std::string& line) { file.append(line + "\n"); });
    file.commit(Durable::yes);
}

}  // namespace longhaul::runner
