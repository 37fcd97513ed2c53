// rule-table: runs draft methods and verification rules on user-supplied distributions, without a model. Reads one JSON
// object on standard input
//     {"draft": "rsd-s", "draft-tree": "3x2", "verify": "recursive", "p": {"": [..], "0": [..], "0,1": [..]},
//      "q": {..}, "emit": 2, "draws": 100000, "seed": 1}
// where p and q map a context (the ids emitted so far, joined by commas) to the probabilities of the next token; a
// context that is not listed uses the row of the empty context. p may be a list of tables, one per draft model; methods
// that draft without a model need none. `draft-tree` (for a chain also a number), `verify` (coupled), `seed` (1),
// `ngram-order` and `ngram-top` are optional. Generates `draws` independent texts of `emit` tokens by speculative steps
// and prints
//     {"counts": {"0,1": 123, …}, "target_calls": N, "accepted": M}
// Invalid input, and a pair of method and rule that is not lossless, gives a one-line error and exit code 2.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/json.hpp"
#include "tests/engine/table_decoding.hpp"

using namespace longhaul;
using engine::testing::Table;
using engine::testing::TableDecoder;
using engine::testing::TableJob;
using engine::testing::Tokens;
using nlohmann::json;

namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& expected, const json& got) {
    throw UsageError("rule-table: " + key + ": expected " + expected + ", got " + engine::describe(got));
}

Tokens read_context(const std::string& text) {
    Tokens context;
    const char* at = text.data();
    const char* end = at + text.size();
    while (at != end) {
        std::int32_t token = 0;
        const auto [next, error] = std::from_chars(at, end, token);
        const bool more = error == std::errc() && next != end && *next == ',' && next + 1 != end;
        if (error != std::errc() || (next != end && !more)) refuse("p, q", "contexts of ids joined by commas", text);
        context.push_back(token);
        at = more ? next + 1 : next;
    }
    return context;
}

Table read_table(const std::string& key, const json& table) {
    if (!table.is_object()) refuse(key, "an object of contexts and probabilities", table);
    std::map<Tokens, std::vector<double>> rows;
    for (const auto& [context, row] : table.items()) {
        const bool numbers =
            row.is_array() && std::all_of(row.begin(), row.end(), [](const json& p) { return p.is_number(); });
        if (!numbers) refuse(key, "a list of probabilities for each context", row);
        rows[read_context(context)] = row.get<std::vector<double>>();
    }
    return Table(rows);
}

/// An integer in any notation: 3, 3.0, 3e0.
std::int64_t read_count(const json& job, const char* key, std::int64_t least, std::int64_t most) {
    const std::string range = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
    const json& value = job.contains(key) ? job[key] : json();
    if (!value.is_number()) refuse(key, range, value);
    const auto number = value.get<double>();
    if (std::trunc(number) != number || number < static_cast<double>(least) || number > static_cast<double>(most))
        refuse(key, range, value);
    return value.is_number_float() ? static_cast<std::int64_t>(number) : value.get<std::int64_t>();
}

std::string read_word(const json& job, const char* key, const char* otherwise) {
    if (!job.contains(key) && otherwise != nullptr) return otherwise;
    const json& value = job.contains(key) ? job[key] : json();
    if (!value.is_string()) refuse(key, "a word", value);
    return value.get<std::string>();
}

std::uint64_t read_seed(const json& job) {
    if (!job.contains("seed")) return 1;
    const json& value = job["seed"];
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    const double number = value.is_number_float() ? value.get<double>() : -1;
    if (!(number >= 0 && number < 0x1p64) || std::trunc(number) != number)
        refuse("seed", "an integer from 0 to 2^64 - 1", value);
    return static_cast<std::uint64_t>(number);
}

