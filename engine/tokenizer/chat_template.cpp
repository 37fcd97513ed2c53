#include "engine/tokenizer/chat_template.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/json_view.hpp"

namespace longhaul::engine {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t max_file_bytes = std::int64_t{1} << 26;
constexpr std::int64_t max_template_bytes = std::int64_t{1} << 22;

using Tokens = std::vector<std::pair<std::string, std::string>>;

/// Begin and end tokens that a built-in template uses, as published; "" if it uses none.
struct PublishedTokens {
    std::string_view name, bos, eos;
};
constexpr std::array<PublishedTokens, 4> published_tokens{{{"llama2", "<s>", "</s>"},
                                                           {"llama3", "<|begin_of_text|>", ""},
                                                           {"llama3.1", "<|begin_of_text|>", ""},
                                                           {"qwen2.5", "", ""}}};

struct PublishedTemplate {
    std::uint64_t hash;  ///< XXH3-64 of the text, without white space at its end
    std::string_view name;
};
/// Published templates that render every chat without tools as a built-in template does; the rows are made by
/// tests/tools/compare_chat_templates.py --hashes. They have its identity, so that runs of versions that recognised
/// these templates can resume.
constexpr std::array<PublishedTemplate, 6> published_templates{
    {{0x24f6d97f87d647f5, "llama2"},     // Llama-2-7b-chat-hf
     {0x9799ad6e2dea0594, "llama3"},     // Meta-Llama-3-8B-Instruct
     {0xb97891b7adc1beb8, "llama3"},     // the same, as first published
     {0x6ca7779b7730196a, "llama3.1"},   // Llama-3.1-8B-Instruct, Llama-3.3-70B-Instruct
     {0xc3d57e38f5ff0756, "llama3.1"},   // Llama-3.2-3B-Instruct
     {0x2469c9508f79506e, "qwen2.5"}}};  // Qwen2.5-7B-Instruct

/// What the folder's tokenizer files contain for chats.
struct FolderFiles {
    Tokens tokens;
    std::string chat_template;  ///< "" if there is none
    std::string tool_template;  ///< for chats with tools; "": the same
    std::string place;          ///< file and field of the template, for error messages
};

std::string token_text(const JsonView& json) {
    if (json.is_null()) return "";
    return json.is_string() ? json.string() : json.member("content").string();
}

void add_tokens(const JsonView& file, Tokens& tokens) {
    static constexpr std::array<const char*, 7> names{"bos_token", "eos_token", "unk_token", "sep_token",
                                                      "pad_token", "cls_token", "mask_token"};
    for (const char* name : names) {
        const bool known =
            std::any_of(tokens.begin(), tokens.end(), [&](const auto& token) { return token.first == name; });
        if (known) continue;
        if (std::string text = token_text(file.member(name)); !text.empty()) tokens.emplace_back(name, std::move(text));
    }
}

/// Reads "chat_template": a text, or a list of {"name", "template"}.
void read_templates(const JsonView& json, FolderFiles& files) {
    if (json.is_null()) return;
    if (json.is_string()) {
        files.chat_template = json.string();
        return;
    }
    for (std::size_t i = 0; i < json.list().size(); ++i) {
        const JsonView entry = json.item(i);
        const std::string& name = entry.member("name").string();
        if (name == "default" && files.chat_template.empty()) files.chat_template = entry.member("template").string();
        if (name == "tool_use") files.tool_template = entry.member("template").string();
    }
    if (files.chat_template.empty()) json.fail("a template named \"default\"", "none of that name");
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
        add_tokens(root, files.tokens);
        if (!with_template || !files.chat_template.empty()) continue;
        read_templates(root.member("chat_template"), files);
        files.place = file + ": chat_template";
    }
    const fs::path jinja = folder / "chat_template.jinja";
    if (!with_template || !fs::exists(jinja, ignored)) return files;
    files.chat_template = read_file(jinja, max_template_bytes);
    files.place = jinja.string();
    const fs::path of_tools = folder / "additional_chat_templates" / "tool_use.jinja";
    files.tool_template = fs::exists(of_tools, ignored) ? read_file(of_tools, max_template_bytes) : "";
    return files;
}

std::string names_in_words() {
    std::string words;
    for (const std::string& name : ChatTemplate::names()) words += (words.empty() ? "" : ", ") + name;
    return words;
}

/// Name of the built-in template that this published one is the same as; "" if it is another one.
std::string_view published_name(std::string_view text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
    for (const PublishedTemplate& known : published_templates) {
        if (known.hash == hash_of(text)) return known.name;
    }
    return "";
}

