// Loads tokenizer.model of SentencePiece, model type BPE (Kudo and Richardson 2018). Field numbers are those of
// sentencepiece_model.proto. SentencePiece merges two neighbours if their joined text is a piece, the highest score
// first. Bpe needs an explicit list of merges, so each piece gives one merge per split into two symbols.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

#include "engine/tokenizer/pipeline.hpp"
#include "engine/tokenizer/tokenizer_config.hpp"
#include "engine/tokenizer/unicode.hpp"
#include "engine/tokenizer/wire.hpp"

namespace longhaul::engine {

namespace {

constexpr std::int64_t max_model_bytes = std::int64_t{1} << 26;
// All splits of a piece are tried, so its cost is quadratic in its length. Published pieces have at most 16 characters,
// except user-defined ones.
constexpr std::size_t max_piece_bytes = 1024;

enum class PieceType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct ModelPiece {
    std::string_view text;
    float score = 0;
    PieceType type = PieceType::normal;
};

struct ModelFile {
    std::vector<ModelPiece> pieces;  // [token_id]
    std::int64_t model_type = 1;
    bool byte_fallback = false;
    bool treat_whitespace_as_suffix = false;
    std::int64_t bos_id = 1;
    std::string_view normalizer_name;
    std::string_view precompiled_charsmap;
    bool add_dummy_prefix = true;
    bool remove_extra_whitespaces = true;
    bool escape_whitespaces = true;
};

std::string piece_name(std::size_t index) {
    return "pieces[" + std::to_string(index) + "]";
}

ModelPiece read_piece(std::string_view message, std::string_view file, std::size_t index) {
    const std::string name = piece_name(index);
    ModelPiece piece;
    WireReader reader(message, file, name);
    while (reader.next()) {
        if (reader.field() == 1) piece.text = reader.bytes();
        if (reader.field() == 2) piece.score = reader.real();
        if (reader.field() == 3) {
            if (reader.integer() < 1 || reader.integer() > 6)
                reader.fail("a type from 1 to 6", std::to_string(reader.integer()));
            piece.type = static_cast<PieceType>(reader.integer());
        }
    }
    if (piece.text.empty() || piece.text.size() > max_piece_bytes)
        throw InputError(file, name, "a piece of 1 to 1024 bytes", std::to_string(piece.text.size()));
    if (!unicode::is_utf8(piece.text)) throw InputError(file, name, "UTF-8", in_quotes(piece.text));
    if (std::isnan(piece.score)) throw InputError(file, name, "a score", "not a number");
    if (piece.type == PieceType::unused) throw InputError(file, name, "a piece that is in use", "type UNUSED");
    return piece;
}

void read_trainer_spec(std::string_view message, std::string_view file, ModelFile& model) {
    WireReader reader(message, file, "trainer_spec");
    while (reader.next()) {
        if (reader.field() == 3) model.model_type = reader.integer();
        if (reader.field() == 24) model.treat_whitespace_as_suffix = reader.boolean();
        if (reader.field() == 35) model.byte_fallback = reader.boolean();
        if (reader.field() == 41) model.bos_id = reader.integer();
    }
}

void read_normalizer_spec(std::string_view message, std::string_view file, ModelFile& model) {
    WireReader reader(message, file, "normalizer_spec");
    while (reader.next()) {
        if (reader.field() == 1) model.normalizer_name = reader.bytes();
        if (reader.field() == 2) model.precompiled_charsmap = reader.bytes();
        if (reader.field() == 3) model.add_dummy_prefix = reader.boolean();
        if (reader.field() == 4) model.remove_extra_whitespaces = reader.boolean();
        if (reader.field() == 5) model.escape_whitespaces = reader.boolean();
    }
}

ModelFile read_model(std::string_view bytes, std::string_view file) {
    ModelFile model;
    WireReader reader(bytes, file, "ModelProto");
    while (reader.next()) {
        if (reader.field() == 1) model.pieces.push_back(read_piece(reader.bytes(), file, model.pieces.size()));
        if (reader.field() == 2) read_trainer_spec(reader.bytes(), file, model);
        if (reader.field() == 3) read_normalizer_spec(reader.bytes(), file, model);
        if (model.pieces.size() > static_cast<std::size_t>(max_token_id)) reader.fail("at most 1048575 pieces", "more");
    }
    return model;
}

std::string_view model_type_name(std::int64_t type) {
    switch (type) {
        case 1:
            return "UNIGRAM";
        case 2:
            return "BPE";
        case 3:
            return "WORD";
        case 4:
            return "CHAR";
        default:
            return "an unknown type";
    }
}

void check(const ModelFile& model, std::string_view file) {
    const auto refuse = [&](std::string_view field, std::string_view expected, std::string_view got) {
        throw InputError(file, field, expected, got);
    };
    if (model.pieces.empty()) refuse("pieces", "at least one piece", "none");
    if (model.model_type != 2) refuse("trainer_spec.model_type", "BPE", model_type_name(model.model_type));
    if (model.treat_whitespace_as_suffix) refuse("trainer_spec.treat_whitespace_as_suffix", "false", "true");
    if (!model.precompiled_charsmap.empty())
        refuse("normalizer_spec.name", "identity (character maps are not supported)", in_quotes(model.normalizer_name));
}

/// Turns the normal pieces into merges.
class MergeMaker {
  public:
    MergeMaker(const ModelFile& model, TokenizerParts& parts) : model_(model), parts_(parts) {
        for (std::size_t id = 0; id < model.pieces.size(); ++id)
            if (is_text(model.pieces[id])) text_ids_.emplace(model.pieces[id].text, static_cast<std::int32_t>(id));
        for (const auto& [text, id] : text_ids_) add_extra_chars(text);
    }