/// As in a job file; a chain may also be a number.
engine::TreeSpec read_tree(const json& job, const engine::DraftMethod& method, engine::VerifyRule verify) {
    const bool is_chain = job.contains("draft-tree") && job["draft-tree"].is_number();
    const engine::TreeSpec tree =
        is_chain ? std::to_string(read_count(job, "draft-tree", 1, 1024)) : read_word(job, "draft-tree", "");
    if (tree.is_auto() && verify != engine::VerifyRule::coupled && method.drafts())
        refuse("draft-tree", "a shape with verify = " + verify.name(), tree.text());
    return tree;
}

std::vector<Table> read_tables(const json& p, std::size_t vocab_size) {
    std::vector<Table> tables;
    for (const json& table : p.is_array() ? p : json::array({p})) tables.push_back(read_table("p", table));
    for (const Table& table : tables) {
        if (table.vocab_size() != vocab_size)
            refuse("p", "rows of " + std::to_string(vocab_size) + " probabilities, as q has", table.vocab_size());
    }
    return tables;
}

void check_keys(const json& job) {
    const std::vector<std::string> known{"draft", "draft-tree", "verify",      "p",         "q",
                                         "emit",  "draws",      "ngram-order", "ngram-top", "seed"};
    if (!job.is_object()) refuse("standard input", "one JSON object", job);
    for (const auto& [key, value] : job.items()) {
        if (std::find(known.begin(), known.end(), key) == known.end())
            refuse("standard input",
                   "keys draft, draft-tree, verify, p, q, emit, draws, seed, ngram-order or ngram-top", key);
    }
}

TableJob read_job(const json& json_job) {
    TableJob job;
    job.draft.method = read_word(json_job, "draft", nullptr);
    if (job.draft.method->needs_recording)
        refuse("draft", "a method that needs no earlier run", job.draft.method->name);
    const engine::DraftMethod& method = *job.draft.method;
    job.verify = read_word(json_job, "verify", "coupled");
    job.draft.tree = read_tree(json_job, method, job.verify);
    if (json_job.contains("ngram-order")) job.draft.ngram_order = read_count(json_job, "ngram-order", 1, 16);
    if (json_job.contains("ngram-top")) job.draft.ngram_top = read_count(json_job, "ngram-top", 0, 1024);
    job.q = read_table("q", json_job.contains("q") ? json_job["q"] : json());
    if (json_job.contains("p")) {
        std::vector<Table> tables = read_tables(json_job["p"], job.q.vocab_size());
        if (method.min_folders > 0) job.p = std::move(tables);  // other methods draft without tables
    }
    job.emit = read_count(json_job, "emit", 1, 1000);
    return job;
}

std::string join(const Tokens& tokens) {
    std::string text;
    for (const std::int32_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
    return text;
}

void run(const json& job) {
    check_keys(job);
    TableDecoder decoder(read_job(job));
    const std::int64_t draws = read_count(job, "draws", 1, 1'000'000'000);
    const std::uint64_t seed = read_seed(job);
    std::map<Tokens, std::int64_t> counts;
    for (std::int64_t draw = 0; draw < draws; ++draw)
        ++counts[decoder.text(engine::noise_key(seed, "draw-" + std::to_string(draw), 0))];
    nlohmann::ordered_json answer{{"counts", nlohmann::ordered_json::object()}};
    for (const auto& [text, count] : counts) answer["counts"][join(text)] = count;
    answer["target_calls"] = decoder.target_calls;
    answer["accepted"] = decoder.accepted;
    if (std::printf("%s\n", answer.dump().c_str()) < 0 || std::fflush(stdout) != 0)
        throw StorageError("standard output: cannot write the output");
}

/// Prints the message as one line, whatever bytes the user's input put into it.
int fail(const std::string& message, int code) {
    std::string line = message;
    std::replace_if(
        line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    std::fprintf(stderr, "error: %s\n", line.c_str());
    return code;
}

}  // namespace

int main() {
    try {
        const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
        run(engine::parse_json(text, "standard input"));
        return 0;
    } catch (const UsageError& error) {
        return fail(error.what(), 2);
    } catch (const InputError& error) {
        return fail(error.what(), 2);
    } catch (const std::exception& error) {
        return fail(error.what(), 1);
    }
}