std::string* find_token(Tokens& tokens, std::string_view name) {
    const auto found =
        std::find_if(tokens.begin(), tokens.end(), [&](const auto& token) { return token.first == name; });
    return found == tokens.end() ? nullptr : &found->second;
}

/// Adds the published tokens of a built-in template that are not given. Returns the template's identity.
std::string complete_built_in(std::string_view name, Tokens& tokens) {
    const auto* published = std::find_if(published_tokens.begin(), published_tokens.end(),
                                         [&](const PublishedTokens& row) { return row.name == name; });
    std::string changed;
    for (const auto& [token, text] : {std::pair{"bos_token", published->bos}, {"eos_token", published->eos}}) {
        if (text.empty()) continue;
        const std::string* given = find_token(tokens, token);
        if (given == nullptr) {
            tokens.emplace_back(token, text);
        } else if (*given != text) {
            changed += (token == std::string_view("eos_token") ? " " : "") + *given;
        }
    }
    return std::string(name) + (changed.empty() ? "" : " (" + printable(changed, max_file_bytes) + ")");
}

std::string hash_identity(std::string_view text, const Tokens& tokens) {
    std::string all(text);
    for (const auto& [name, token] : tokens) all.append(1, '\0').append(name).append(1, '\0').append(token);
    return "jinja " + hex(hash_of(all));
}

jinja::Value message_value(const ChatMessage& message) {
    using jinja::Value;
    const auto text = [](std::string_view words) { return Value::text(std::string(words)); };
    Value content = Value::text(message.content);
    if (!message.parts.empty()) {
        std::vector<Value> parts;
        for (const std::string& part : message.parts)
            parts.push_back(Value::dict({{text("type"), text("text")}, {text("text"), text(part)}}));
        content = Value::list(std::move(parts));
    }
    std::vector<std::pair<Value, Value>> fields{{text("role"), text(message.role)},
                                                {text("content"), std::move(content)}};
    if (message.reasoning_content) fields.emplace_back(text("reasoning_content"), text(*message.reasoning_content));
    for (const auto& [name, json] : message.more) fields.emplace_back(text(name), jinja::value_of_json(json, name));
    return Value::dict(std::move(fields));
}

bool has_calls(const ChatMessage& message) {
    return std::any_of(message.more.begin(), message.more.end(),
                       [](const auto& field) { return field.first == "tool_calls"; });
}

/// The variable `tools`; null: there is none. The first of several counts.
const jinja::Value* find_tools(const jinja::Variables& variables) {
    const auto found = std::find_if(variables.begin(), variables.end(),
                                    [](const auto& variable) { return variable.first == "tools"; });
    return found == variables.end() || found->second.is(jinja::Kind::none) ? nullptr : &found->second;
}

}  // namespace

std::pair<std::string, jinja::Value> parse_template_variable(std::string_view text) {
    const std::size_t equals = text.find('=');
    std::string name(text.substr(0, equals));
    const auto is_word = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    const bool is_name =
        !name.empty() && std::all_of(name.begin(), name.end(), is_word) && (name[0] < '0' || name[0] > '9');
    if (equals == std::string_view::npos || !is_name)
        throw InputError("template-variable", "", "NAME=VALUE", in_quotes(text), "for example enable_thinking=false");
    if (name == "messages" || name == "add_generation_prompt")
        throw InputError("template-variable", "", "another name than messages and add_generation_prompt",
                         in_quotes(name));
    const std::string value(text.substr(equals + 1));
    try {
        return {std::move(name), jinja::value_of_json(value, "template-variable")};
    } catch (const InputError&) {
        return {std::move(name), jinja::Value::text(value)};
    }
}

std::optional<jinja::Date> parse_template_date(std::string_view text) {
    jinja::Date date;
    if (text.size() != 10 || text[4] != '-' || text[7] != '-') return std::nullopt;
    const auto read = [&](std::size_t at, std::size_t count, int& number) {
        const char* end = text.data() + at + count;
        const auto result = std::from_chars(text.data() + at, end, number);
        return result.ec == std::errc() && result.ptr == end && number > 0;
    };
    if (!read(0, 4, date.year) || !read(5, 2, date.month) || !read(8, 2, date.day)) return std::nullopt;
    const std::chrono::year_month_day day{std::chrono::year(date.year),
                                          std::chrono::month(static_cast<unsigned>(date.month)),
                                          std::chrono::day(static_cast<unsigned>(date.day))};
    return day.ok() ? std::optional(date) : std::nullopt;
}

