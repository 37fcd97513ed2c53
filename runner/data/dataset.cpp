#include "runner/data/dataset.hpp"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "engine/error.hpp"
#include "engine/grammar/reasoning_end.hpp"
#include "engine/hash.hpp"
#include "engine/replica/sequence.hpp"
#include "engine/tokenizer/chat_template.hpp"
#include "runner/data/choices.hpp"
#include "runner/data/dataset_records.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/data/few_shot.hpp"
#include "runner/data/prompt_template.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {

using Ids = std::vector<std::int32_t>;

namespace {

/// The first `count` token ids of the text, as encoding the whole text would give them; all ids of a shorter text.
///
/// Only a prefix is tokenized, since a prompt is often a thousandth of a book. Cutting a text changes the ids near the
/// cut (how near depends on the tokenizer's pattern and merges). So the ids of a prefix are accepted if there are at
/// least 256 more than requested and a prefix a quarter longer gives the same first `count` ids.
Ids first_ids(const BookSource& source, std::int64_t index, std::int64_t count, const engine::Tokenizer& tokenizer,
              std::string& error) {
    constexpr std::int64_t margin_tokens = 256;
    constexpr std::int64_t margin_bytes = 4096;
    const std::size_t wanted = count;
    std::int64_t bytes = count * 6 + margin_bytes;
    Ids shorter;
    for (;;) {
        const ItemText item = source.read(index, bytes);
        error = item.error;
        if (!error.empty()) return {};
        Ids ids = tokenizer.encode(item.text);
        const bool enough = ids.size() >= wanted + margin_tokens;
        const bool agrees =
            shorter.size() >= wanted &&
            std::equal(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, ids.size())),
                       shorter.begin(), shorter.begin() + static_cast<std::ptrdiff_t>(wanted));
        if (item.whole || (enough && agrees)) {
            ids.resize(std::min(ids.size(), wanted));
            return ids;
        }
        shorter = enough ? std::move(ids) : Ids();
        bytes += enough ? bytes / 4 + margin_bytes : bytes;
    }
}

/// Common to all tasks: turns exceptions of an item into Prompt::error.
class CheckedDataSet : public DataSet {
  public:
    Prompt prompt(std::int64_t index, const engine::Tokenizer& tokenizer, std::int64_t max_positions) const override {
        Prompt prompt{.id = id(index), .tokens = {}, .error = {}};
        try {
            fill(prompt, index, tokenizer, max_positions);
        } catch (const Error& error) {
            prompt.error = error.what();
        } catch (const std::invalid_argument& error) {
            prompt.error = InputError::format(label(index), "", "text that can be tokenised", error.what(), "");
        }
        if (!prompt.error.empty())
            prompt = {.id = std::move(prompt.id), .tokens = {}, .error = std::move(prompt.error)};
        return prompt;
    }

  private:
    [[nodiscard]] virtual std::string label(std::int64_t index) const = 0;
    virtual void fill(Prompt& prompt, std::int64_t index, const engine::Tokenizer& tokenizer,
                      std::int64_t max_positions) const = 0;
};

/// Task pg19.
class BookDataSet : public CheckedDataSet {
  public:
    explicit BookDataSet(const Settings& settings)
        : books_(open_books(settings.data, settings.limit)), settings_(settings) {}

    std::int64_t size() const override { return books_->size(); }
    std::string id(std::int64_t index) const override { return books_->id(index); }
    std::optional<std::string> reference(std::int64_t index, const engine::Tokenizer& tokenizer) const override {
        const std::int64_t prompt = prompt_ids(tokenizer);
        std::string error;
        const Ids ids = first_ids(*books_, index, prompt + settings_.max_tokens, tokenizer, error);
        if (!error.empty() || static_cast<std::int64_t>(ids.size()) <= prompt) return std::nullopt;
        const std::span<const std::int32_t> all(ids);
        return engine::output_text(tokenizer, all.first(prompt), all.subspan(prompt));
    }

    std::int64_t prompt_bytes(std::int64_t index) const override {
        constexpr std::int64_t bytes_per_token = 5;  // a high estimate; it is used only to sort items
        return std::min(books_->text_bytes(index), settings_.prompt_tokens * bytes_per_token);
    }

