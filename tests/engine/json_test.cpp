// Malformed JSON and its error messages, one row per case. The rows document engine/json.hpp.
#include "engine/json.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const InputError& error) {
        return error.what();
    }
    return "(no error)";
}

TEST(Json, BadTextIsRefusedWithItsPlace) {
    const std::string high = "invalid string: surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF";
    const std::string low = "invalid string: surrogate U+DC00..U+DFFF must follow U+D800..U+DBFF";
    const std::string utf8 = "invalid string: ill-formed UTF-8 byte";
    struct Case {
        std::string text;
        std::string message;  // after "f.json: "
    };
    const Case cases[] = {
        // Syntax.
        {R"()", "@0: expected '[', '{', or a literal, got end of input"},
        {R"({"a": )", "a@6: expected '[', '{', or a literal, got end of input"},
        {R"({"a" 1})", "a@5: expected ':', got number literal"},
        {R"({"a": [1, 2)", "a[2]@11: expected ']', got end of input"},
        {R"({"a": 1} x)", "@9: expected end of input, got invalid literal at the end of '1} x'"},
        {R"([1,])", "[1]@3: expected '[', '{', or a literal, got ']'"},
        {R"({1: 2})", "@1: expected string literal, got number literal"},
        {R"([1] // note)", "@4: expected end of input, got invalid literal at the end of '1] /'"},
        {R"({"a": 'b'})", R"(a@6: expected JSON, got invalid literal at the end of '"a": '')"},
        {std::string("[1]\0[2]", 7), "@3: expected JSON, got a NUL byte"},
        // Where JSON allows several readings and parsers disagree.
        {R"({"m": {"x": 1, "y": 2, "x": 3}})", "m.x: expected every key once, got this key twice"},
        {R"([{}, {"a\nb": 1, "a\nb": 2}])", R"([2].a\x0ab: expected every key once, got this key twice)"},
        // Numbers.
        {R"({"a": 1e400})", "a@10: expected a number within the range of double, got '1e400'"},
        {R"([-1e400])", "[0]@6: expected a number within the range of double, got '-1e400'"},
        {R"([NaN])", "[0]@1: expected JSON, got invalid literal at the end of '[N'"},
        {R"([01])", "[1]@2: expected ']', got number literal"},
        // Characters.
        {R"(["\ud800"])", "[0]@8: expected JSON, got " + high + R"( at the end of '"\ud800"')"},
        {R"(["\ud800\ud800"])", "[0]@13: expected JSON, got " + high + R"( at the end of '"\ud800\ud800')"},
        {R"(["\udc00"])", "[0]@7: expected JSON, got " + low + R"( at the end of '"\udc00')"},
        {"[\"\xED\xA0\x80\"]", "[0]@3: expected JSON, got " + utf8 + R"( at the end of '"\xed\xa0')"},
        {"[\"\xFF\"]", "[0]@2: expected JSON, got " + utf8 + R"( at the end of '"\xff')"},
        {"[\"\xC0\xAF\"]", "[0]@2: expected JSON, got " + utf8 + R"( at the end of '"\xc0')"},
        {"[\"abc", R"([0]@5: expected JSON, got invalid string: missing closing quote at the end of '"abc')"},
        {"\xEF\xBB", R"(@2: expected JSON, got invalid BOM; must be 0xEF 0xBB 0xBF if given at the end of '\xef\xbb')"},
    };
    for (const Case& row : cases) {
        EXPECT_EQ(message_of([&] { parse_json(row.text, "f.json"); }), "f.json: " + row.message) << row.text;
    }
}

TEST(Json, MessagesStayShortWhateverTheInput) {
    const std::string long_key(100000, 'k');
    const std::string texts[] = {
        "{\"" + long_key + "\": {\"" + long_key + "\": 1e400}}",
        "[\"" + long_key + "\xFF\"]",
        "{\"" + long_key + "\": 1, \"" + long_key + "\": 2}",
        std::string("[").append(5000, '9') + "e999]",
    };
    for (const std::string& text : texts) {
        const std::string message = message_of([&] { parse_json(text, "f.json"); });
        EXPECT_NE(message, "(no error)");
        EXPECT_LT(message.size(), 400U) << message;
    }
}

TEST(Json, DeepNestingIsRefusedNotFollowed) {
    const std::size_t levels = 500000;
    const std::string expected = ": expected at most 64 levels of nesting, got more";
    std::string objects;
    for (std::size_t i = 0; i < levels; ++i) objects += R"({"a":)";
    for (const std::string& text : {std::string(levels, '['), objects}) {
        EXPECT_NE(message_of([&] { parse_json(text, "f.json"); }).find(expected), std::string::npos);
    }
    const std::string fine = std::string(64, '[') + std::string(64, ']');
    EXPECT_EQ(message_of([&] { parse_json(fine, "f.json"); }), "(no error)");
}

TEST(Json, GoodTextIsReadExactly) {
    const Json json = parse_json(
        "\xEF\xBB\xBF{\"n\": -9223372036854775808, \"u\": 18446744073709551615, \"x\": 1e-7, "
        "\"s\": \"\\ud83d\\ude00\\u0000\", \"a\": [null, true, {\"k\": []}]}  ",
        "f.json");
    EXPECT_EQ(json["n"].get<std::int64_t>(), INT64_MIN);
    EXPECT_EQ(json["u"].get<std::uint64_t>(), UINT64_MAX);
    EXPECT_EQ(json["x"].get<double>(), 1e-7);
    EXPECT_EQ(json["s"].get<std::string>(), std::string("\xF0\x9F\x98\x80\0", 5));
    EXPECT_EQ(json_text(json["a"]), R"([null,true,{"k":[]}])");
}

TEST(Json, MembersAreChecked) {
    const Json json = parse_json(R"({"small": 3, "half": 1.5, "whole": 2.0, "text": "3", "huge": 1e18, "list": [1, 2],
                                     "beyond": 18446744073709551615, "none": null, "yes": true, "object": {"k": 1}})",
                                 "f.json");
    const auto integer = [&](const char* key) { return [&json, key] { get_int(json, key, 1, 10, "f.json", "top"); }; };
    struct Case {
        const char* key;
        const char* got;
    };
    const Case cases[] = {
        {"absent", "nothing"},     {"none", "null"},
        {"half", "1.5"},           {"whole", "2.0"},
        {"text", R"("3")"},        {"huge", "1e+18"},
        {"list", "an array of 2"}, {"beyond", "18446744073709551615"},
        {"yes", "true"},           {"object", "an object of 1"},
    };
    for (const Case& row : cases) {
        EXPECT_EQ(message_of(integer(row.key)),
                  std::string("f.json: top.") + row.key + ": expected an integer from 1 to 10, got " + row.got);
    }
    EXPECT_EQ(get_int(json, "small", 3, 3, "f.json"), 3);
    EXPECT_EQ(get_int_or(json, "none", 7, 0, 10, "f.json"), 7);
    EXPECT_EQ(get_int_or(json, "absent", 7, 0, 1, "f.json"), 7);
    EXPECT_EQ(get_double_or(json, "half", 0, "f.json"), 1.5);
    EXPECT_EQ(get_double_or(json, "small", 0, "f.json"), 3.0);
    EXPECT_TRUE(get_bool_or(json, "yes", false, "f.json"));
    EXPECT_EQ(get_string_or(json, "text", "", "f.json"), "3");
    EXPECT_EQ(message_of([&] { get_double_or(json, "text", 0, "f.json"); }),
              R"(f.json: text: expected a number, got "3")");
    EXPECT_EQ(message_of([&] { get_bool_or(json, "small", false, "f.json"); }),
              "f.json: small: expected true or false, got 3");
    EXPECT_EQ(message_of([&] { get_string_or(json, "small", "", "f.json"); }),
              "f.json: small: expected a string, got 3");
    EXPECT_EQ(message_of([&] { get_int(json["list"], "k", 0, 1, "f.json", "list"); }),
              "f.json: list: expected an object, got an array of 2");
}

TEST(Json, MembersAreFoundAsTheyStand) {
    const std::string json =
        R"( {"a": {"b": [1, {"c": "}"}], "c" : { "z":1.50, "y" : "\"{" } }, "\u0064": "x", "e":-1e5,"f":null})";
    const auto text = [&](std::vector<std::string> path) { return member_text(json, path); };
    EXPECT_EQ(text({"a", "c"}), R"({ "z":1.50, "y" : "\"{" })");
    EXPECT_EQ(text({"a", "b"}), R"([1, {"c": "}"}])");
    EXPECT_EQ(text({"a", "c", "z"}), "1.50");
    EXPECT_EQ(text({"d"}), "\"x\"");
    EXPECT_EQ(text({"e"}), "-1e5");
    EXPECT_EQ(text({"f"}), "null");
    EXPECT_EQ(text({"g"}), "");
    EXPECT_EQ(text({"a", "b", "c"}), "") << "not within arrays";
    EXPECT_EQ(text({"c"}), "") << "only at its place";
    EXPECT_EQ(member_text("[]", std::vector<std::string>{"a"}), "");
    EXPECT_EQ(member_text("{}", std::vector<std::string>{"a"}), "");
}