const std::vector<std::string>& ChatTemplate::names() {
    static const std::vector<std::string> names{"llama2", "llama3", "llama3.1", "qwen2.5"};
    return names;
}

bool ChatTemplate::is_path(std::string_view text) {
    return text.ends_with(".jinja") || text.find('/') != std::string_view::npos;
}

/// Whether a name stands in the text, not as a part of a longer one ("xml_tools").
static bool has_name(std::string_view text, std::string_view name) {
    const auto is_word = [&](std::size_t at) {
        return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
    };
    for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
        if ((at == 0 || !is_word(at - 1)) && !is_word(at + name.size())) return true;
    }
    return false;
}

/// A template reads a name if it stands anywhere but in a comment.
ChatTemplate::Form ChatTemplate::form_of(const std::string& text, std::string place) {
    std::string code = text;
    for (std::size_t begin = code.find("{#"); begin != std::string::npos; begin = code.find("{#", begin)) {
        const std::size_t end = code.find("#}", begin);
        code.erase(begin, end == std::string::npos ? end : end + 2 - begin);
    }
    return {.parsed = jinja::Template::parse(text, std::move(place)),
            .shows_tools = has_name(code, "tools"),
            .shows_calls = has_name(code, "tool_calls")};
}

ChatTemplate ChatTemplate::load(std::string_view which, const fs::path& model_folder, ChatOptions options) {
    FolderFiles files = read_folder(model_folder, which == "auto");
    std::string text(built_in_chat_template(which));
    std::string place = "chat-template " + std::string(which);
    std::string_view name = text.empty() ? std::string_view() : which;
    if (which == "auto") {
        if (files.chat_template.empty()) {
            throw InputError(model_folder.string(), "chat_template", "a model with a chat template", "none",
                             "name one of " + names_in_words() + ", or a .jinja file, as chat-template");
        }
        text = std::move(files.chat_template);
        place = std::move(files.place);
    } else if (is_path(which)) {
        place = std::string(which);
        text = read_file(fs::path(which), max_template_bytes);
    } else if (name.empty()) {
        throw InputError("chat-template", "", "auto, one of " + names_in_words() + ", or a .jinja file",
                         in_quotes(which));
    }
    // With variables or another date, a published template may differ from the built-in one.
    const bool plain = options.variables.empty() && options.today == jinja::Date();
    if (name.empty() && plain) name = published_name(text);
    ChatTemplate made(form_of(text, place));
    made.identity_ = name.empty() ? hash_identity(text, files.tokens) : complete_built_in(name, files.tokens);
    made.tokens_ = std::move(files.tokens);
    made.options_ = std::move(options);
    if (which != "auto" || files.tool_template.empty()) return made;
    made.identity_ += ", tool_use " + hex(hash_of(files.tool_template));
    try {
        made.tool_form_ = form_of(files.tool_template, place + " (tool_use)");
    } catch (const InputError& error) {  // other chats do not need it
        made.tool_fault_ = error.what();
    }
    return made;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, std::string_view label,
                                 const jinja::Variables& own) const {
    using jinja::Value;
    if (messages.empty()) throw InputError(label, "messages", "at least one message", "none");
    const Value* const tools = find_tools(own);
    if (tools != nullptr && !tool_fault_.empty()) throw Error(std::string(label) + ": tools: " + tool_fault_);
    const Form& form = tool_form_ && tools != nullptr ? *tool_form_ : form_;
    const char* const other = "name another one as chat-template";
    if (!form.shows_tools && tools != nullptr && tools->truth())
        throw InputError(label, "tools", "a chat template that shows them", "one that does not", other);
    if (!form.shows_calls && std::any_of(messages.begin(), messages.end(), has_calls))
        throw InputError(label, "messages", "a chat template that shows tool_calls", "one that does not", other);
    std::vector<Value> list;
    for (const ChatMessage& message : messages) list.push_back(message_value(message));
    jinja::Variables variables{{"messages", Value::list(std::move(list))},
                               {"add_generation_prompt", Value::boolean(true)}};
    // The first of several variables of a name counts: the caller's replace tokens, tools and documents.
    variables.insert(variables.end(), own.begin(), own.end());
    variables.emplace_back("tools", Value::none());
    variables.emplace_back("documents", Value::none());
    for (const auto& [name, token] : tokens_) variables.emplace_back(name, Value::text(token));
    try {
        return form.parsed.render(variables, {.today = options_.today});
    } catch (const jinja::Raised& error) {
        throw InputError(label, "messages", "messages that the chat template accepts",
                         std::string("\"") + error.what() + "\"");
    }
}

}  // namespace longhaul::engine