    std::string fingerprint() const override {
        engine::Hash hash;
        books_->add_to(hash);
        return engine::hex(hash.value());
    }

    std::vector<std::string> notices(const engine::Tokenizer& tokenizer) const override {
        if (wants_continuation(settings_)) return {};  // a short book fails
        std::int64_t count = 0;
        for (std::int64_t index = 0; index < size(); ++index) count += is_short(index, tokenizer) ? 1 : 0;
        if (count == 0) return {};
        return {std::to_string(count) + (count == 1 ? " book has" : " books have") + " fewer than prompt-tokens (" +
                std::to_string(settings_.prompt_tokens) + ") tokens: all of " + (count == 1 ? "it is" : "each is") +
                " the prompt"};
    }

  private:
    /// Whether a book has fewer tokens than the prompt should. Encodes only a book whose size leaves that open.
    [[nodiscard]] bool is_short(std::int64_t index, const engine::Tokenizer& tokenizer) const {
        constexpr std::int64_t max_token_bytes = 16, added = 8;  // on average; a tokenizer may add a blank
        const std::int64_t wanted = prompt_ids(tokenizer), bytes = books_->text_bytes(index);
        if (bytes / max_token_bytes > wanted) return false;
        if (bytes + added < wanted) return true;
        std::string error;
        return std::ssize(first_ids(*books_, index, wanted, tokenizer, error)) < wanted && error.empty();
    }

    std::string label(std::int64_t index) const override { return books_->label(index); }

    /// Number of tokens of the book in the prompt. A begin-of-text token counts as one of `prompt-tokens`.
    [[nodiscard]] std::int64_t prompt_ids(const engine::Tokenizer& tokenizer) const {
        return settings_.prompt_tokens - (puts_bos(settings_, tokenizer) ? 1 : 0);
    }

    void fill(Prompt& prompt, std::int64_t index, const engine::Tokenizer& tokenizer,
              std::int64_t max_positions) const override {
        const std::int64_t wanted = prompt_ids(tokenizer);
        const std::int64_t more = wants_continuation(settings_) ? settings_.max_tokens : 0;
        Ids ids = first_ids(*books_, index, wanted + more, tokenizer, prompt.error);
        if (!prompt.error.empty()) return;
        // An empty book is an error. With prompt-tokens = 1, a prompt of only a begin-of-text token is intended.
        if (ids.empty() && settings_.prompt_tokens + more > 1) throw InputError(label(index), "", "a text", "nothing");
        const auto count = std::min(static_cast<std::ptrdiff_t>(wanted), static_cast<std::ptrdiff_t>(ids.size()));
        prompt.continuation.assign(ids.begin() + count, ids.end());
        if (more > 0 && prompt.continuation.empty()) {
            throw InputError(label(index), "",
                             "a book of more than prompt-tokens (" + std::to_string(settings_.prompt_tokens) +
                                 "), so that a continuation is there",
                             std::to_string(ids.size()) + " tokens");
        }
        ids.resize(count);
        const PromptForm form{.label = label(index),
                              .continuation = static_cast<std::int64_t>(prompt.continuation.size())};
        prompt.tokens = make_prompt(std::move(ids), form, settings_, tokenizer, max_positions);
    }

    std::unique_ptr<BookSource> books_;
    Settings settings_;
};

/// The chat template of a job.
class JobChat {
  public:
    /// Throws InputError if `chat` needs a template and there is none. If only items with messages would need it, the
    /// error is that of these items.
    JobChat(const Settings& settings, bool takes_messages) {
        if (!settings.chat && (!takes_messages || settings.model.empty())) return;
        try {
            template_ = engine::ChatTemplate::load(settings.chat_template, settings.model, chat_options(settings));
        } catch (const InputError& error) {
            if (settings.chat || settings.chat_template != "auto") throw;
            fault_ = error.what();
        }
    }

    [[nodiscard]] bool is_there() const { return template_.has_value(); }
    [[nodiscard]] const std::string& identity() const { return template_->identity(); }
    /// With the template variables of the item's `settings`.
    [[nodiscard]] std::string render(const std::vector<engine::ChatMessage>& messages, const Settings& settings,
                                     const std::string& where) const {
        if (template_) return template_->render(messages, where, chat_options(settings).variables);
        if (!fault_.empty()) throw Error(where + ": messages: " + fault_);
        throw InputError(where, "messages", "a model with a chat template", "none", "name one as chat-template");
    }

