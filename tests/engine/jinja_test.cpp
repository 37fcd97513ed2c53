// The Jinja interpreter against jinja2 (goldens of tests/tools/make_jinja_goldens.py), its messages, and hostile
// templates.
#include <gtest/gtest.h>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/jinja/template.hpp"

namespace longhaul::engine {
namespace {

using jinja::Kind;
using jinja::Template;
using jinja::Value;
using jinja::Variables;

const std::filesystem::path goldens = std::filesystem::path(LONGHAUL_TEST_DATA) / "jinja";

Value read_golden(const std::string& name) {
    const std::string file = (goldens / name).string();
    return jinja::value_of_json(read_file(file, 1 << 20), file);
}

const Value& member(const Value& object, std::string_view name) {
    for (const auto& [key, value] : object.as_dict().items) {
        if (key.bytes() == name) return value;
    }
    throw std::logic_error("no member " + std::string(name));
}

Variables variables_of(const Value& object) {
    Variables variables;
    for (const auto& [key, value] : object.as_dict().items) variables.emplace_back(key.bytes(), value);
    return variables;
}

/// The text, or "! " and the message.
std::string rendered(std::string_view source, const Variables& variables = {}, std::string file = "t.jinja") {
    try {
        return Template::parse(source, std::move(file)).render(variables);
    } catch (const InputError& error) {
        return std::string("! ") + error.what();
    } catch (const jinja::Raised& error) {
        return std::string("! ") + error.what();
    }
}

void expect_golden(const Value& expected, const std::string& found, const std::string& what) {
    if (expected.is(Kind::none)) {
        EXPECT_TRUE(found.starts_with("! ")) << what << "\ngave " << found;
        EXPECT_EQ(found.find('\n'), std::string::npos) << found;
    } else {
        EXPECT_EQ(found, expected.bytes()) << what;
    }
}

TEST(Jinja, RendersWhatJinja2Renders) {
    const Value file = read_golden("cases.json");
    const Variables variables = variables_of(member(file, "variables"));
    const auto& cases = member(file, "cases").as_sequence().items;
    ASSERT_GT(cases.size(), 400U);
    for (const Value& row : cases) {
        const std::string& source = row.as_sequence().items[0].bytes();
        expect_golden(row.as_sequence().items[1], rendered(source, variables), source);
    }
}

TEST(Jinja, RendersPublishedChatTemplates) {
    const Value file = read_golden("renderings.json");
    const auto& chats = member(file, "variables").as_sequence().items;
    const auto& texts = member(file, "texts").as_dict().items;
    ASSERT_GE(texts.size(), 25U);
    for (const auto& [name, expected] : texts) {
        const std::string source = read_file(goldens / "templates" / (name.bytes() + ".jinja"), 1 << 20);
        for (std::size_t i = 0; i < chats.size(); ++i)
            expect_golden(expected.as_sequence().items[i], rendered(source, variables_of(chats[i])),
                          name.bytes() + ", conversation " + std::to_string(i));
    }
}

struct Fault {
    std::string source, message;
};

TEST(Jinja, MessagesNameFileLineAndConstruct) {
    const std::vector<Fault> faults{
        {"a\n{{ x|nosuch }}", "t.jinja:2: filter 'nosuch': expected a filter of chat templates, got an unknown one"},
        {"\n\n{{ x|urlize }}",
         "t.jinja:3: filter 'urlize': expected a filter of chat templates, got one that is not supported"},
        {"{{ x is nosuch }}", "t.jinja:1: test 'nosuch': expected a test of chat templates, got an unknown one"},
        {"{% include 'x' %}",
         "t.jinja:1: tag 'include': expected a tag of chat templates, got one that is not supported"},
        {"{% endfor %}",
         "t.jinja:1: tag 'endfor': expected a tag of chat templates, got an unknown one, or one in the wrong place"},
        {"{% for a in b recursive %}{% endfor %}",
         "t.jinja:1: loop 'recursive': expected a loop that does not call itself, got a recursive one"},
        {"{% if true %}\n", "t.jinja:1: expected {% endif %}, got the end of the template"},
        {"{{ 'a' }", "t.jinja:1: expected no closing bracket here, got '}'"},
        {"{{ a b }}", "t.jinja:1: expected '}}', got 'b'"},
        {"{{ 'a", "t.jinja:1: expected the end of a string, got the end of the template"},
        {"{{ 99999999999999999999 }}", "t.jinja:1: expected an integer of 64 bits, got 99999999999999999999"},
        {"{{ tools }}\n{{ tools.x }}",
         "t.jinja:2: attribute 'x': expected a defined value, got variable 'tools', which is undefined"},
        {"{% set d = {'a': 1} %}{{ d.b.c }}",
         "t.jinja:1: attribute 'c': expected a defined value, got attribute 'b' of a dict, which is undefined"},
        {"{{ [1].append(2) }}",
         "t.jinja:1: call: expected a defined value, got method 'append' of a list, which templates may not use"},
        {"{{ 'a' + 1 }}", "t.jinja:1: operator '+': expected values that go together, got a string and an integer"},
        {"{{ 'x'.encode() }}",
         "t.jinja:1: method 'encode': expected a method of chat templates, got one that is not supported"},
        {"{{ lipsum() }}",
         "t.jinja:1: function 'lipsum': expected a function of chat templates, got one that is not supported"},
        {"{{ 9223372036854775807 + 1 }}", "t.jinja:1: operator '+': expected a result of 64 bits, got a larger one"},
        {"{{ 3 ** 99 }}", "t.jinja:1: operator '**': expected a result of 64 bits, got a larger one"},
        {"{{ 'stra\xC3\x9F"
         "e'|upper }}",
         "t.jinja:1: filter 'upper': expected text whose characters have one form in the other case each, got "
         "\"stra\xC3\x9F"
         "e\""},
        {"{{ raise_exception('no\\nway') }}", "no\\x0away"},
        {"\xFF", "t.jinja: expected UTF-8 text, got another encoding"},
    };
    for (const Fault& fault : faults) EXPECT_EQ(rendered(fault.source), "! " + fault.message) << fault.source;
}

/// Each ends in one line, soon, with bounded memory and stack.
TEST(Jinja, HostileTemplatesEnd) {
    const auto many = [](const std::string& text, int count) {
        std::string all;
        for (int i = 0; i < count; ++i) all += text;
        return all;
    };
    const std::string endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    const std::vector<Fault> faults{
        {endless, "a template that ends, got more than 5000"},
        {"{% for a in range(100000) %}{{ 'a' * 100000 }}{% endfor %}", "a text of at most 67108864 bytes"},
        {"{{ 'a' * 1000000000000 }}", "a text of at most 67108864 bytes, got 1000000000000"},
        {"{{ ('a' * 60000000).replace('a', 'b' * 60000000) }}", "a text of at most 67108864 bytes"},
        {"{{ ['a' * 60000000] * 5000000 }}", "a text of at most 67108864 bytes"},
        {"{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + ['a' * 50000000] %}{% endfor %}",
         "values of at most 268435456 bytes, got more"},
        {"{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = [n.l] %}{% endfor %}",
         "at most 64 levels of lists and dicts, got more"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "at most 1000 levels of nested evaluation, got more"},
        {"{{ " + many("(", 5000) + "1" + many(")", 5000) + " }}", "at most 150 levels of nested expressions, got more"},
        {"{{ " + many("- ", 5000) + "1 }}", "at most 150 levels of nested expressions, got more"},
        {"{{ " + many("not ", 5000) + "1 }}", "at most 150 levels of nested expressions, got more"},
        {"{{ 1" + many(" + 1", 5000) + " }}", "an expression of at most 600 levels, got more"},
        {"{{ x" + many(".x", 5000) + " }}", "an expression of at most 600 levels, got more"},
        {"{{ x" + many("|f(x|f(x))", 5000) + " }}", "an expression of at most 600 levels, got more"},
        {many("{% if 1 %}", 5000), "at most 100 nested blocks, got more"},
        {"{{ range(1000000000) }}", "at most 100000 numbers, got more"},
        {"{{ range(-9223372036854775807, 9223372036854775807) }}", "at most 100000 numbers, got more"},
        {"{{ '%999999d' % 1 }}", "a width of at most 1000"},
        {"{{ 'a'.center(9223372036854775807) }}", "a text of at most 67108864 bytes"},
        {"{{ 'a'|indent(9223372036854775807) }}", "a text of at most 67108864 bytes"},
        {"{{ ('a' * 5000000).rsplit(('a' * 5000000) ~ 'b') }}", "a template that ends"},
    };
    for (const Fault& fault : faults) {
        const std::string found = rendered(fault.source);
        EXPECT_TRUE(found.starts_with("! t.jinja:")) << found.substr(0, 200);
        EXPECT_NE(found.find(fault.message), std::string::npos) << fault.source.substr(0, 80) << "\ngave " << found;
    }
}

TEST(Jinja, LimitsGrowWithTheInput) {
    const Variables longer{{"text", Value::text(std::string(std::size_t{100} << 20, 'a'))}};
    EXPECT_EQ(rendered("{{ (text + text)|length }}", longer), "209715200");
}

/// References that go round in a circle, or outlive what they refer to.
TEST(Jinja, ObjectsThatHoldThemselves) {
    EXPECT_EQ(rendered("{% set n = namespace() %}{% set n.a = [n] %}{% set n.b = n %}{{ n.b.b.a[0].b == n }}"), "True");
    EXPECT_EQ(
        rendered("{% set n = namespace() %}{% for i in [1] %}{% macro m() %}x{% endmacro %}{% set n.m = m %}{{ m() }}"
                 "{% endfor %}{{ n.m() }}"),
        "! t.jinja:1: macro 'm': expected a macro that is called within the block of its definition, got a call "
        "outside");
    EXPECT_EQ(rendered("{% set n = namespace(l=0) %}{% for i in range(50000) %}{% for x in [n.l] %}{% set n.l = loop %}"
                       "{% endfor %}{% endfor %}{{ n.l.index }}{{ n.l.last }}"),
              "1True");
    EXPECT_EQ(rendered("{% macro m() %}{{ caller }}{% endmacro %}{% set n = namespace(m=m) %}{{ n.m() }}|"), "|");
}

TEST(Jinja, DateOfStrftimeNow) {
    const Template date = Template::parse("{{ strftime_now('%d %B %Y, %A') }}", "t");
    EXPECT_EQ(date.render({}), "26 July 2024, Friday");
    EXPECT_EQ(date.render({}, {.today = {2000, 2, 29}}), "29 February 2000, Tuesday");
    EXPECT_EQ(rendered("{{ strftime_now('%Q') }}"),
              "! t.jinja:1: function 'strftime_now': expected a directive of dates: %d, %B, %Y, ..., got '%Q'");
}

TEST(Jinja, JsonKeepsTheOrderOfItsMembers) {
    const Variables variables{
        {"v", jinja::value_of_json(R"({"b": [1, 2.0, null, true], "a": {"d": "x", "c": -1}})", "v")}};
    EXPECT_EQ(
        rendered("{{ v }} {{ v|tojson }}", variables),
        "{'b': [1, 2.0, None, True], 'a': {'d': 'x', 'c': -1}} {\"b\": [1, 2.0, null, true], \"a\": {\"d\": \"x\", "
        "\"c\": -1}}");
    EXPECT_THROW(jinja::value_of_json("{", "v"), InputError);
    EXPECT_THROW(jinja::value_of_json("18446744073709551615", "v"), InputError);
}

}  // namespace
}  // namespace longhaul::engine
