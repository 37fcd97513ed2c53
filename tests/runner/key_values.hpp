// The values of a key as messages list them, so that a new draft method or task changes no test.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "runner/host/message_text.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {

/// "ar, ngram, … or replay" for `draft`.
inline std::string values_of(const std::string& key) {
    std::vector<std::string> values;
    std::istringstream names(find_key(key)->info.value_name);
    for (std::string name; std::getline(names, name, '|');) values.push_back(name);
    return list_words(values);
}

}  // namespace longhaul::runner