  private:
    std::optional<engine::ChatTemplate> template_;
    std::string fault_;
};

/// Tasks whose prompts are made from text fields or messages: all except pg19.
class RecordDataSet : public CheckedDataSet {
  public:
    explicit RecordDataSet(const Settings& settings)
        : records_(open_records(settings)),
          settings_(settings),
          template_(open_template(settings, records_->field_names())),
          introduction_(introduction_of(settings, records_->field_names())),
          choices_(settings, records_->field_names()),
          few_shot_(settings.few_shot > 0 ? std::make_unique<const FewShot>(settings) : nullptr),
          chat_(settings, records_->takes_messages()) {}

    std::int64_t size() const override { return records_->size(); }
    std::string id(std::int64_t index) const override { return records_->id(index); }
    std::int64_t prompt_bytes(std::int64_t index) const override { return records_->num_bytes(index); }

    std::optional<std::string> reference(std::int64_t index, const engine::Tokenizer& /*tokenizer*/) const override {
        try {
            const Record record = records_->read(index);
            if (settings_.mode != Mode::multiple_choice) return record.reference;
            const Choices choices = choices_.of(record.choices, record.fields, label(index));
            if (choices.right.empty()) return std::nullopt;
            return choices.texts.at(static_cast<std::size_t>(choices.right.front()));
        } catch (const InputError&) {
            return std::nullopt;
        }
    }

    std::optional<std::int64_t> required_words(std::int64_t index) const override {
        if (settings_.task != "longwriter") return std::nullopt;  // reads no line in vain
        try {
            return records_->read(index).required_words;
        } catch (const InputError&) {
            return std::nullopt;
        }
    }

    std::string fingerprint() const override {
        engine::Hash hash;
        records_->add_to(hash, wants_continuation(settings_));
        std::string text = engine::hex(hash.value());
        if (template_) text += ", template " + engine::hex(template_->fingerprint());
        if (few_shot_) text += ", few-shot " + engine::hex(few_shot_->fingerprint());
        if (chat_.is_there() && (settings_.chat || records_->has_messages()))
            text += ", chat-template " + chat_.identity();
        return text;
    }

    std::vector<std::string> notices(const engine::Tokenizer& /*tokenizer*/) const override {
        std::vector<std::string> notices = records_->notices();
        if (settings_.mode == Mode::multiple_choice && !knows_any_answer())
            notices.emplace_back(
                "no question has an answer, so there is no accuracy; column = answer=NAME names the field that has "
                "them");
        const std::vector<std::string> unused = unused_chat_keys(settings_);
        if (!unused.empty() && !records_->has_messages()) notices.insert(notices.end(), unused.begin(), unused.end());
        if (!has_given_texts(settings_) && settings_.max_reasoning_tokens >= settings_.max_tokens)
            notices.push_back("max-reasoning-tokens = " + std::to_string(settings_.max_reasoning_tokens) +
                              " has no effect on items of max-tokens = " + std::to_string(settings_.max_tokens) +
                              ", which leaves no token for an answer; raise max-tokens");
        if (!has_given_texts(settings_) && opens_reasoning(0))
            notices.emplace_back(
                "the first prompt ends with <think>: with reasoning-end = </think> results have the answers by "
                "themselves, and a format is the answer's alone");
        return notices;
    }

  private:
    /// Whether the right choice of some question is known, or the first ones all have faults.
    [[nodiscard]] bool knows_any_answer() const {
        constexpr std::int64_t max_rows = 100;
        bool any_good = false;
        for (std::int64_t index = 0; index < std::min(size(), max_rows); ++index) {
            try {
                const Record record = records_->read(index);
                if (!choices_.of(record.choices, record.fields, label(index)).right.empty()) return true;
                any_good = true;
            } catch (const InputError&) {  // an item that fails
            }
        }
        return !any_good;
    }

    /// Whether the model is to go on with reasoning that nothing is said of, as templates of models say that always
    /// think.
    [[nodiscard]] bool opens_reasoning(std::int64_t index) const {
        try {
            const Record record = records_->read(index);
            const Settings& settings = record.settings ? *record.settings : settings_;
            if (!record.tokens.empty() || !settings.reasoning_end.empty()) return false;
            const std::string text = text_of(record, settings, label(index));
            return engine::without_space(text).ends_with("<think>");
        } catch (const Error&) {  // an item that fails
            return false;
        }
    }

