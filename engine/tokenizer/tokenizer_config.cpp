#include "engine/tokenizer/tokenizer_config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "engine/hash.hpp"

namespace longhaul::engine {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t max_config_bytes = std::int64_t{1} << 26;

/// Tokens in the order they were added. If two have the same content, the first one is kept.
class TokenList {
  public:
    void add(AddedToken token) {
        if (token.content.empty()) return;
        if (indices_.try_emplace(token.content, tokens.size()).second) tokens.push_back(std::move(token));
    }
    AddedToken* find(const std::string& content) {
        const auto found = indices_.find(content);
        return found == indices_.end() ? nullptr : &tokens[found->second];
    }

    std::vector<AddedToken> tokens;

  private:
    std::unordered_map<std::string, std::size_t> indices_;
};

// Reads a special token: a string, or an object as in tokenizer.json.
AddedToken named_token(const JsonView& json) {
    AddedToken token;
    if (json.is_string()) {
        token.content = json.string();
    } else {
        token = added_token_of(json);
    }
    token.special = true;
    return token;
}

void add_named_tokens(const JsonView& file, TokenList& tokens) {
    static constexpr std::array<std::string_view, 7> names{"bos_token", "eos_token", "unk_token", "sep_token",
                                                           "pad_token", "cls_token", "mask_token"};
    for (const std::string_view name : names) {
        const JsonView json = file.member(name);
        if (json.is_string() || json.is_object()) tokens.add(named_token(json));
    }
    const JsonView more = file.member("additional_special_tokens");
    if (more.is_null()) return;
    for (std::size_t i = 0; i < more.list().size(); ++i) tokens.add(named_token(more.item(i)));
}

std::int32_t parse_id(std::string_view digits, const JsonView& json) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    if (error != std::errc{} || end != digits.data() + digits.size() || id < 0 || id > max_token_id)
        json.fail("keys that are token ids", in_quotes(digits));
    return id;
}

// added_tokens_decoder: {"32000": {"content": ...}}
void add_decoder_tokens(const JsonView& json, TokenList& tokens) {
    if (json.is_null()) return;
    for (const auto& [digits, unused] : json.object().items()) {
        AddedToken token = added_token_of(json.member(digits));
        token.id = parse_id(digits, json);
        tokens.add(std::move(token));
    }
}

// added_tokens.json: {"<pad>": 32000}
void add_token_ids(const JsonView& json, TokenList& tokens) {
    for (const auto& [content, unused] : json.object().items()) {
        AddedToken token;
        token.content = content;
        token.id = static_cast<std::int32_t>(json.member(content).integer(0, max_token_id));
        token.normalized = true;
        tokens.add(std::move(token));
    }
}

template <class Read>
void read_if_there(const fs::path& path, Read&& read) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return;
    const Json json = read_json(path, max_config_bytes);
    const std::string file = path.string();
    read(JsonView(json, file));
}

}  // namespace

AddedToken added_token_of(const JsonView& json) {
    AddedToken token;
    const JsonView content = json.member("content");
    token.content = content.string();
    if (token.content.size() > AddedTokenMatcher::max_content_bytes)
        content.fail("at most " + std::to_string(AddedTokenMatcher::max_content_bytes) + " bytes",
                     std::to_string(token.content.size()));
    token.special = json.member("special").boolean_or(false);
    token.lstrip = json.member("lstrip").boolean_or(false);
    token.rstrip = json.member("rstrip").boolean_or(false);
    token.single_word = json.member("single_word").boolean_or(false);
    token.normalized = json.member("normalized").boolean_or(!token.special);
    return token;
}

TokenizerConfig TokenizerConfig::load(const fs::path& model_folder) {
    TokenizerConfig config;
    config.file = (model_folder / "tokenizer_config.json").string();
    const auto read_bos = [&](const JsonView& json) {
        const JsonView bos = json.member("bos_token");
        if (bos.is_null() || config.bos_token) return;
        if (!bos.is_string() && !bos.is_object()) bos.fail("a token or null");
        config.bos_token = named_token(bos).content;
    };
    TokenList known;
    TokenList named;
    read_if_there(model_folder / "tokenizer_config.json", [&](const JsonView& json) {
        const auto flag = [&](std::string_view key) -> std::optional<bool> {
            const JsonView value = json.member(key);
            return value.is_null() ? std::nullopt : std::optional(value.boolean_or(false));
        };
        read_bos(json);
        config.add_bos_token = flag("add_bos_token");
        config.add_prefix_space = flag("add_prefix_space");
        if (const JsonView name = json.member("tokenizer_class"); !name.is_null())
            config.tokenizer_class = name.string();
        add_decoder_tokens(json.member("added_tokens_decoder"), known);
        add_named_tokens(json, named);
    });
    read_if_there(model_folder / "special_tokens_map.json", [&](const JsonView& json) {
        read_bos(json);
        add_named_tokens(json, named);
    });
    read_if_there(model_folder / "added_tokens.json", [&](const JsonView& json) { add_token_ids(json, known); });
    for (AddedToken& token : named.tokens) {
        if (AddedToken* same = known.find(token.content)) same->special = true;
        known.add(std::move(token));
    }
    config.added_tokens = std::move(known.tokens);
    return config;
}

void apply_bos(const TokenizerConfig& config, TokenizerParts& parts) {
    if (config.bos_token) {
        // A bos_token that is not in the vocabulary is ignored unless add_bos_token is true.
        if (const auto id = parts.vocabulary.find(*config.bos_token)) {
            parts.bos_id = id;
        } else if (config.add_bos_token.value_or(false)) {
            throw InputError(config.file, "bos_token", "a token of the vocabulary, since add_bos_token is true",
                             in_quotes(*config.bos_token));
        }
    }
    if (config.add_bos_token) parts.adds_bos = *config.add_bos_token;
    if (parts.adds_bos && !parts.bos_id)
        throw InputError(config.file, "bos_token", "a token of the vocabulary, since add_bos_token is true", "nothing");
}

void apply_added_tokens(const TokenizerConfig& config, TokenizerParts& parts) {
    for (AddedToken token : config.added_tokens) {
        const auto known = parts.vocabulary.find(token.content);
        if (known && token.id >= 0 && *known != token.id)
            throw InputError(config.file, "added token " + in_quotes(token.content), "id " + std::to_string(*known),
                             std::to_string(token.id));
        if (!known && token.id < 0) continue;
        if (!known && parts.vocabulary.add(token.content, token.id) != Vocabulary::Conflict::none)
            throw InputError(config.file, "added token " + in_quotes(token.content), "a unique id",
                             std::to_string(token.id) + ", which is " + in_quotes(parts.vocabulary.text(token.id)));
        if (known) token.id = *known;
        if (!known) parts.bpe.reserved_ids.push_back(token.id);
        parts.added_tokens.push_back(std::move(token));
    }
}

std::uint64_t fingerprint_of(const std::vector<std::string>& files, const TokenizerParts& parts) {
    std::string choices = "bos " + std::to_string(parts.bos_id.value_or(-1)) + (parts.adds_bos ? " added" : "");
    for (const AddedToken& token : parts.added_tokens)
        choices.append("\n")
            .append(std::to_string(token.id))
            .append(token.special ? " special " : " ")
            .append(token.content);
    Hash hash;
    const auto update = [&](const std::string& bytes) {
        // Hash the length first, so that moving bytes from one file to the next changes the hash.
        hash.add(std::to_string(bytes.size()) + ":");
        hash.add(bytes);
    };
    for (const std::string& file : files) update(file);
    update(choices);
    return hash.value();
}

}  // namespace longhaul::engine
