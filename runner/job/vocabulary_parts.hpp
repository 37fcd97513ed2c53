// What the files of the vocabulary (vocabulary*.cpp) share: makers of common keys, and the sections they define.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {

using Kind = Key::Kind;
using Strings = std::vector<std::string>;
using Section = std::pair<std::string, std::vector<Key>>;

constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t max_tokens = std::numeric_limits<std::int32_t>::max();

/// The words with `between` between them.
std::string joined(const Strings& words, const char* between);

/// A key whose value is an integer from `low` to `high`.
Key integer(std::string key, Kind kind, std::int64_t Settings::*field, std::int64_t low, std::int64_t high,
            std::string help);
/// A key whose value is a number from `low` (or above it) to `high`.
Key number(std::string key, Kind kind, double Settings::*field, double low, double high, bool low_excluded,
           std::string help);
/// A key that is true or false.
Key flag(std::string key, Kind kind, bool Settings::*field, std::string help);

// Facts about a row that few keys have (Key).
Key later(Key key);
Key of_copies(Key key, std::string earlier_value = "");
Key not_for_generate(Key key);

/// A path as a job file gives it, relative to the job file's folder. Throws BadValue.
std::filesystem::path parse_path(const std::string& value, const std::filesystem::path& folder);
/// A path in a form that parse_path reads back, whatever characters it contains.
std::string format_path(const std::filesystem::path& path);

// vocabulary_data.cpp
Key column_key();
Key split_key();
Key few_shot_split_key();
Key few_shot_group_key();
Key introduction_key();
Key choice_gap_key();
Key template_key();
Key chat_template_key();
Key template_variable_key();
Key template_date_key();

// vocabulary_format.cpp
Key json_schema_key();
Key regex_key();
Key choice_key();
Key grammar_key();
Key reasoning_end_key();

// vocabulary_sampling.cpp
Key stop_key();
Key stop_token_ids_key();
Section sampling_section();

}  // namespace longhaul::runner