    std::string label(std::int64_t index) const override { return records_->label(index); }

    void fill(Prompt& prompt, std::int64_t index, const engine::Tokenizer& tokenizer,
              std::int64_t max_positions) const override {
        const Record record = records_->read(index);
        prompt.settings = record.settings;
        const Settings& settings = record.settings ? *record.settings : settings_;
        const bool is_text = record.tokens.empty();
        if (settings.mode == Mode::multiple_choice) {
            fill_question(prompt, record, settings, tokenizer, label(index), max_positions);
            return;
        }
        std::string text = is_text ? text_of(record, settings, label(index)) : "";
        Ids ids;
        if (wants_continuation(settings)) {
            const engine::EncodedText encoded(tokenizer, std::move(text));
            prompt.continuation = continuation_of(record, encoded, label(index), settings);
            ids = encoded.ids();
        } else {
            ids = is_text ? tokenizer.encode(text) : known_tokens(record.tokens, tokenizer, label(index));
        }
        const PromptForm form{.label = label(index),
                              .complete = settings_.chat || !record.messages.empty() || !is_text,
                              .continuation = static_cast<std::int64_t>(prompt.continuation.size())};
        prompt.tokens = make_prompt(std::move(ids), form, settings, tokenizer, max_positions);
    }

    void fill_question(Prompt& prompt, const Record& record, const Settings& settings,
                       const engine::Tokenizer& tokenizer, const std::string& where, std::int64_t max_positions) const {
        const Choices choices = choices_.of(record.choices, record.fields, where);
        prompt.right_choices = choices.right;
        prompt.may_have_several_right = choices.has_truths;
        if (few_shot_) prompt.group = few_shot_->group_of(record, records_->field_names());
        const bool is_chat = settings_.chat || !record.messages.empty();
        const bool in_gap = !settings.choice_gap.empty();
        if (in_gap && is_chat)
            throw InputError(where, "messages", "a prompt that is a text, with choice-gap", "a conversation");
        if (in_gap) {
            GapText parts = split_at_gap(own_text(record), settings.choice_gap, where);
            parts.before.insert(0, text_before(record, where));
            prompt.choices = choices_in_gap(parts, choices, tokenizer);
        } else {
            prompt.choices = choices_behind(prompt.tokens, text_of(record, settings, where), choices, tokenizer);
        }
        PromptForm form{.label = where, .complete = is_chat};
        for (const PromptChoice& choice : prompt.choices) {
            form.continuation = std::max(form.continuation, std::ssize(choice.tokens));
            if (choice.tokens.empty()) throw InputError(where, "choices", "at least one token in each", "none");
        }
        if (form.continuation > settings.max_tokens)
            throw InputError(where, in_gap ? "prompt" : "choices",
                             "at most max-tokens (" + std::to_string(settings.max_tokens) + ") tokens" +
                                 (in_gap ? " behind choice-gap" : ""),
                             std::to_string(form.continuation));
        for (PromptChoice& choice : prompt.choices) {
            if (choice.prompt.empty()) continue;
            choice.prompt = make_prompt(std::move(choice.prompt), form, settings, tokenizer, max_positions);
            if (choice.prompt.size() > prompt.tokens.size()) prompt.tokens = choice.prompt;
        }
        if (!in_gap) prompt.tokens = make_prompt(std::move(prompt.tokens), form, settings, tokenizer, max_positions);
    }

    /// Takes the blanks at the end of `text` away and returns them: what is scored begins with them.
    static std::string cut_blanks(std::string& text) {
        const std::size_t end = text.find_last_not_of(' ') + 1;
        std::string blanks = text.substr(end);
        text.resize(end);
        return blanks;
    }

    /// The choices that follow `text`, whose tokens are put into `ids`.
    static std::vector<PromptChoice> choices_behind(Ids& ids, std::string text, const Choices& choices,
                                                    const engine::Tokenizer& tokenizer) {
        const std::string blanks = cut_blanks(text);
        const engine::EncodedText encoded(tokenizer, std::move(text));
        std::vector<PromptChoice> behind;
        for (const std::string& choice : choices.texts) {
            const bool blank = blanks.empty() && needs_blank(encoded.text(), choice);
            behind.push_back({.text = choice,
                              .tokens = encoded.encode_behind((blank ? " " : blanks) + choice),
                              .num_characters = num_characters(choice)});
        }
        ids = encoded.ids();
        return behind;
    }

