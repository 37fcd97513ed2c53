// Runs a tokenizer over texts, for comparison with other implementations (compare_tokenizers.py).
//
//   tokenize encode MODEL_FOLDER   NUL-terminated texts on stdin; prints a line of ids for each
//   tokenize before MODEL_FOLDER   prints a line of the ids that are put before a text
//   tokenize decode MODEL_FOLDER   lines of ids on stdin; prints for each the decoded text without special tokens,
//                                  NUL, the decoded text with special tokens, NUL
//   tokenize chat MODEL_FOLDER     lines of JSON messages on stdin; prints for each the text of the model's own chat
//                                  template, NUL, a line of ids, NUL
//   tokenize render MODEL_FOLDER   lines of JSON {"messages": …, "variables": ["NAME=VALUE"]} on stdin; prints for each
//   the text of
//                                  the model's own chat template, or \x01 and an error, then NUL
//   tokenize time MODEL_FOLDER     one text on stdin; prints the seconds of loading and of encoding, and the number
//                                  of tokens
#include <chrono>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/chat_template.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace {

using longhaul::engine::ChatTemplate;
using longhaul::engine::Detokenizer;
using longhaul::engine::Tokenizer;

void print_ids(const std::vector<std::int32_t>& ids) {
    const char* separator = "";
    for (const auto id : ids) {
        std::cout << separator << id;
        separator = " ";
    }
}

void encode(const Tokenizer& tokenizer) {
    for (std::string text; std::getline(std::cin, text, '\0');) {
        print_ids(tokenizer.encode(text));
        std::cout << '\n';
    }
}

std::vector<longhaul::engine::ChatMessage> messages_of(const longhaul::engine::Json& list) {
    std::vector<longhaul::engine::ChatMessage> messages;
    for (const auto& json : list) {
        messages.push_back({json.at("role"), {}});
        if (json.at("content").is_string()) messages.back().content = json.at("content");
        if (json.at("content").is_array()) {
            for (const auto& part : json.at("content")) messages.back().parts.push_back(part.at("text"));
        }
    }
    return messages;
}

/// Renders without a tokenizer.
void render(const char* folder) {
    for (std::string line; std::getline(std::cin, line);) {
        const auto json = longhaul::engine::parse_json(line, "stdin");
        try {
            longhaul::engine::ChatOptions options;
            for (const auto& variable : json.at("variables"))
                options.variables.push_back(longhaul::engine::parse_template_variable(variable.get<std::string>()));
            std::cout << ChatTemplate::load("auto", folder, std::move(options))
                             .render(messages_of(json.at("messages")), "stdin");
        } catch (const longhaul::InputError& error) {
            std::cout << '\x01' << error.what();
        }
        std::cout << '\0';
    }
}

void render_chats(const Tokenizer& tokenizer, const ChatTemplate& chat) {
    for (std::string line; std::getline(std::cin, line);) {
        const std::string text = chat.render(messages_of(longhaul::engine::parse_json(line, "stdin")), "stdin");
        std::cout << text << '\0';
        print_ids(tokenizer.encode(text));
        std::cout << '\0';
    }
}

// Decodes whole and token by token; the two must agree.
bool decode(const Tokenizer& tokenizer) {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        const std::vector<std::int32_t> ids{std::istream_iterator<std::int32_t>(words), {}};
        for (const bool skip_special : {true, false}) {
            const std::string text = tokenizer.decode(ids, skip_special);
            Detokenizer detokenizer(tokenizer, skip_special);
            std::string streamed;
            for (const auto id : ids) streamed += detokenizer.push(id);
            streamed += detokenizer.finish();
            if (streamed != text) {
                std::cerr << "streamed and whole text differ for: " << line << '\n';
                return false;
            }
            std::cout << text << '\0';
        }
    }
    return true;
}

void measure(const char* folder) {
    using Clock = std::chrono::steady_clock;
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    const auto start = Clock::now();
    const auto tokenizer = Tokenizer::load(folder);
    const auto loaded = Clock::now();
    const auto ids = tokenizer->encode(text);
    const auto encoded = Clock::now();
    std::cout << "load " << std::chrono::duration<double>(loaded - start).count() << " s, encode "
              << std::chrono::duration<double>(encoded - loaded).count() << " s, " << text.size() << " bytes, "
              << ids.size() << " tokens\n";
}

}  // namespace

int main(int argc, char** argv) {
    std::ios::sync_with_stdio(false);
    const std::string mode = argc == 3 ? argv[1] : "";
    try {
        if (mode == "encode") {
            encode(*Tokenizer::load(argv[2]));
        } else if (mode == "before") {
            const auto tokenizer = Tokenizer::load(argv[2]);
            if (tokenizer->adds_bos()) std::cout << tokenizer->bos_id().value() << '\n';
        } else if (mode == "decode") {
            return decode(*Tokenizer::load(argv[2])) ? 0 : 1;
        } else if (mode == "chat") {
            render_chats(*Tokenizer::load(argv[2]), ChatTemplate::load("auto", argv[2]));
        } else if (mode == "render") {
            render(argv[2]);
        } else if (mode == "time") {
            measure(argv[2]);
        } else {
            std::cerr << "usage: tokenize encode|before|decode|chat|render|time MODEL_FOLDER < input\n";
            return 2;
        }
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