    void run() {
        const std::map<float, std::int32_t, std::greater<>> ranks = score_ranks();
        for (std::size_t id = 0; id < model_.pieces.size(); ++id)
            if (is_text(model_.pieces[id]))
                cut(model_.pieces[id].text, static_cast<std::int32_t>(id), ranks.at(model_.pieces[id].score));
    }

  private:
    static bool is_text(const ModelPiece& piece) { return piece.type == PieceType::normal; }

    // A character of a piece need not be a piece itself.
    void add_extra_chars(std::string_view text) {
        for (; !text.empty(); text.remove_prefix(unicode::char_bytes(text[0]))) {
            const std::string_view character = text.substr(0, unicode::char_bytes(text[0]));
            const auto id = static_cast<std::int32_t>(model_.pieces.size() + parts_.extra_chars.size());
            if (text_ids_.contains(character) || !extra_ids_.emplace(character, id).second) continue;
            parts_.extra_chars.emplace_back(character);
        }
    }

    [[nodiscard]] std::map<float, std::int32_t, std::greater<>> score_ranks() const {
        std::map<float, std::int32_t, std::greater<>> ranks;
        for (const ModelPiece& piece : model_.pieces) ranks.emplace(piece.score, 0);
        std::int32_t rank = 0;
        for (auto& [score, value] : ranks) value = rank++;
        return ranks;
    }

    [[nodiscard]] std::int32_t symbol_of(std::string_view text) const {
        if (const auto found = text_ids_.find(text); found != text_ids_.end()) return found->second;
        const auto extra = extra_ids_.find(text);
        return extra == extra_ids_.end() ? -1 : extra->second;
    }

    void cut(std::string_view text, std::int32_t id, std::int32_t rank) {
        for (std::size_t at = unicode::char_bytes(text[0]); at < text.size(); at += unicode::char_bytes(text[at])) {
            const std::int32_t left = symbol_of(text.substr(0, at));
            const std::int32_t right = left < 0 ? -1 : symbol_of(text.substr(at));
            if (right >= 0) parts_.merges.push_back({left, right, id, rank});
        }
    }