    /// The choices as ends of prompts of their own; what is scored is the same for all.
    static std::vector<PromptChoice> choices_in_gap(const GapText& parts, const Choices& choices,
                                                    const engine::Tokenizer& tokenizer) {
        std::vector<PromptChoice> in_gap;
        for (const std::string& choice : choices.texts) {
            std::string text = parts.before + choice;
            const std::string blanks = cut_blanks(text);
            const engine::EncodedText encoded(tokenizer, std::move(text));
            in_gap.push_back({.text = choice,
                              .tokens = encoded.encode_behind(blanks + parts.behind),
                              .num_characters = num_characters(parts.behind),
                              .prompt = encoded.ids()});
        }
        return in_gap;
    }

    static Ids known_tokens(const Ids& tokens, const engine::Tokenizer& tokenizer, const std::string& where) {
        const auto unknown =
            std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t id) { return id >= tokenizer.vocab_size(); });
        if (unknown == tokens.end()) return tokens;
        throw InputError(where, "prompt", "token ids below the vocabulary's " + std::to_string(tokenizer.vocab_size()),
                         std::to_string(*unknown));
    }

    [[nodiscard]] std::string text_of(const Record& record, const Settings& settings, const std::string& where) const {
        const bool is_chat = settings_.chat || !record.messages.empty();
        if (!is_chat) return text_before(record, where) + own_text(record);
        return chat_.render(messages_of(record, where), settings, where);
    }

    /// The text of a prompt without what stands before it.
    [[nodiscard]] std::string own_text(const Record& record) const {
        return template_ ? template_->render(record.fields) : record.fields.front();
    }

    /// The introduction and the examples before a prompt that is a text.
    [[nodiscard]] std::string text_before(const Record& record, const std::string& where) const {
        if (!few_shot_) return introduction_text(record);
        const FewShot::Examples& examples = few_shot_->before(record, records_->field_names(), where);
        if (examples.has_messages)
            throw InputError(where, "few-shot", "examples that are prompts, as this is one", "messages");
        return introduction_text(record) + examples.text;
    }

    /// A prompt as a conversation, behind the introduction and the examples.
    [[nodiscard]] std::vector<engine::ChatMessage> messages_of(const Record& record, const std::string& where) const {
        std::vector<engine::ChatMessage> messages;
        if (few_shot_) messages = few_shot_->before(record, records_->field_names(), where).messages;
        if (record.messages.empty()) {
            messages.push_back({"user", own_text(record)});
        } else {
            messages.insert(messages.end(), record.messages.begin(), record.messages.end());
        }
        const std::string introduction = introduction_text(record);
        if (introduction.empty()) return messages;
        if (std::any_of(messages.begin(), messages.end(), [](const auto& message) { return message.role == "system"; }))
            throw InputError(where, "messages", "no system message, because the job has an introduction", "one");
        messages.insert(messages.begin(), {"system", introduction});
        return messages;
    }

    /// nullopt: none.
    static std::optional<PromptTemplate> introduction_of(const Settings& settings,
                                                         const std::vector<std::string>& fields) {
        if (settings.introduction.empty()) return std::nullopt;
        return PromptTemplate::parse_value(settings.introduction,
                                           settings.origins.of("introduction") + ": introduction", fields);
    }

    /// "" without one.
    [[nodiscard]] std::string introduction_text(const Record& record) const {
        if (!introduction_) return "";
        std::vector<std::string> fields = record.fields;
        fields.resize(records_->field_names().size());  // messages have none
        return introduction_->render(fields);
    }

    /// Tokens of the continuation of a prompt; at most max-tokens.
    [[nodiscard]] Ids continuation_of(const Record& record, const engine::EncodedText& prompt, const std::string& where,
                                      const Settings& settings) const {
        if (!record.reference || record.reference->empty())
            throw InputError(where, "continuation", "a continuation", "nothing");
        const std::string &more = *record.reference, &text = prompt.text();
        const bool ends_apart = text.empty() || text.ends_with(' ') || text.ends_with('\n');
        // Of prompts it is as it is, unless examples show how an answer stands behind its prompt.
        const bool blank = few_shot_ ? needs_blank(text, more) : settings.task == "prompts" ? false : !ends_apart;
        Ids all = prompt.encode_behind((blank ? " " : "") + more);
        if (all.empty()) throw InputError(where, "continuation", "at least one token", "none");
        all.resize(std::min(all.size(), static_cast<std::size_t>(settings.max_tokens)));
        return all;
    }

    std::unique_ptr<RecordSource> records_;
    Settings settings_;
    std::optional<PromptTemplate> template_, introduction_;
    JobChoices choices_;
    std::unique_ptr<const FewShot> few_shot_;  // null: none
    JobChat chat_;
};

