// The global functions of chat templates.
#include <array>
#include <ctime>
#include <limits>

#include "engine/json.hpp"
#include "engine/tokenizer/jinja/operations.hpp"

namespace longhaul::engine::jinja {
namespace {

Value make_range(Runtime& runtime, const Arguments& arguments) {
    constexpr std::int64_t max_items = 100000;  // the sandbox has the same limit
    const Parameters parameters(runtime, arguments, {"", "", ""}, 1);
    const bool one = !parameters.has(1);
    const std::int64_t start = one ? 0 : parameters.integer(0, 0);
    const std::int64_t stop = one ? parameters.integer(0, 0) : parameters.integer(1, 0);
    const std::int64_t step = parameters.integer(2, 1);
    if (step == 0) runtime.fail("a step other than 0", "0");
    const auto wide = static_cast<__int128>(stop) - start;
    const __int128 count = step > 0 ? (wide + step - 1) / step : (wide + step + 1) / step;
    if (count > max_items) runtime.fail("at most " + std::to_string(max_items) + " numbers", "more");
    Values items;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i)
        items.push_back(Value::integer(start + i * step));
    std::string label = "range(" + std::to_string(start) + ", " + std::to_string(stop);
    if (step != 1) label += ", " + std::to_string(step);
    return runtime.sequence(Kind::range, std::move(items), label + ")");
}

/// The arguments of dict() and namespace(): a dict or pairs, and named values.
std::vector<std::pair<Value, Value>> dict_items(Runtime& runtime, const Arguments& arguments) {
    std::vector<std::pair<Value, Value>> items;
    if (arguments.positional.size() > 1)
        runtime.fail("at most 1 argument without a name", std::to_string(arguments.positional.size()));
    if (!arguments.positional.empty() && arguments.positional[0].is(Kind::dict)) {
        items = arguments.positional[0].as_dict().items;
    } else if (!arguments.positional.empty()) {
        for (const Value& pair : items_of(runtime, arguments.positional[0])) {
            Values both = items_of(runtime, pair);
            if (both.size() != 2) runtime.fail("pairs of key and value", std::to_string(both.size()) + " items");
            items.emplace_back(both[0], both[1]);
        }
    }
    for (const auto& [name, value] : arguments.keyword) items.emplace_back(runtime.text(name), value);
    return items;
}

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
    const Value fields = make_dict(runtime, dict_items(runtime, arguments));
    for (const auto& [key, value] : fields.as_dict().items) {
        if (key.is(Kind::text)) check_field_name(runtime, key.bytes());
    }
    return runtime.name_space(fields.as_dict().items);
}

Value format_date(Runtime& runtime, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"format"}, 1);
    const Date& date = runtime.options().today;
    std::tm time{};
    time.tm_year = date.year - 1900;
    time.tm_mon = date.month - 1;
    time.tm_mday = date.day;
    time.tm_isdst = 0;
    const std::time_t seconds = timegm(&time);  // sets the day of the week and of the year
    gmtime_r(&seconds, &time);
    std::string result;
    std::string_view rest = parameters.text(0);
    while (!rest.empty()) {
        if (rest.front() != '%') {
            result += rest.front();
            rest.remove_prefix(1);
            continue;
        }
        const bool no_padding = rest.size() > 2 && rest[1] == '-';
        const std::string directive(rest.substr(0, no_padding ? 3 : 2));
        if (directive.size() < 2 ||
            std::string_view("aAbBcCdDeFGgHhIjklmMnprRStTuUVwWxXyY%").find(directive.back()) == std::string_view::npos)
            runtime.fail("a directive of dates: %d, %B, %Y, ...", "'" + printable(directive) + "'");
        std::array<char, 64> buffer{};
        result.append(buffer.data(), std::strftime(buffer.data(), buffer.size(), directive.c_str(), &time));
        rest.remove_prefix(directive.size());
    }
    return runtime.text(std::move(result));
}

Value raise(Runtime& runtime, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"message"}, 1);
    throw Raised(printable(text_of(runtime, parameters[0]), 500));
}

Value make_plain_dict(Runtime& runtime, const Arguments& arguments) {
    return make_dict(runtime, dict_items(runtime, arguments));
}

Value unsupported(Runtime& runtime, const Arguments& /*arguments*/) {
    runtime.fail("a function of chat templates", "one that is not supported");
}

struct Function {
    std::string_view name;
    Value (*call)(Runtime&, const Arguments&);
};

constexpr std::array<Function, 8> functions{{{"range", make_range},
                                             {"namespace", make_namespace},
                                             {"dict", make_plain_dict},
                                             {"raise_exception", raise},
                                             {"strftime_now", format_date},
                                             {"lipsum", unsupported},
                                             {"cycler", unsupported},
                                             {"joiner", unsupported}}};

}  // namespace

void check_field_name(Runtime& runtime, std::string_view name) {
    if (name.starts_with('_'))
        runtime.fail("names of fields without an underscore in front", "'" + printable(name) + "'");
}

std::int64_t find_function(std::string_view name) {
    for (std::size_t i = 0; i < functions.size(); ++i) {
        if (functions[i].name == name) return static_cast<std::int64_t>(i);
    }
    return -1;
}

Value call_function(Runtime& runtime, std::int64_t function, const Arguments& arguments) {
    return functions[static_cast<std::size_t>(function)].call(runtime, arguments);
}

}  // namespace longhaul::engine::jinja
