#include "engine/tokenizer/chat_template.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/jinja_form.hpp"
#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t max_file_bytes = std::int64_t{1} << 26;
constexpr std::string_view qwen_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

/// Pattern that recognises a published template. The gaps of the pattern (see match_jinja) cover only what applies with
/// tools or has no effect.
struct Known {
    const char* name;
    int system_gap;  ///< index of the gap that holds the default system message; -1: none
    const char* pattern;
};

constexpr std::array<Known, 6> known_templates{{
    {"llama2", -1,
     "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
     "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
     "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
     R"({% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception(')"
     "\x01"
     R"(') }}{% endif %}{% if loop.index0 == 0 and system_message != false %})"
     R"({% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %})"
     R"({% else %}{% set content = message['content'] %}{% endif %})"
     R"({% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }})"
     "\x01"
     R"({% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %})"},
    {"llama3", -1,
     "{% set loop_messages = messages %}{% for message in loop_messages %}"
     R"({% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n')"
     R"(+ message['content'] | trim + '<|eot_id|>' %})"
     "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
     R"({% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"},
    {"llama3", -1,  // as first published: always adds the header of the answer
     "{% set loop_messages = messages %}{% for message in loop_messages %}"
     R"({% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n')"
     R"(+ message['content'] | trim + '<|eot_id|>' %})"
     "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
     R"({{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }})"},
    {"llama3.1", -1,
     "{{ bos_token }}\x02{% set date_string = '26 Jul 2024' %}\x02"
     "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] | trim %}"
     "{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}"
     R"({{ '<|start_header_id|>system<|end_header_id|>\n\n' }})"
     "\x01"
     R"({% endif %}{{ 'Cutting Knowledge Date: December 2023\n' }}{{ 'Today Date: ' + date_string + '\n\n' }})"
     "{% if tools is not none and not tools_in_user_message %}\x01"
     "{% endfor %}{% endif %}{{ system_message }}{{ '<|eot_id|>' }}"
     "{% if tools_in_user_message and not tools is none %}\x01{% endif %}{% for message in messages %}"
     "{% if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}"
     R"({{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n')"
     R"(+ message['content'] | trim + '<|eot_id|>' }}{% elif 'tool_calls' in message %})"
     "\x01{% endfor %}"
     R"({% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"},
    {"qwen2.5", 1,
     "{% if tools %}\x01{% else %}{% if messages[0]['role'] == 'system' %}"
     R"({{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{% else %}{{ '<|im_start|>system\n)"
     "\x01"
     R"(<|im_end|>\n' }}{% endif %}{% endif %}{% for message in messages %})"
     "{% if (message.role == 'user') or (message.role == 'system' and not loop.first) or "
     "(message.role == 'assistant' and not message.tool_calls) %}"
     R"({{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }})"
     "{% elif message.role == 'assistant' %}\x01{% endfor %}"
     R"({% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
    {"qwen2.5", 0,  // template of Qwen2, with the same result
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
     R"({{ '<|im_start|>system\n)"
     "\x01"
     R"(<|im_end|>\n' }}{% endif %})"
     R"({{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %})"
     R"({% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
}};

/// White space as Python's str.strip() defines it.
bool is_python_space(char32_t code) {
    return unicode::is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

std::string_view stripped(std::string_view text) {
    while (!text.empty() && is_python_space(unicode::first_char(text)))
        text.remove_prefix(unicode::char_bytes(text.front()));
    while (!text.empty()) {
        const std::size_t last = unicode::last_char_start(text);
        if (!is_python_space(unicode::first_char(text.substr(last)))) break;
        text = text.substr(0, last);
    }
    return text;
}

std::string join(std::initializer_list<std::string_view> parts) {
    std::string text;
    for (const std::string_view part : parts) text += part;
    return text;
}

using Messages = std::span<const ChatMessage>;

void check_roles(Messages messages, std::string_view label) {
    if (messages.empty()) throw InputError(label, "messages", "at least one message", "none");
    for (const ChatMessage& message : messages) {
        if (message.role == "system" || message.role == "user" || message.role == "assistant") continue;
        throw InputError(label, "role", "system, user or assistant", in_quotes(message.role));
    }
}

std::string render_llama2(Messages messages, std::string_view bos, std::string_view eos, std::string_view label) {
    const bool has_system = messages.front().role == "system";
    const Messages turns = messages.subspan(has_system ? 1 : 0);
    std::string text;
    for (std::size_t i = 0; i < turns.size(); ++i) {
        const bool user = i % 2 == 0;
        if (turns[i].role != (user ? "user" : "assistant")) {
            throw InputError(label, "messages", "roles that alternate: user, assistant, user, ... (template llama2)",
                             turns[i].role + " as message " + std::to_string(i + 1 + (has_system ? 1 : 0)));
        }
        std::string content = turns[i].content;
        if (i == 0 && has_system) content = join({"<<SYS>>\n", messages.front().content, "\n<</SYS>>\n\n", content});
        text += user ? join({bos, "[INST] ", stripped(content), " [/INST]"}) : join({" ", stripped(content), " ", eos});
    }
    return text;
}

std::string llama3_header(std::string_view role) {
    return join({"<|start_header_id|>", role, "<|end_header_id|>\n\n"});
}

std::string llama3_turns(Messages messages) {
    std::string text;
    for (const ChatMessage& message : messages)
        text += join({llama3_header(message.role), stripped(message.content), "<|eot_id|>"});
    return text + llama3_header("assistant");
}

std::string render_llama31(Messages messages, std::string_view bos) {
    const bool has_system = messages.front().role == "system";
    const std::string_view system = has_system ? stripped(messages.front().content) : std::string_view();
    return join({bos, llama3_header("system"), "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
                 system, "<|eot_id|>", llama3_turns(messages.subspan(has_system ? 1 : 0))});
}

std::string render_qwen25(Messages messages, std::string_view default_system) {
    std::string text;
    if (messages.front().role != "system") text = join({"<|im_start|>system\n", default_system, "<|im_end|>\n"});
    for (const ChatMessage& message : messages)
        text += join({"<|im_start|>", message.role, "\n", message.content, "<|im_end|>\n"});
    return text + "<|im_start|>assistant\n";
}

/// What the folder's tokenizer files contain for chats.
struct FolderFiles {
    std::string bos, eos;       ///< "" if not named
    std::string chat_template;  ///< "" if there is none
    std::string place;          ///< file and field of the template, for error messages
};

std::string token_text(const JsonView& json) {
    if (json.is_null()) return "";
    return json.is_string() ? json.string() : json.member("content").string();
}

/// "chat_template": a text, or a list of {"name", "template"}.
std::string template_text(const JsonView& json) {
    if (json.is_null() || json.is_string()) return json.is_null() ? "" : json.string();
    for (std::size_t i = 0; i < json.list().size(); ++i) {
        const JsonView entry = json.item(i);
        if (entry.member("name").string() == "default") return entry.member("template").string();
    }
    json.fail("a template named \"default\"", "none of that name");
}

FolderFiles read_folder(const fs::path& folder, bool with_template) {
    FolderFiles files;
    std::error_code ignored;
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
        const fs::path path = folder / name;
        if (!fs::exists(path, ignored)) continue;
        const Json json = read_json(path, max_file_bytes);
        const std::string file = path.string();
        const JsonView root(json, file);
        if (files.bos.empty()) files.bos = token_text(root.member("bos_token"));
        if (files.eos.empty()) files.eos = token_text(root.member("eos_token"));
        if (!with_template || !files.chat_template.empty()) continue;
        files.chat_template = template_text(root.member("chat_template"));
        files.place = file + ": chat_template";
    }
    const fs::path jinja = folder / "chat_template.jinja";
    if (!with_template || !fs::exists(jinja, ignored)) return files;
    files.chat_template = read_file(jinja, max_file_bytes);
    files.place = jinja.string();
    return files;
}

struct Recognised {
    const Known* known = nullptr;
    std::string default_system;
};

Recognised recognise(const std::string& text) {
    const std::string form = jinja_form(text);
    for (const Known& known : known_templates) {
        const auto gaps = match_jinja(form, known.pattern);
        if (!gaps) continue;
        return {&known, known.system_gap < 0 ? "" : jinja_literal((*gaps)[known.system_gap])};
    }
    return {};
}

std::string names_in_words() {
    std::string words;
    for (const std::string& name : ChatTemplate::names()) words += (words.empty() ? "" : ", ") + name;
    return words;
}

}  // namespace

const std::vector<std::string>& ChatTemplate::names() {
    static const std::vector<std::string> names{"llama2", "llama3", "llama3.1", "qwen2.5"};
    return names;
}

ChatTemplate ChatTemplate::load(std::string_view name, const fs::path& model_folder) {
    const FolderFiles files = read_folder(model_folder, name == "auto");
    ChatTemplate made;
    made.name_ = name;
    made.default_system_ = qwen_system;
    if (name == "auto") {
        const std::string fix = "name one of " + names_in_words() + " as chat-template";
        if (files.chat_template.empty())
            throw InputError(model_folder.string(), "chat_template", "a model with a chat template", "none", fix);
        const Recognised found = recognise(files.chat_template);
        if (found.known == nullptr) {
            throw InputError(files.place, "", "one of the chat templates known here (" + names_in_words() + ")",
                             "another one", fix + " if it does the same");
        }
        made.name_ = found.known->name;
        made.default_system_ = found.default_system;
    }
    const auto& all = names();
    if (std::find(all.begin(), all.end(), made.name_) == all.end())
        throw InputError("chat-template", "", "auto or one of " + names_in_words(), in_quotes(name));
    const bool llama2 = made.name_ == "llama2";
    made.bos_ = !files.bos.empty() ? files.bos : llama2 ? "<s>" : "<|begin_of_text|>";
    made.eos_ = !files.eos.empty() ? files.eos : "</s>";
    return made;
}

std::optional<ChatTemplate> ChatTemplate::find(const fs::path& model_folder) {
    try {
        return load("auto", model_folder);
    } catch (const InputError&) {
        return std::nullopt;
    }
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, std::string_view label) const {
    check_roles(messages, label);
    if (name_ == "llama2") return render_llama2(messages, bos_, eos_, label);
    if (name_ == "llama3") return bos_ + llama3_turns(messages);
    if (name_ == "llama3.1") return render_llama31(messages, bos_);
    return render_qwen25(messages, default_system_);
}

std::string ChatTemplate::identity() const {
    if (name_ == "qwen2.5")
        return name_ + (default_system_ == qwen_system ? "" : " (" + printable(default_system_, max_file_bytes) + ")");
    const std::string published = name_ == "llama2" ? "<s>" : "<|begin_of_text|>";
    std::string changed = bos_ == published ? "" : bos_;
    if (name_ == "llama2" && eos_ != "</s>") changed += " " + eos_;
    return changed.empty() ? name_ : name_ + " (" + printable(changed, max_file_bytes) + ")";
}

}  // namespace longhaul::engine
