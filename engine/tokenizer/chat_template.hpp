// Renders the messages of a chat as the prompt text that a chat model was trained on. Used by runner/data (task data
// with chat) and `longhaul generate`.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine {

struct ChatMessage {
    std::string role;  ///< "system", "user" or "assistant"
    std::string content;
};

/// Renders like transformers' apply_chat_template(messages, add_generation_prompt=True, tokenize=False) with the
/// published template of the same name. To tokenize, call Tokenizer::encode(text): it finds the template's special
/// tokens in the text. Add no begin-of-text token. As in transformers, message text that spells a special token becomes
/// that token.
///
/// One difference: the date that Llama 3.1 and 3.2 put into the system message is always "26 Jul 2024", the constant in
/// the templates, so that a job gives the same text on any day. (The 3.2 template uses today's date if it can; with
/// that date_string transformers gives the same text.)
class ChatTemplate {
  public:
    /// "llama2", "llama3", "llama3.1" (also 3.2 and 3.3), "qwen2.5".
    static const std::vector<std::string>& names();

    /// Loads the template `name`, with the begin and end tokens defined in the folder's tokenizer files (if there are
    /// none, the published ones). "auto" takes the template of the folder: chat_template.jinja, else "chat_template" in
    /// tokenizer_config.json, which is a text or a list (the entry named "default" is used). Apart from its handling of
    /// tools and its layout, it must be the same as one of the known templates. Throws InputError if there is no such
    /// template or a file is malformed.
    static ChatTemplate load(std::string_view name, const std::filesystem::path& model_folder);

    /// Like load("auto", ...), but returns nullopt instead of throwing InputError.
    static std::optional<ChatTemplate> find(const std::filesystem::path& model_folder);

    /// `label` names the messages in errors. Throws InputError if there are no messages, a role is unknown, or the
    /// template refuses the order of roles.
    [[nodiscard]] std::string render(std::span<const ChatMessage> messages, std::string_view label) const;

    [[nodiscard]] const std::string& name() const { return name_; }
    /// One line that identifies everything that decides the rendered text: the name, and tokens or a default system
    /// message that differ from the published ones. Part of a run's identity.
    [[nodiscard]] std::string identity() const;

  private:
    ChatTemplate() = default;

    std::string name_;
    std::string bos_, eos_;
    std::string default_system_;  ///< qwen2.5: used if the messages have no system message
};

}  // namespace longhaul::engine