    const ModelFile& model_;
    TokenizerParts& parts_;
    std::unordered_map<std::string_view, std::int32_t> text_ids_;
    std::unordered_map<std::string_view, std::int32_t> extra_ids_;
};

void add_pieces(const ModelFile& model, std::string_view file, TokenizerParts& parts) {
    for (std::size_t index = 0; index < model.pieces.size(); ++index) {
        const ModelPiece& piece = model.pieces[index];
        const auto id = static_cast<std::int32_t>(index);
        if (parts.vocabulary.add(piece.text, id) != Vocabulary::Conflict::none)
            throw InputError(file, piece_name(index), "a unique piece", in_quotes(piece.text));
        if (piece.type != PieceType::normal) parts.bpe.reserved_ids.push_back(id);
        if (piece.type == PieceType::control || piece.type == PieceType::unknown) parts.special_ids.push_back(id);
        if (piece.type == PieceType::unknown) {
            if (parts.bpe.unk_id) throw InputError(file, piece_name(index), "one unknown piece", "another");
            parts.bpe.unk_id = id;
        }
        if (piece.type == PieceType::user_defined) {
            AddedToken token;
            token.content = piece.text;
            token.id = id;
            parts.verbatim_tokens.push_back(std::move(token));
        }
    }
    if (!parts.bpe.unk_id) throw InputError(file, "pieces", "an unknown piece", "none");
}

void add_byte_tokens(const ModelFile& model, std::string_view file, TokenizerParts& parts) {
    if (!model.byte_fallback) return;
    parts.bpe.byte_fallback = find_byte_tokens(parts.vocabulary, parts.bpe.byte_ids, file, "pieces");
    if (!parts.bpe.byte_fallback)
        throw InputError(file, "pieces", "pieces <0x00> to <0xFF>, since byte_fallback is true", "none");
    for (const std::int32_t id : parts.bpe.byte_ids) {
        if (id < 0)
            throw InputError(file, "pieces", "256 pieces <0x00> to <0xFF>, since byte_fallback is true", "fewer");
        if (model.pieces[id].type != PieceType::byte)
            throw InputError(file, piece_name(static_cast<std::size_t>(id)), "type BYTE", "another type");
    }
}

/// Matches the first line "IQ== 0" of a tiktoken file. Llama 3 was published in this format, which does not contain the
/// split pattern.
bool is_tiktoken(std::string_view bytes) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    const std::size_t space = line.find(' ');
    return space != std::string_view::npos && space > 0 && line.size() < 100 && line.substr(space + 1) == "0";
}

}  // namespace

TokenizerParts load_sentencepiece(const std::filesystem::path& model_folder) {
    const std::string file = (model_folder / "tokenizer.model").string();
    const std::string bytes = read_file(file, max_model_bytes);
    if (is_tiktoken(bytes)) {
        throw InputError(file, "", "a model of SentencePiece",
                         "ranks in the form of tiktoken; take the model in Hugging Face's layout, with tokenizer.json");
    }
    const ModelFile model = read_model(bytes, file);
    check(model, file);

    TokenizerParts parts;
    add_pieces(model, file, parts);
    add_byte_tokens(model, file, parts);
    parts.bpe.fuse_unk = true;
    MergeMaker(model, parts).run();
    parts.normalizer =
        Normalizer::sentencepiece(model.add_dummy_prefix, model.remove_extra_whitespaces, model.escape_whitespaces);
    parts.decoder = TextDecoder::sentencepiece(model.add_dummy_prefix);
    if (parts.vocabulary.contains(
            static_cast<std::int32_t>(std::clamp<std::int64_t>(model.bos_id, -1, max_token_id)))) {
        parts.bos_id = static_cast<std::int32_t>(model.bos_id);
        parts.adds_bos = true;  // default of the tokenizer classes that read these files
    } else if (model.bos_id >= 0) {
        throw InputError(file, "trainer_spec.bos_id", "an id of the vocabulary, or -1", std::to_string(model.bos_id));
    }
    const TokenizerConfig config = TokenizerConfig::load(model_folder);
    apply_added_tokens(config, parts);
    apply_bos(config, parts);
    parts.fingerprint = fingerprint_of({bytes}, parts);
    return parts;
}

}  // namespace longhaul::engine