TEST(Json, OrderedObjectsAreNotLarge) {
    std::string json = "{\"z\": 1";
    for (int i = 0; i < 1023; ++i) json += ",\"" + std::to_string(i) + "\":0";
    EXPECT_EQ(parse_ordered_json(json + "}", "f").begin().key(), "z");
    EXPECT_EQ(message_of([&] { parse_ordered_json(json + ",\"a\":0}", "f"); }),
              "f: expected objects of at most 1024 members, got an object of 1025");
    EXPECT_EQ(message_of([&] { parse_ordered_json(R"({"a":1,"a":2})", "f"); }),
              "f: a: expected every key once, got this key twice");
}

TEST(Json, UntrustedTextIsMadePrintable) {
    EXPECT_EQ(printable("plain \xC3\xA9"), "plain \xC3\xA9");
    EXPECT_EQ(printable("a\n\x1B[31m\x7F\xFF\xE2\x82"), R"(a\x0a\x1b[31m\x7f\xff\xe2\x82)");
    EXPECT_EQ(printable("abcdef", 3), "abc...");
    EXPECT_EQ(printable("\xED\xA0\x80\xF4\x90\x80\x80"), R"(\xed\xa0\x80\xf4\x90\x80\x80)");
}

/// Python writes numbers that JSON does not have, in config.json of Nemotron for one.
TEST(Json, FilesMayHavePythonsNumbers) {
    const auto path =
        std::filesystem::temp_directory_path() / ("longhaul-json-" + std::to_string(::getpid()) + ".json");
    std::ofstream(path) << R"({"limit": [0.0, Infinity], "low": -Infinity, "a": NaN, "text": "NaN \" Infinity"})";
    const Json json = read_json(path);
    EXPECT_EQ(json["limit"], (Json{0.0, {{"__float__", "Infinity"}}}));
    EXPECT_EQ(json["low"], (Json{{"__float__", "-Infinity"}}));
    EXPECT_EQ(json["a"], (Json{{"__float__", "NaN"}}));
    EXPECT_EQ(json["text"], "NaN \" Infinity");
    std::string many = "[";
    for (int i = 0; i < 65; ++i) many += "NaN,";
    std::ofstream(path) << many << "0]";
    EXPECT_NE(message_of([&] { (void)read_json(path); }).find("invalid literal"), std::string::npos);
    std::ofstream(path) << R"({"limit": Infinit})";
    EXPECT_NE(message_of([&] { (void)read_json(path); }).find("invalid literal"), std::string::npos);
    std::ofstream(path) << R"({"open": "Infinity\)";
    EXPECT_NE(message_of([&] { (void)read_json(path); }), "(no error)");
    std::filesystem::remove(path);
}

TEST(Json, FilesThatCannotBeRead) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("longhaul-json-test-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "ten.json") << "[1, 2, 34]";
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    const auto message = [&](const char* name, std::int64_t max_bytes) {
        return message_of([&] { read_json(folder / name, max_bytes); });
    };
    const std::string at = folder.string();
    EXPECT_EQ(message("absent.json", 100),
              at + "/absent.json: expected a readable file, got No such file or directory");
    EXPECT_EQ(message("", 100), at + "/: expected a file, got a folder");
    EXPECT_EQ(message("pipe", 100), at + "/pipe: expected a regular file, got a device, pipe or socket");
    EXPECT_EQ(message("ten.json", 9), at + "/ten.json: size: expected at most 9 bytes, got 10");
    EXPECT_EQ(read_json(folder / "ten.json", 10).size(), 3U);
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace longhaul::engine
