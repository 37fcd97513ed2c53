// Loads vocab.json and merges.txt: byte-level BPE in the format of GPT-2, also used by OPT and others.
#include <algorithm>
#include <array>

#include "engine/tokenizer/pipeline.hpp"
#include "engine/tokenizer/tokenizer_config.hpp"

namespace longhaul::engine {

namespace {

constexpr std::int64_t max_vocabulary_bytes = std::int64_t{1} << 28;

void add_vocab_file(const JsonView& json, Vocabulary& vocabulary) {
    for (const auto& [token, unused] : json.object().items()) {
        const JsonView place = json.member(token);
        const auto id = static_cast<std::int32_t>(place.integer(0, max_token_id));
        if (vocabulary.add(token, id) != Vocabulary::Conflict::none)
            place.fail("a unique id", std::to_string(id) + ", which is " + in_quotes(vocabulary.text(id)));
    }
    if (vocabulary.size() == 0) json.fail("at least one token", "none");
}

std::vector<Merge> read_merges(std::string_view text, const std::string& file, const Vocabulary& vocabulary) {
    std::vector<Merge> merges;
    for (std::size_t line_number = 1; !text.empty(); ++line_number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.starts_with("#version") || line.empty()) continue;
        const auto refuse = [&](std::string_view expected, std::string_view got) {
            throw InputError(file, "line " + std::to_string(line_number), expected, in_quotes(got));
        };
        const std::size_t space = line.find(' ');
        if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
            refuse("two tokens with a space between them", line);
        const auto id_of = [&](std::string_view token) {
            const auto id = vocabulary.find(token);
            if (!id) refuse("tokens of vocab.json", token);
            return id.value_or(0);
        };
        const std::string_view left = line.substr(0, space);
        const std::string_view right = line.substr(space + 1);
        merges.push_back({id_of(left), id_of(right), id_of(std::string(left) + std::string(right)),
                          static_cast<std::int32_t>(merges.size())});
    }
    return merges;
}

// The two files do not contain the split pattern; the tokenizer class implies it. The known classes split like GPT-2 or
// like Qwen2.
bool splits_as_qwen2(const TokenizerConfig& config) {
    static constexpr std::array<std::string_view, 5> gpt2{"", "GPT2Tokenizer", "OPTTokenizer", "RobertaTokenizer",
                                                          "CodeGenTokenizer"};
    std::string_view name = config.tokenizer_class;
    if (name.ends_with("Fast")) name.remove_suffix(4);
    if (name == "Qwen2Tokenizer") return true;
    if (std::find(gpt2.begin(), gpt2.end(), name) == gpt2.end())
        throw InputError(config.file, "tokenizer_class", "GPT2Tokenizer or Qwen2Tokenizer beside a vocab.json",
                         in_quotes(config.tokenizer_class));
    return false;
}

}  // namespace

TokenizerParts load_vocab_and_merges(const std::filesystem::path& model_folder) {
    const std::string vocab_file = (model_folder / "vocab.json").string();
    const std::string merges_file = (model_folder / "merges.txt").string();
    const std::string vocab_bytes = read_file(vocab_file, max_vocabulary_bytes);
    const std::string merges_bytes = read_file(merges_file, max_vocabulary_bytes);
    const TokenizerConfig config = TokenizerConfig::load(model_folder);

    TokenizerParts parts;
    const Json json = parse_json(vocab_bytes, vocab_file);
    add_vocab_file(JsonView(json, vocab_file), parts.vocabulary);
    parts.merges = read_merges(merges_bytes, merges_file, parts.vocabulary);
    apply_added_tokens(config, parts);
    // GPT-2's own folder names no special tokens.
    const auto end_of_text = parts.vocabulary.find("<|endoftext|>");
    if (end_of_text && parts.added_tokens.empty()) {
        AddedToken token;
        token.content = "<|endoftext|>";
        token.id = *end_of_text;
        token.special = true;
        parts.added_tokens.push_back(std::move(token));
    }
    const bool qwen2 = splits_as_qwen2(config);
    if (qwen2) parts.normalizer = Normalizer::nfc();
    parts.pre_tokenizer = PreTokenizer::byte_level(qwen2 ? qwen2_pattern : gpt2_pattern,
                                                   config.add_prefix_space.value_or(false), vocab_file);
    parts.decoder = TextDecoder::byte_level();
    apply_bos(config, parts);
    parts.fingerprint = fingerprint_of({vocab_bytes, merges_bytes}, parts);
    return parts;
}

}  // namespace longhaul::engine