[[noreturn]] void refuse_overlong(const PromptForm& form, std::int64_t count, std::int64_t capacity, bool bos,
                                  const Settings& settings, std::int64_t max_positions) {
    const std::string less = form.continuation > 0 ? "the continuation's " + std::to_string(form.continuation)
                                                   : "max-tokens " + std::to_string(settings.max_tokens);
    const std::string expected = "at most " + std::to_string(std::max<std::int64_t>(capacity, 0)) +
                                 " tokens (context " + std::to_string(max_positions) + " less " + less +
                                 (bos ? " and 1 for begin-of-text" : "") + ")";
    // Where the new tokens take most of the context, truncation would leave little of the prompt.
    const bool long_output = form.continuation == 0 && settings.max_tokens > max_positions / 2;
    const std::string last = "overlong = truncate-left keeps the last ";
    throw InputError(form.label, "prompt", expected, std::to_string(count),
                     capacity <= 0 ? "lower max-tokens"
                     : long_output ? "lower max-tokens; " + last + std::to_string(capacity)
                                   : last + "ones");
}

}  // namespace

std::vector<std::string> unused_chat_keys(const Settings& settings) {
    std::vector<std::string> notices;
    if (settings.chat || settings.task == "openai-batch") return notices;  // its requests say which are chats
    const Settings defaults;
    for (const char* key : {"chat-template", "template-variable"}) {
        if (find_key(key)->get(settings) == find_key(key)->get(defaults)) continue;
        notices.push_back(std::string(key) + " has no effect: the prompts are sent as they are, not as messages; set " +
                          "chat = true for a chat model");
    }
    return notices;
}

bool puts_bos(const Settings& settings, const engine::Tokenizer& tokenizer) {
    if (settings.add_bos == "false") return false;
    if (settings.add_bos == "auto" && !tokenizer.adds_bos()) return false;
    if (tokenizer.bos_id()) return true;
    if (settings.add_bos == "auto") return false;
    throw UsageError(InputError::format(settings.origins.of("add-bos"), "add-bos", "false with this model", "true",
                                        "its tokenizer names no begin-of-text token"));
}

Ids make_prompt(Ids ids, const PromptForm& form, const Settings& settings, const engine::Tokenizer& tokenizer,
                std::int64_t max_positions) {
    bool bos = !form.complete && puts_bos(settings, tokenizer);
    if (form.complete && !ids.empty() && tokenizer.bos_id() == ids.front()) {
        bos = true;  // the template's own token stays in front when truncating
        ids.erase(ids.begin());
    }
    if (ids.empty() && !bos) throw InputError(form.label, "prompt", "at least one token", "none");
    const std::int64_t new_tokens = form.continuation > 0 ? form.continuation : settings.max_tokens;
    const std::int64_t capacity = max_positions - new_tokens - (bos ? 1 : 0);
    const std::int64_t count = ids.size();
    if (count > capacity) {
        if (settings.overlong != "truncate-left" || capacity <= 0)
            refuse_overlong(form, count, capacity, bos, settings, max_positions);
        ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count - capacity));
    }
    if (bos) ids.insert(ids.begin(), *tokenizer.bos_id());
    return ids;
}

std::unique_ptr<DataSet> DataSet::open(const Settings& settings) {
    if (settings.task == "pg19") return std::make_unique<BookDataSet>(settings);
    return std::make_unique<RecordDataSet>(settings);
}

}  // namespace longhaul::runner
