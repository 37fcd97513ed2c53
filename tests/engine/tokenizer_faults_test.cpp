// Invalid tokenizer files and the error message for each.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <functional>
#include <random>

#include "tests/engine/tokenizer_folder.hpp"

namespace longhaul::engine {
namespace {

struct Fault {
    const char* name;
    const char* kind;
    std::function<void(Json&)> change;
    const char* message;
};

void expect_line(const std::string& line, const std::string& expected, const char* name) {
    EXPECT_EQ(line, expected) << name;
    EXPECT_EQ(line.find('\n'), std::string::npos) << name;
}

const Fault json_faults[] = {
    {"unknown model", "llama3", [](Json& j) { j["model"]["type"] = "Unigram"; },
     R"(tokenizer.json: model.type: expected "BPE", got "Unigram")"},
    {"no model", "llama3", [](Json& j) { j.erase("model"); }, "tokenizer.json: model: expected an object, got null"},
    {"not an object", "llama3", [](Json& j) { j = Json::array(); },
     "tokenizer.json: top level: expected an object, got an array of 0"},
    {"no vocabulary", "llama3", [](Json& j) { j["model"].erase("vocab"); },
     "tokenizer.json: model.vocab: expected an object, got null"},
    {"negative id", "llama3", [](Json& j) { j["model"]["vocab"]["zz"] = -1; },
     "tokenizer.json: model.vocab.zz: expected an integer from 0 to 1048575, got -1"},
    {"huge id", "llama3", [](Json& j) { j["model"]["vocab"]["zz"] = 18446744073709551615U; },
     "tokenizer.json: model.vocab.zz: expected an integer from 0 to 1048575, got 18446744073709551615"},
    {"fractional id", "llama3", [](Json& j) { j["model"]["vocab"]["zz"] = 1.5; },
     "tokenizer.json: model.vocab.zz: expected an integer from 0 to 1048575, got 1.5"},
    {"id twice", "llama3", [](Json& j) { j["model"]["vocab"]["zz"] = j["model"]["vocab"]["a"]; },
     R"(tokenizer.json: model.vocab.zz: expected a unique id, got 64, which is "a")"},
    {"merge of an absent token", "llama3",
     [](Json& j) {
         j["model"]["merges"][3] = Json::array({"a", "zzz"});
     },
     R"(tokenizer.json: model.merges[3]: expected tokens of the vocabulary, got "zzz")"},
    {"merge into an absent token", "llama3", [](Json& j) { j["model"]["merges"][3] = "z q"; },
     R"(tokenizer.json: model.merges[3]: expected tokens of the vocabulary, got "zq")"},
    {"merge of three", "llama3", [](Json& j) { j["model"]["merges"][3] = "a b c"; },
     R"(tokenizer.json: model.merges[3]: expected two tokens with a space between them, got "a b c")"},
    {"merge of one", "llama3", [](Json& j) { j["model"]["merges"][3] = Json::array({"a"}); },
     "tokenizer.json: model.merges[3]: expected a pair of tokens, got an array of 1"},
    {"merge of numbers", "llama3",
     [](Json& j) {
         j["model"]["merges"][3] = Json::array({1, 2});
     },
     "tokenizer.json: model.merges[3][0]: expected a string, got 1"},
    {"no merges", "llama3", [](Json& j) { j["model"]["merges"] = "x"; },
     R"(tokenizer.json: model.merges: expected a list, got "x")"},
    {"unknown token absent", "llama3", [](Json& j) { j["model"]["unk_token"] = "<nope>"; },
     R"(tokenizer.json: model.unk_token: expected a token of the vocabulary, got "<nope>")"},
    {"dropout", "llama3", [](Json& j) { j["model"]["dropout"] = 0.1; },
     "tokenizer.json: model.dropout: expected null (a text must always give the same tokens), got 0.1"},
    {"prefix of subwords", "llama3", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; },
     R"(tokenizer.json: model.continuing_subword_prefix: expected null (other values are not supported), got "##")"},
    {"malformed byte token", "llama2",
     [](Json& j) {
         j["model"]["vocab"]["<0xG1>"] = j["model"]["vocab"]["<0xC1>"];
         j["model"]["vocab"].erase("<0xC1>");
     },
     "tokenizer.json: model.vocab: expected tokens <0x00> to <0xFF> for all bytes, since byte_fallback is true, got no "
     "<0xC1>"},
    {"added token with another id", "llama2", [](Json& j) { j["added_tokens"][1]["id"] = 77'777; },
     "tokenizer.json: added_tokens[1].id: expected the id of this token in the vocabulary, 1, got 77777"},
    {"added token with the id of another", "llama3", [](Json& j) { j["added_tokens"][0]["id"] = 64; },
     R"(tokenizer.json: added_tokens[0].id: expected a unique id, got 64, which is "a")"},
    {"special id beyond all vocabularies", "llama3", [](Json& j) { j["added_tokens"][0]["id"] = 1'000'000'000; },
     "tokenizer.json: added_tokens[0].id: expected an integer from 0 to 1048575, got 1000000000"},
    {"special id absent", "llama3", [](Json& j) { j["added_tokens"][0].erase("id"); },
     "tokenizer.json: added_tokens[0].id: expected an integer from 0 to 1048575, got null"},
    {"special id of the template beyond the vocabulary", "llama3",
     [](Json& j) { j["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"][0] = 99'999; },
     "tokenizer.json: post_processor.processors[1].special_tokens.<|begin_of_text|>.ids[0]: expected an id of the "
     "vocabulary, got 99999"},
    {"template without its token", "llama3",
     [](Json& j) { j["post_processor"]["processors"][1]["special_tokens"] = Json::object(); },
     "tokenizer.json: post_processor.processors[1].special_tokens.<|begin_of_text|>: expected an object, got null"},
    {"flag of a wrong type", "llama3", [](Json& j) { j["added_tokens"][0]["special"] = "yes"; },
     R"(tokenizer.json: added_tokens[0].special: expected true or false, got "yes")"},
    {"long added token", "llama3", [](Json& j) { j["added_tokens"][0]["content"] = std::string(2000, 'x'); },
     "tokenizer.json: added_tokens[0].content: expected at most 1024 bytes, got 2000"},
    {"unknown normalizer", "qwen2", [](Json& j) { j["normalizer"]["type"] = "Precompiled"; },
     "tokenizer.json: normalizer.type: expected NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or Sequence, "
     "got "
     R"("Precompiled")"},
    {"normalizer that multiplies", "qwen2",
     [](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(300, 'a')}};
     },
     "tokenizer.json: normalizer.content: expected a text of at most 256 bytes, got "
     "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "aaaaaaaaaaaaaaaaaaaaaaaaa...\""},
    {"unknown pre-tokenizer", "llama3", [](Json& j) { j["pre_tokenizer"]["type"] = "BertPreTokenizer"; },
     "tokenizer.json: pre_tokenizer.type: expected ByteLevel, Digits, Metaspace, Punctuation, Split, Whitespace, "
     R"(WhitespaceSplit or Sequence, got "BertPreTokenizer")"},
    {"pattern that does not compile", "llama3",
     [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
     "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern.Regex: expected a regular expression, got missing closing "
     "parenthesis"},
    {"unknown behaviour", "llama3", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Eaten"; },
     "tokenizer.json: pre_tokenizer.pretokenizers[0].behavior: expected Isolated, Removed, MergedWithPrevious, "
     R"(MergedWithNext or Contiguous, got "Eaten")"},
    {"unknown decoder", "llama3", [](Json& j) { j["decoder"]["type"] = "WordPiece"; },
     "tokenizer.json: decoder.type: expected ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip or Sequence, got "
     R"("WordPiece")"},
    {"decoders in an order that is not known", "llama2",
     [](Json& j) { std::swap(j["decoder"]["decoders"][0], j["decoder"]["decoders"][2]); },
     "tokenizer.json: decoder.decoders[1].type: expected nothing but Strip behind ByteLevel or Fuse, got "
     "\"ByteFallback\""},
    {"unknown post-processor", "llama3", [](Json& j) { j["post_processor"]["type"] = "Magic"; },
     R"(tokenizer.json: post_processor.type: expected ByteLevel, TemplateProcessing or Sequence, got "Magic")"},
    {"too many steps", "llama3",
     [](Json& j) {
         j["decoder"] = {{"type", "Sequence"}, {"decoders", Json::array()}};
         for (int i = 0; i < 100; ++i) j["decoder"]["decoders"].push_back({{"type", "Fuse"}});
     },
     "tokenizer.json: decoder.decoders[64]: expected at most 64 decoders, got an object of 1"},
};

TEST(TokenizerFaults, TokenizerJson) {
    for (const Fault& fault : json_faults) {
        TokenizerFolder folder(fault.kind);
        folder.edit("tokenizer.json", fault.change);
        expect_line(folder.error(), fault.message, fault.name);
    }
}

TEST(TokenizerFaults, TokenizerConfig) {
    const Fault faults[] = {
        {"begin-of-text asked for and absent", "qwen2", [](Json& j) { j["add_bos_token"] = true; },
         "tokenizer_config.json: bos_token: expected a token of the vocabulary, since add_bos_token is true, got "
         "nothing"},
        {"begin-of-text asked for and unknown", "qwen2",
         [](Json& j) { j["add_bos_token"] = true, j["bos_token"] = "<nope>"; },
         "tokenizer_config.json: bos_token: expected a token of the vocabulary, since add_bos_token is true, got "
         R"("<nope>")"},
        {"begin-of-text of a wrong type", "qwen2", [](Json& j) { j["bos_token"] = 7; },
         "tokenizer_config.json: bos_token: expected a token or null, got 7"},
        {"flag of a wrong type", "qwen2", [](Json& j) { j["add_bos_token"] = 1; },
         "tokenizer_config.json: add_bos_token: expected true or false, got 1"},
        {"class that splits another way", "opt", [](Json& j) { j["tokenizer_class"] = "XLMTokenizer"; },
         "tokenizer_config.json: tokenizer_class: expected GPT2Tokenizer or Qwen2Tokenizer beside a vocab.json, got "
         R"("XLMTokenizer")"},
        {"added token without an id", "opt",
         [](Json& j) {
             j["added_tokens_decoder"]["x7"] = {{"content", "<q>"}};
         },
         R"(tokenizer_config.json: added_tokens_decoder: expected keys that are token ids, got "x7")"},
        {"added token with the id of another", "opt",
         [](Json& j) {
             j["added_tokens_decoder"]["3"] = {{"content", "<q>"}};
         },
         R"(tokenizer_config.json: added token "<q>": expected a unique id, got 3, which is "<unk>")"},
    };
    for (const Fault& fault : faults) {
        TokenizerFolder folder(fault.kind);
        folder.edit("tokenizer_config.json", fault.change);
        expect_line(folder.error(), fault.message, fault.name);
    }
}

TEST(TokenizerFaults, VocabAndMerges) {
    TokenizerFolder folder("opt");
    const std::string merges = folder.read("merges.txt");
    folder.write("merges.txt", merges + "a zzz\n");
    EXPECT_TRUE(folder.error().ends_with(R"(: expected tokens of vocab.json, got "zzz")")) << folder.error();
    folder.write("merges.txt", "#version: 0.2\nab\n");
    EXPECT_EQ(folder.error(), R"(merges.txt: line 2: expected two tokens with a space between them, got "ab")");
    folder.write("merges.txt", "#version: 0.2\r\nt h\r\n\r\n");
    EXPECT_EQ(folder.error(), "(no error)");
    folder.write("vocab.json", R"({"a": 0, "b": 0})");
    EXPECT_EQ(folder.error(), R"(vocab.json: b: expected a unique id, got 0, which is "a")");
    folder.write("vocab.json", "{}");
    EXPECT_EQ(folder.error(), "vocab.json: top level: expected at least one token, got none");
}

TEST(TokenizerFaults, BytesThatAreNoJson) {
    TokenizerFolder folder;
    EXPECT_EQ(folder.error(),
              folder.path().string() +
                  ": tokenizer: expected tokenizer.json, vocab.json with merges.txt, or tokenizer.model, "
                  "got none of them");
    folder.write("tekken.json", "{}");
    EXPECT_TRUE(
        folder.error().ends_with("got tekken.json alone; take tokenizer.json from another folder with this "
                                 "tokenizer"))
        << folder.error();
    for (const std::string& text :
         {std::string(), std::string("{"), std::string("\xFF"), std::string("\0", 1), std::string(500'000, '['),
          R"({"model": {"vocab": {"\ud800": 1}}})" + std::string(), std::string(R"({"a": 1, "a": 2})")}) {
        folder.write("tokenizer.json", text);
        EXPECT_NE(folder.error(), "(no error)") << text.substr(0, 40);
        EXPECT_EQ(folder.error().find('\n'), std::string::npos);
    }
    folder.remove("tokenizer.json");
    std::filesystem::create_directory(folder.path() / "tokenizer.json");
    EXPECT_NE(folder.error(), "(no error)");
}

// --- tokenizer.model ---

std::string field(int number, int kind) {
    return {static_cast<char>(number << 3 | kind)};
}
std::string message(int number, const std::string& bytes) {
    return field(number, 2) + static_cast<char>(bytes.size()) + bytes;  // shorter than 128 bytes
}
std::string piece(const std::string& text, int type) {
    return message(1, message(1, text) + field(2, 5) + std::string(4, '\0') + field(3, 0) + static_cast<char>(type));
}
const std::string bpe = message(2, field(3, 0) + '\x02');
const std::string unknown = piece("<unk>", 2);
const std::string control = piece("<s>", 3);

std::string byte_pieces_but_the_tab() {
    std::string pieces = piece("\t", 1);
    for (int byte = 0; byte < 256; ++byte) {
        std::array<char, 7> name{};
        std::snprintf(name.data(), name.size(), "<0x%02X>", static_cast<unsigned>(byte));
        if (byte != '\t') pieces += piece(name.data(), 6);
    }
    return pieces;
}

TEST(TokenizerFaults, SentencePiece) {
    struct Case {
        std::string bytes;
        const char* message;
    };
    const Case cases[] = {
        {bpe + unknown + control + piece("a", 1), "(no error)"},
        {"", "pieces: expected at least one piece, got none"},
        {unknown + control, "trainer_spec.model_type: expected BPE, got UNIGRAM"},
        {bpe + control + piece("a", 1), "pieces: expected an unknown piece, got none"},
        {bpe + unknown, "trainer_spec.bos_id: expected an id of the vocabulary, or -1, got 1"},
        {bpe + unknown + unknown, R"(pieces[1]: expected a unique piece, got "<unk>")"},
        {bpe + unknown + piece("<unk2>", 2), "pieces[1]: expected one unknown piece, got another"},
        {bpe + unknown + piece("", 1), "pieces[1]: expected a piece of 1 to 1024 bytes, got 0"},
        {bpe + unknown + piece("\xFF", 1), "pieces[1]: expected UTF-8, got \"\\xff\""},
        {bpe + unknown + piece("a", 9), "pieces[1], field 3, byte 10: expected a type from 1 to 6, got 9"},
        {bpe + unknown + piece("a", 5), "pieces[1]: expected a piece that is in use, got type UNUSED"},
        {bpe + unknown + message(2, field(35 & 15, 0)), nullptr},
        {message(2, field(3, 0) + '\x02' + std::string("\x98\x02\x01", 3)) + unknown + control,
         "pieces: expected pieces <0x00> to <0xFF>, since byte_fallback is true, got none"},
        {message(2, field(3, 0) + '\x02' + std::string("\x98\x02\x01", 3)) + unknown + control + piece("<0x41>", 6),
         "pieces: expected tokens <0x00> to <0xFF> for all bytes, since byte_fallback is true, got no <0x00>"},
        {message(2, field(3, 0) + '\x02' + std::string("\x98\x02\x01", 3)) + unknown + control +
             byte_pieces_but_the_tab(),
         "pieces: expected 256 pieces <0x00> to <0xFF>, since byte_fallback is true, got fewer"},
        {bpe + message(3, message(1, "nmt_nfkc") + message(2, "x")) + unknown + control,
         "normalizer_spec.name: expected identity (character maps are not supported), got \"nmt_nfkc\""},
        {message(2, field(3, 0) + '\x02' + std::string("\xC0\x01\x01", 3)) + unknown + control,
         "trainer_spec.treat_whitespace_as_suffix: expected false, got true"},
        {std::string("\x0A\x7F", 2), "ModelProto, field 1, byte 2: expected at most 0 bytes, got 127"},
        {std::string("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11),
         "ModelProto, field 1, byte 11: expected at most 0 bytes, got 18446744073709551615"},
        {std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11),
         "ModelProto, byte 10: expected an integer of at most 10 bytes, got a longer one"},
        {std::string("\x0B", 1), "ModelProto, field 1, byte 1: expected a field of Protocol Buffers, got kind 3"},
        {std::string("\x02\x00", 2), "ModelProto, byte 2: expected a field of Protocol Buffers, got number 0"},
        {std::string("\x08\x01", 2), "ModelProto, field 1, byte 2: expected kind 2, got kind 0"},
        {"IQ== 0\nIg== 1\n", nullptr},  // the format that other programs call tokenizer.model
    };
    TokenizerFolder folder;
    for (const Case& c : cases) {
        folder.write("tokenizer.model", c.bytes);
        const std::string expected =
            c.message && c.message[0] != '(' ? std::string("tokenizer.model: ") + c.message : "";
        if (!c.message) {
            EXPECT_TRUE(folder.error().starts_with("tokenizer.model: ")) << folder.error();
        } else if (expected.empty()) {
            EXPECT_EQ(folder.error(), c.message);
        } else {
            expect_line(folder.error(), expected, c.message);
        }
    }
}

// Random bytes of any file are changed: loading gives an error or a working tokenizer, never a crash (also run under
// the sanitizers).
TEST(TokenizerFaults, DamagedBytesNeverCrash) {
    std::mt19937 random(3);
    int num_errors = 0;
    for (const auto& [kind, file] : {std::pair<const char*, const char*>{"sentencepiece", "tokenizer.model"},
                                     {"llama2", "tokenizer.json"},
                                     {"opt", "merges.txt"},
                                     {"opt", "vocab.json"}}) {
        TokenizerFolder folder(kind);
        const std::string original = folder.read(file);
        for (int round = 0; round < 60; ++round) {
            std::string bytes = original;
            for (int i = 0; i < 1 + round % 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
            if (round % 4 == 0) bytes.resize(random() % bytes.size());
            folder.write(file, bytes);
            num_errors += folder.error() != "(no error)";
            if (folder.error() != "(no error)") continue;
            const auto tokenizer = folder.load();
            tokenizer->decode(tokenizer->encode("It was the best of times \xF0\x9F\x98\x80"), false);
        }
    }
    EXPECT_GT(num_errors, 40);
}

}  // namespace
}  // namespace longhaul::engine
