// Arbitrary bytes as tokenizer files must give a one-line InputError or a tokenizer that meets the guarantees of
// tokenizer.hpp. The first byte of the input selects the file; for vocab.json and merges.txt a NUL separates the two.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/tokenizer_fuzz.cpp
//       engine/tokenizer/*.cpp engine/json.cpp -lpcre2-8 -lutf8proc -o tokenizer_fuzz
//   ./tokenizer_fuzz -max_len=8192
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/error.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace {

namespace fs = std::filesystem;
using longhaul::engine::Detokenizer;
using longhaul::engine::Tokenizer;

void require(bool holds) {
    if (!holds) std::abort();
}

const fs::path& folder() {
    static const fs::path path = [] {
        std::string name = (fs::temp_directory_path() / "longhaul-fuzz-XXXXXX").string();
        require(mkdtemp(name.data()) != nullptr);
        return fs::path(name);
    }();
    return path;
}

void write(const char* name, std::string_view bytes) {
    std::ofstream(folder() / name, std::ios::binary) << bytes;
}

void check(const Tokenizer& tokenizer) {
    const auto ids = tokenizer.encode("It was 12 the  best\n\xE2\x96\x81\xC3\xA9 \xF0\x9F\x98\x80<s>");
    for (const auto id : ids) require(id >= 0 && id < tokenizer.vocab_size());
    if (tokenizer.bos_id()) require(*tokenizer.bos_id() >= 0 && *tokenizer.bos_id() < tokenizer.vocab_size());
    require(!tokenizer.adds_bos() || tokenizer.bos_id());
    Detokenizer detokenizer(tokenizer, false);
    std::string text;
    for (const auto id : ids) text += detokenizer.push(id);
    text += detokenizer.finish();
    require(text == tokenizer.decode(ids, false));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"})
        fs::remove(folder() / name);
    switch (data[0] % 3) {
        case 0:
            write("tokenizer.json", bytes);
            break;
        case 1:
            write("tokenizer.model", bytes);
            break;
        default: {
            const std::size_t separator = std::min(bytes.find('\0'), bytes.size());
            write("vocab.json", bytes.substr(0, separator));
            write("merges.txt", bytes.substr(std::min(separator + 1, bytes.size())));
        }
    }
    try {
        check(*Tokenizer::load(folder()));
    } catch (const longhaul::InputError& error) {
        require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
    return 0;
}
