// Arbitrary bytes as a chat template must give a text, or an error of one line, soon.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/jinja_fuzz.cpp
//       engine/tokenizer/jinja/*.cpp engine/tokenizer/{json_view,unicode}.cpp engine/json.cpp -lutf8proc -o jinja_fuzz
//   ./jinja_fuzz -max_len=8192
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/error.hpp"
#include "engine/tokenizer/jinja/template.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace {

using namespace longhaul::engine;

void require(bool holds) {
    if (!holds) std::abort();
}

/// Variables of the goldens (tests/data/jinja), and those of a chat.
const jinja::Variables& variables() {
    static const jinja::Variables all = [] {
        const jinja::Value object = jinja::value_of_json(
            R"({"messages": [{"role": "system", "content": " S "}, {"role": "user", "content": "Hi\nthere"},
                {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello é"}], "items": [3, 1, 2],
                "words": ["b", "A"], "people": [{"name": "Bo", "age": 7}, {"name": "al", "age": 5, "tags": ["x"]}],
                "d": {"b": 1, "a": [1, 2.5, null], "c": {"k": "v"}}, "n": 7, "f": 2.5, "s": "Hello, World", "u": "é中x",
                "yes": true, "no": false, "nothing": null, "empty": "", "html": "<a>&'</a>", "tools": null,
                "add_generation_prompt": true, "bos_token": "<s>"})",
            "variables");
        jinja::Variables named;
        for (const auto& [key, value] : object.as_dict().items) named.emplace_back(key.bytes(), value);
        return named;
    }();
    return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    try {
        const std::string text = jinja::Template::parse(source, "t").render(variables());
        require(unicode::is_utf8(text));
    } catch (const longhaul::InputError& error) {
        require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    } catch (const jinja::Raised& error) {
        require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
    return 0;
}
