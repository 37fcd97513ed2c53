// Loads tokenizer.json, the format of the tokenizers package.
#include <algorithm>

#include "engine/tokenizer/pipeline.hpp"
#include "engine/tokenizer/tokenizer_config.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

namespace {

constexpr std::int64_t max_json_bytes = std::int64_t{1} << 28;

std::string id_of_other(std::int64_t id, const Vocabulary& vocabulary) {
    return std::to_string(id) + ", which is " + in_quotes(vocabulary.text(static_cast<std::int32_t>(id)));
}

void add_vocabulary(const JsonView& json, Vocabulary& vocabulary) {
    for (const auto& [token, value] : json.object().items()) {
        // Building a path is expensive, so it is done only for errors.
        const bool plain = value.is_number_unsigned() && value.get<std::uint64_t>() <= max_token_id;
        const std::int64_t id = plain ? value.get<std::int64_t>() : json.member(token).integer(0, max_token_id);
        if (vocabulary.add(token, static_cast<std::int32_t>(id)) != Vocabulary::Conflict::none)
            json.member(token).fail("a unique id", id_of_other(id, vocabulary));
    }
}

std::pair<std::string, std::string> merge_pair(const JsonView& json) {
    if (json.value().is_array()) {
        if (json.value().size() != 2) json.fail("a pair of tokens");
        return {json.item(0).string(), json.item(1).string()};
    }
    const std::string& text = json.string();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
        json.fail("two tokens with a space between them");
    return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<Merge> read_merges(const JsonView& json, const Vocabulary& vocabulary) {
    std::vector<Merge> merges;
    merges.reserve(json.list().size());
    for (std::size_t i = 0; i < json.list().size(); ++i) {
        const JsonView place = json.item(i);
        if (place.is_string() && place.string().starts_with("#version")) continue;
        const auto [left, right] = merge_pair(place);
        const auto id_of = [&](const std::string& token) {
            const auto id = vocabulary.find(token);
            if (!id) place.fail("tokens of the vocabulary", in_quotes(token));
            return *id;
        };
        merges.push_back({id_of(left), id_of(right), id_of(left + right), static_cast<std::int32_t>(merges.size())});
    }
    return merges;
}

void refuse_unless_empty(const JsonView& json) {
    if (!json.is_null() && !(json.is_string() && json.string().empty()))
        json.fail("null (other values are not supported)");
}

BpeOptions read_options(const JsonView& model, const Vocabulary& vocabulary) {
    BpeOptions options;
    const JsonView unk = model.member("unk_token");
    if (!unk.is_null()) {
        options.unk_id = vocabulary.find(unk.string());
        if (!options.unk_id) unk.fail("a token of the vocabulary");
    }
    options.fuse_unk = model.member("fuse_unk").boolean_or(false);
    options.ignore_merges = model.member("ignore_merges").boolean_or(false);
    const JsonView dropout = model.member("dropout");
    if (!dropout.is_null() && !(dropout.value().is_number() && dropout.value().get<double>() == 0.0))
        dropout.fail("null (a text must always give the same tokens)");
    refuse_unless_empty(model.member("continuing_subword_prefix"));
    refuse_unless_empty(model.member("end_of_word_suffix"));
    if (model.member("byte_fallback").boolean_or(false))
        options.byte_fallback = find_byte_tokens(vocabulary, options.byte_ids, model.file(), "model.vocab");
    return options;
}

void read_added_tokens(const JsonView& json, TokenizerParts& parts) {
    if (json.is_null()) return;
    for (std::size_t i = 0; i < json.list().size(); ++i) {
        const JsonView place = json.item(i);
        AddedToken token = added_token_of(place);
        const JsonView id = place.member("id");
        token.id = static_cast<std::int32_t>(id.integer(0, max_token_id));
        switch (parts.vocabulary.add(token.content, token.id)) {
            case Vocabulary::Conflict::none:
                parts.bpe.reserved_ids.push_back(token.id);
                break;
            case Vocabulary::Conflict::same_token:
                id.fail("the id of this token in the vocabulary, " +
                        std::to_string(*parts.vocabulary.find(token.content)));
            case Vocabulary::Conflict::same_id:
                if (parts.vocabulary.text(token.id) != token.content)
                    id.fail("a unique id", id_of_other(token.id, parts.vocabulary));
        }
        parts.added_tokens.push_back(std::move(token));
    }
}

// Reads what the template puts before the text: at most one token, which becomes the begin-of-text token.
void read_template(const JsonView& json, TokenizerParts& parts) {
    const JsonView tokens = json.member("special_tokens");
    const JsonView single = json.member("single");
    for (std::size_t i = 0; i < single.list().size(); ++i) {
        const JsonView item = single.item(i);
        if (!item.member("Sequence").is_null()) return;
        const JsonView name = item.member("SpecialToken").member("id");
        const JsonView ids = tokens.member(name.string()).member("ids");
        if (ids.list().size() != 1 || parts.adds_bos) ids.fail("one token before the text, at most");
        const auto id = static_cast<std::int32_t>(ids.item(0).integer(0, max_token_id));
        if (!parts.vocabulary.contains(id)) ids.item(0).fail("an id of the vocabulary");
        parts.bos_id = id;
        parts.adds_bos = true;
    }
}

void read_post_processor(const JsonView& json, TokenizerParts& parts) {
    if (json.is_null()) return;
    const std::string& type = json.type();
    if (type == "Sequence") {
        const JsonView processors = json.member("processors");
        for (std::size_t i = 0; i < processors.list().size(); ++i) read_post_processor(processors.item(i), parts);
    } else if (type == "TemplateProcessing") {
        read_template(json, parts);
    } else if (type != "ByteLevel") {
        json.member("type").fail("ByteLevel, TemplateProcessing or Sequence");
    }
}

}  // namespace

bool find_byte_tokens(const Vocabulary& vocabulary, std::array<std::int32_t, 256>& byte_ids, std::string_view file,
                      std::string_view field) {
    std::size_t num_found = 0;
    std::string first_missing;
    for (std::size_t byte = 0; byte < byte_ids.size(); ++byte) {
        constexpr std::string_view hex = "0123456789ABCDEF";
        const std::string token = std::string("<0x") + hex[byte / 16] + hex[byte % 16] + ">";
        const auto id = vocabulary.find(token);
        byte_ids[byte] = id.value_or(-1);
        num_found += id ? 1 : 0;
        // Below 0x80 a byte is a character of its own. Gemma 1 and 2 have "\t" in the place of <0x09>.
        const bool needed = byte >= 0x80 || !vocabulary.find(std::string(1, static_cast<char>(byte)));
        if (!id && needed && first_missing.empty()) first_missing = token;
    }
    if (num_found > 0 && !first_missing.empty())
        throw InputError(file, field, "tokens <0x00> to <0xFF> for all bytes, since byte_fallback is true",
                         "no " + first_missing);
    return num_found > 0;
}

TokenizerParts load_tokenizer_json(const std::filesystem::path& model_folder) {
    const std::string file = (model_folder / "tokenizer.json").string();
    const std::string bytes = read_file(file, max_json_bytes);
    const Json json = parse_json(bytes, file);
    const JsonView root(json, file);
    const JsonView model = root.member("model");
    if (const JsonView type = model.member("type"); !type.is_null() && type.string() != "BPE") type.fail("\"BPE\"");

    TokenizerParts parts;
    add_vocabulary(model.member("vocab"), parts.vocabulary);
    parts.merges = read_merges(model.member("merges"), parts.vocabulary);
    parts.bpe = read_options(model, parts.vocabulary);
    read_added_tokens(root.member("added_tokens"), parts);
    if (parts.vocabulary.size() == 0) model.member("vocab").fail("at least one token");
    parts.normalizer = Normalizer::from_json(root.member("normalizer"));
    parts.pre_tokenizer = PreTokenizer::from_json(root.member("pre_tokenizer"));
    parts.decoder = TextDecoder::from_json(root.member("decoder"));
    read_post_processor(root.member("post_processor"), parts);
    apply_bos(TokenizerConfig::load(model_folder), parts);
    parts.fingerprint = fingerprint_of({bytes}, parts);
    return parts;
}

}  // namespace longhaul::engine
