// Splits a template into tokens: text between the tags, and the words of the tags. White space around tags is removed
// as by jinja2 with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine::jinja {

enum class TokenKind : std::uint8_t {
    data,
    print_begin,  ///< {{
    print_end,
    block_begin,  ///< {%
    block_end,
    name,
    text,
    integer,
    real,
    symbol,  ///< an operator or bracket
    end
};

struct Token {
    TokenKind kind;
    int line;
    std::string word;          ///< data, name, symbol as written; text: after its escapes
    std::int64_t integer = 0;  ///< integer
    double real = 0;           ///< real
};

/// Throws InputError, with `file` and line, for what is no token.
std::vector<Token> tokenize(std::string_view source, std::string_view file);

/// Throws InputError: "FILE:LINE: CONSTRUCT: expected X, got Y".
[[noreturn]] void fail_at(std::string_view file, int line, std::string_view construct, std::string_view expected,
                          std::string_view got);

}  // namespace longhaul::engine::jinja
