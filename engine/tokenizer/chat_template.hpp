// Messages of a chat as the text a chat model was trained on.
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

/// Renders as transformers' apply_chat_template(messages, add_generation_prompt=True, tokenize=False) does with the
/// published template of the same name; the tokens are then Tokenizer::encode(text), where the template's special
/// tokens are found in the text, and nothing is put in front. As in transformers, text of a message that reads like a
/// special token becomes that token, too.
///
/// One thing is fixed: the date that Llama 3.1 and 3.2 put into the system message is always "26 Jul 2024", the
/// templates' own constant (3.2 asks for today's date where it can: equal to transformers with that date_string), so
/// that a job gives the same text tomorrow.
class ChatTemplate {
  public:
    /// "llama2", "llama3", "llama3.1" (also 3.2 and 3.3), "qwen2.5".
    static const std::vector<std::string>& names();

    /// The template `name`, with the begin and end tokens that the folder's tokenizer files name (the published ones
    /// where they name none). "auto": the folder's own template (chat_template.jinja, else "chat_template" of
    /// tokenizer_config.json, a text or the one named "default" of a list), recognised as one of the known ones by
    /// what it does without tools, whatever its layout. Throws InputError: no such template, malformed files.
    static ChatTemplate load(std::string_view name, const std::filesystem::path& model_folder);

    /// As `load` with "auto"; nullopt instead of an error.
    static std::optional<ChatTemplate> find(const std::filesystem::path& model_folder);

    /// `label` names the messages in errors. Throws InputError: no messages, an unknown role, an order of roles that
    /// the template refuses.
    [[nodiscard]] std::string render(std::span<const ChatMessage> messages, std::string_view label) const;

    [[nodiscard]] const std::string& name() const { return name_; }
    /// What decides its text beside the name, in one line: for the identity of a run.
    [[nodiscard]] std::string identity() const;

  private:
    ChatTemplate() = default;

    std::string name_;
    std::string bos_, eos_;
    std::string default_system_;  ///< qwen2.5: where the messages have no system message
};

}  // namespace longhaul::engine
