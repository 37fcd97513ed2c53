// The filters and tests: which there are here, and which jinja2 has that are not supported.
#pragma once

#include <string_view>

namespace longhaul::engine::jinja {

enum class Support { here, only_jinja, unknown };
Support filter_support(std::string_view name);
Support test_support(std::string_view name);

/// "got ...", for what is not here.
inline std::string_view unsupported_words(Support support) {
    return support == Support::only_jinja ? "one that is not supported" : "an unknown one";
}

}  // namespace longhaul::engine::jinja
