// Renders the messages of a chat as the prompt text that a chat model was trained on, with the Jinja template that the
// model publishes. Used by runner/data (task data with chat) and `longhaul generate`.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja/template.hpp"

namespace longhaul::engine {

struct ChatMessage {
    std::string role;  ///< "system", "user", "assistant", "tool"; the template decides which it takes
    std::string content;
    /// If not empty: the content is a list of {"type": "text", "text": …} with these texts, instead of `content`.
    std::vector<std::string> parts{};
    /// What a model wrote before this answer, which templates of reasoning models may show; nullopt: the template sees
    /// no such field.
    std::optional<std::string> reasoning_content{};
    /// Further fields that the template sees, with their values as JSON: "tool_calls", "tool_call_id", "name".
    std::vector<std::pair<std::string, std::string>> more{};
};

/// What a template sees besides the messages and the model's tokens.
struct ChatOptions {
    jinja::Variables variables;  ///< e.g. enable_thinking
    jinja::Date today{};         ///< what strftime_now formats, so that a job gives the same text on any day
};

/// "NAME=VALUE"; the value is JSON if it parses as JSON, otherwise a text. Throws InputError for what is no name of a
/// variable, or one that render() sets.
std::pair<std::string, jinja::Value> parse_template_variable(std::string_view text);
/// "2024-07-26"; nullopt if it is no date.
std::optional<jinja::Date> parse_template_date(std::string_view text);

/// Renders like transformers' apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **variables)
/// with the same template; see jinja/template.hpp for the parts of Jinja that are not supported. To tokenize, call
/// Tokenizer::encode(text): it finds the template's special tokens in the text. Add no begin-of-text token. As in
/// transformers, message text that spells a special token becomes that token.
class ChatTemplate {
  public:
    /// The built-in templates: "llama2", "llama3", "llama3.1" (also 3.2 and 3.3), "qwen2.5".
    static const std::vector<std::string>& names();
    /// Whether `text` is the path of a template file rather than a name: it ends in ".jinja" or has a "/".
    static bool is_path(std::string_view text);

    /// Loads the template `which`: a built-in one, the path of a .jinja file, or "auto" for the template of the folder:
    /// chat_template.jinja, else "chat_template" in tokenizer_config.json, which is a text or a list (of the entries
    /// "default", and "tool_use" for chats with a variable `tools`, which additional_chat_templates/tool_use.jinja may
    /// have, too). The special tokens are those that the folder's tokenizer files name; a built-in template takes the
    /// published ones if there are none. Throws InputError if there is no such template, or a file is malformed or not
    /// supported.
    static ChatTemplate load(std::string_view which, const std::filesystem::path& model_folder,
                             ChatOptions options = {});

    /// `label` names the messages in errors. Throws InputError if there are no messages, or tools or calls that the
    /// template does not show, the template raises an exception, or rendering fails (then it names file and line of the
    /// template). Thread-safe.
    [[nodiscard]] std::string render(std::span<const ChatMessage> messages, std::string_view label) const {
        return render(messages, label, options_.variables);
    }
    /// With these variables instead of those of the options.
    [[nodiscard]] std::string render(std::span<const ChatMessage> messages, std::string_view label,
                                     const jinja::Variables& own) const;

    /// A short line that identifies the template and the tokens it sees; part of a run's identity. It is the name of a
    /// built-in template if it is this one, or the published one that does the same, with the tokens that differ from
    /// the published ones; otherwise a hash. Variables and date are keys of a job, so they are not part of it.
    [[nodiscard]] const std::string& identity() const { return identity_; }

  private:
    /// A template, and what it shows of tools.
    struct Form {
        jinja::Template parsed;
        bool shows_tools, shows_calls;
    };
    explicit ChatTemplate(Form form) : form_(std::move(form)) {}
    static Form form_of(const std::string& text, std::string place);

    Form form_;
    std::optional<Form> tool_form_;                            ///< for chats with tools, if the folder has one for them
    std::string tool_fault_;                                   ///< why it cannot be used
    std::vector<std::pair<std::string, std::string>> tokens_;  ///< bos_token, …
    ChatOptions options_;
    std::string identity_;
};

/// Source of a built-in template, from engine/tokenizer/chat_templates; "" if there is none of this name.
std::string_view built_in_chat_template(std::string_view name);

}  // namespace longhaul::engine
