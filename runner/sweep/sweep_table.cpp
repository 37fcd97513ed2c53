#include "runner/sweep/sweep_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/run/lease.hpp"

namespace longhaul::runner {
namespace {

using Ordered = nlohmann::ordered_json;
using Cells = std::vector<std::string>;

struct MetricInfo {
    const char* key;    ///< in sweep.csv and sweep.json
    const char* title;  ///< in sweep.md
    int decimals;       ///< in sweep.md
    double factor;      ///< in sweep.md
};
constexpr std::array<MetricInfo, 13> metrics{{{"tokens", "tokens", 0, 1},
                                              {"acc", "acc %", 2, 100},
                                              {"acc_norm", "acc_norm %", 2, 100},
                                              {"mc2", "mc2 %", 2, 100},
                                              {"perplexity", "perplexity", 4, 1},
                                              {"bits_per_byte", "bits per byte", 4, 1},
                                              {"token_accuracy", "token accuracy %", 2, 100},
                                              {"block_efficiency", "block efficiency", 2, 1},
                                              {"mbsu", "MBSU", 2, 1},
                                              {"acceptance", "acceptance %", 1, 100},
                                              {"decode_tokens_per_second", "decode tokens/s", 1, 1},
                                              {"speedup", "speedup", 2, 1},
                                              {"seconds", "seconds", 1, 1}}};

std::string fixed(double value, int decimals) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
    return text.data();
}

std::string state_name(PointState state) {
    static const std::array<const char*, 4> names{"waiting", "unfinished", "failed", "done"};
    return names[static_cast<std::size_t>(state)];
}

std::string yes_or_no(const std::optional<bool>& answer) {
    return !answer ? "" : *answer ? "yes" : "NO";
}

/// RFC 4180.
std::string csv_line(const Cells& cells) {
    std::string line;
    for (const std::string& cell : cells) {
        if (&cell != &cells.front()) line += ',';
        if (cell.find_first_of(",\"\r\n") == std::string::npos) {
            line += cell;
            continue;
        }
        line += '"';
        for (const char c : cell) line.append(c == '"' ? 2 : 1, c);
        line += '"';
    }
    return line + "\n";
}

std::size_t width_of(const std::string& cell) {
    return static_cast<std::size_t>(num_characters(cell));
}

/// A Markdown table with padded columns, so that the source is readable, too; columns from `first_number` on are
/// aligned right.
std::string markdown_table(const std::vector<Cells>& rows, std::size_t first_number) {
    std::vector<std::size_t> widths(rows.front().size(), 3);
    for (const Cells& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            widths[i] = std::max(widths[i], width_of(row[i]));
        }
    }
    std::string text;
    for (const Cells& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string blanks(widths[i] - width_of(row[i]), ' ');
            text += "| " + (i >= first_number ? blanks + row[i] : row[i] + blanks) + " ";
        }
        text += "|\n";
        if (&row != &rows.front()) continue;
        for (std::size_t i = 0; i < row.size(); ++i)
            text += "|" + std::string(widths[i] + 1, '-') + (i >= first_number ? ":" : "-");
        text += "|\n";
    }
    return text;
}

template <typename Value>
Ordered or_null(const std::optional<Value>& value) {
    return value ? Ordered(*value) : Ordered();
}

}  // namespace

SweepTable::SweepTable(const Sweep& sweep, std::vector<SweepPoint> points)
    : folder_(sweep.output),
      keys_(sweep_keys(sweep)),
      num_variants_(sweep.variants.size()),
      points_(std::move(points)),
      rows_(points_.size()) {
    for (const SweepPoint& point : points_) {
        Cells& values = key_values_.emplace_back();
        for (const std::string& key : keys_) values.push_back(shown_value(point, key));
    }
}

std::int64_t SweepTable::count(PointState state) const {
    return std::count_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.state == state; });
}

std::int64_t SweepTable::count_with_failed_items() const {
    return std::count_if(rows_.begin(), rows_.end(), [](const Row& row) { return row.failed > 0; });
}

std::vector<std::size_t> SweepTable::other_texts() const {
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < points_.size(); ++i) {
        if (!same_text(i).value_or(true)) others.push_back(i);
    }
    return others;
}

void SweepTable::look(std::size_t point, bool done) {
    Row& row = rows_[point] = Row();
    const std::filesystem::path& run = points_[point].settings.output;
    const Ordered json = Ordered::parse(read_if_there(run / "summary.json"), nullptr, false);
    if (!done || !json.is_object()) {
        if (newest_lease(run)) row.state = PointState::unfinished;
        return;
    }
    row.state = PointState::done;
    const auto number = [&](const char* key) {
        return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0.0;
    };
    row.items = static_cast<std::int64_t>(number("items"));
    row.failed = static_cast<std::int64_t>(number("failed"));
    row.numbers[tokens] = number("tokens");
    for (const Metric metric : {acc, acc_norm, mc2, token_accuracy}) {
        if (json.contains(metrics[metric].key)) row.numbers[metric] = number(metrics[metric].key);
    }
    if (number("perplexity") > 0) row.numbers[perplexity] = number("perplexity");
    if (number("bits_per_byte") > 0) row.numbers[bits_per_byte] = number("bits_per_byte");
    if (number("block_efficiency") > 0) row.numbers[block_efficiency] = number("block_efficiency");
    if (number("mbsu") > 0) row.numbers[mbsu] = number("mbsu");
    if (number("drafted") > 0) row.numbers[acceptance] = number("acceptance");
    row.numbers[tokens_per_second] = number("decode_tokens_per_second");
    row.numbers[seconds] = number("working_seconds");
    if (json.contains("results_xxh3") && json["results_xxh3"].is_string()) row.results_hash = json["results_xxh3"];
}

void SweepTable::set_failed(std::size_t point, const std::string& why) {
    rows_[point] = Row();
    rows_[point].state = PointState::failed;
    rows_[point].why = why;
}

SweepTable::Numbers SweepTable::numbers_of(std::size_t point) const {
    Numbers numbers = rows_[point].numbers;
    const std::optional<std::size_t> plain = points_[point].baseline;
    if (!plain) return numbers;
    const std::optional<double>& mine = numbers[tokens_per_second];
    const std::optional<double>& other = rows_[*plain].numbers[tokens_per_second];
    if (mine && other && *other > 0) numbers[speedup] = *mine / *other;
    return numbers;
}

std::optional<bool> SweepTable::same_text(std::size_t point) const {
    const SweepPoint& one = points_[point];
    // If drafts may affect the text, equality is not guaranteed.
    if (!one.baseline || !is_execution_key("draft", one.settings)) return std::nullopt;
    const std::string& mine = rows_[point].results_hash;
    const std::string& other = rows_[*one.baseline].results_hash;
    if (mine.empty() || other.empty()) return std::nullopt;
    return mine == other;
}

bool SweepTable::has_seeds() const {
    return std::any_of(points_.begin(), points_.end(),
                       [](const SweepPoint& point) { return point.name_without_seed != point.name; });
}

std::vector<SweepTable::Mean> SweepTable::means() const {
    std::vector<Mean> all;
    if (!has_seeds()) return all;
    std::map<std::string, std::vector<std::size_t>> members;
    for (std::size_t i = 0; i < points_.size(); ++i) {
        const std::string& name = points_[i].name_without_seed;
        if (!members.contains(name)) all.push_back({.name = name, .example = i});
        if (std::vector<std::size_t>& list = members[name]; rows_[i].state == PointState::done) list.push_back(i);
    }
    for (Mean& mean : all) {
        const std::vector<std::size_t>& list = members[mean.name];
        mean.seeds = list.size();
        for (std::size_t metric = 0; metric < num_metrics; ++metric) {
            double sum = 0, squares = 0, count = 0;
            for (const std::size_t i : list) sum += numbers_of(i)[metric].value_or(0);
            for (const std::size_t i : list) count += numbers_of(i)[metric] ? 1 : 0;
            if (list.empty() || count < static_cast<double>(list.size())) continue;
            mean.mean[metric] = sum / count;
            for (const std::size_t i : list) squares += std::pow(*numbers_of(i)[metric] - sum / count, 2);
            if (count > 1) mean.standard_error[metric] = std::sqrt(squares / (count - 1) / count);
        }
        for (const std::size_t i : list) {
            if (const auto same = same_text(i)) mean.same_text = mean.same_text.value_or(true) && *same;
        }
    }
    std::erase_if(all, [](const Mean& mean) { return mean.seeds == 0; });
    return all;
}

std::vector<std::size_t> SweepTable::columns() const {
    static_assert(metrics.size() == num_metrics);
    std::vector<std::size_t> list;
    for (std::size_t m = 0; m < num_metrics; ++m) {
        constexpr std::array sometimes{acc, acc_norm, mc2, perplexity, bits_per_byte, token_accuracy, mbsu};
        const bool always = std::find(sometimes.begin(), sometimes.end(), m) == sometimes.end();
        const bool any =
            std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.numbers[m].has_value(); });
        if (always || any) list.push_back(m);
    }
    return list;
}

std::string SweepTable::to_csv() const {
    const std::vector<Mean> over_seeds = means();
    Cells head{"point"};
    if (has_variants()) head.emplace_back("variant");
    head.insert(head.end(), keys_.begin(), keys_.end());
    for (const char* name : {"state", "seeds", "items", "failed"}) head.emplace_back(name);
    const std::vector<std::size_t> shown = columns();
    for (const std::size_t m : shown) {
        head.emplace_back(metrics[m].key);
        if (has_seeds()) head.push_back(std::string(metrics[m].key) + "_standard_error");
    }
    head.emplace_back("same_text");
    std::string text = csv_line(head);
    const auto add_numbers = [&](Cells& cells, const Numbers& numbers, const Numbers& errors) {
        for (const std::size_t i : shown) {
            const int decimals = metrics[i].decimals == 0 ? 0 : 6;
            cells.push_back(numbers[i] ? fixed(*numbers[i], decimals) : "");
            if (has_seeds()) cells.push_back(errors[i] ? fixed(*errors[i], 6) : "");
        }
    };
    for (std::size_t i = 0; i < points_.size(); ++i) {
        const Row& row = rows_[i];
        const bool done = row.state == PointState::done;
        Cells cells{points_[i].name};
        if (has_variants()) cells.push_back(points_[i].variant);
        cells.insert(cells.end(), key_values_[i].begin(), key_values_[i].end());
        cells.insert(cells.end(), {state_name(row.state), "1", done ? std::to_string(row.items) : "",
                                   done ? std::to_string(row.failed) : ""});
        add_numbers(cells, numbers_of(i), {});
        cells.push_back(yes_or_no(same_text(i)));
        text += csv_line(cells);
    }
    for (const Mean& mean : over_seeds) {
        Cells cells{mean.name};
        if (has_variants()) cells.push_back(points_[mean.example].variant);
        for (std::size_t k = 0; k < keys_.size(); ++k)
            cells.push_back(keys_[k] == "seed" ? "mean" : key_values_[mean.example][k]);
        cells.insert(cells.end(), {"mean", std::to_string(mean.seeds), "", ""});
        add_numbers(cells, mean.mean, mean.standard_error);
        cells.push_back(yes_or_no(mean.same_text));
        text += csv_line(cells);
    }
    return text;
}

std::string SweepTable::to_markdown() const {
    // The point's name contains variant and grids already.
    Cells head{"point", "state", "items", "failed"};
    const std::vector<std::size_t> shown = columns();
    for (const std::size_t m : shown) head.emplace_back(metrics[m].title);
    head.emplace_back("same text");
    std::vector<Cells> rows{head};
    for (std::size_t i = 0; i < points_.size(); ++i) {
        const Row& row = rows_[i];
        const bool done = row.state == PointState::done;
        Cells& cells = rows.emplace_back(Cells{points_[i].name, state_name(row.state), done ? grouped(row.items) : "",
                                               done ? grouped(row.failed) : ""});
        const Numbers numbers = numbers_of(i);
        for (const std::size_t m : shown)
            cells.push_back(numbers[m] ? fixed(*numbers[m] * metrics[m].factor, metrics[m].decimals) : "");
        cells.push_back(yes_or_no(same_text(i)));
    }
    std::string text = markdown_table(rows, 2);
    const std::vector<Mean> over_seeds = means();
    if (over_seeds.empty()) return text;
    head = {"mean ± standard error over seeds", "seeds"};
    for (const std::size_t m : shown) head.emplace_back(metrics[m].title);
    head.emplace_back("same text");
    rows = {head};
    for (const Mean& mean : over_seeds) {
        Cells& cells = rows.emplace_back(Cells{mean.name, std::to_string(mean.seeds)});
        for (const std::size_t m : shown) {
            const MetricInfo& metric = metrics[m];
            std::string cell = mean.mean[m] ? fixed(*mean.mean[m] * metric.factor, metric.decimals) : "";
            if (mean.standard_error[m]) cell += " ± " + fixed(*mean.standard_error[m] * metric.factor, metric.decimals);
            cells.push_back(std::move(cell));
        }
        cells.push_back(yes_or_no(mean.same_text));
    }
    return text + "\n" + markdown_table(rows, 1);
}

Ordered SweepTable::to_json() const {
    Ordered json{{"sweep", folder_.string()}, {"points", Ordered::array()}};
    for (std::size_t i = 0; i < points_.size(); ++i) {
        const SweepPoint& point = points_[i];
        const Row& row = rows_[i];
        Ordered& line = json["points"].emplace_back();
        line["point"] = point.name;
        if (has_variants()) line["variant"] = point.variant;
        for (std::size_t k = 0; k < keys_.size(); ++k) line["keys"][keys_[k]] = key_values_[i][k];
        line["state"] = state_name(row.state);
        if (!row.why.empty()) line["error"] = row.why;
        if (row.state != PointState::done) continue;
        line["items"] = row.items;
        line["failed"] = row.failed;
        const Numbers numbers = numbers_of(i);
        for (const std::size_t m : columns()) line[metrics[m].key] = or_null(numbers[m]);
        if (numbers[tokens]) line["tokens"] = std::llround(*numbers[tokens]);
        line["baseline"] = point.baseline ? Ordered(points_[*point.baseline].name) : Ordered();
        line["same_text"] = or_null(same_text(i));
    }
    for (const Mean& mean : means()) {
        Ordered& line = json["means"].emplace_back();
        line["points"] = mean.name;
        line["seeds"] = mean.seeds;
        for (const std::size_t m : columns()) {
            line[metrics[m].key] = {{"mean", or_null(mean.mean[m])},
                                    {"standard_error", or_null(mean.standard_error[m])}};
        }
        line["same_text"] = or_null(mean.same_text);
    }
    return json;
}

void SweepTable::write() const {
    const auto write_one = [&](const char* name, const std::string& text) {
        if (read_if_there(folder_ / name) != text) replace_file(folder_ / name, text, Durable::yes, "own");
    };
    write_one("sweep.csv", to_csv());
    write_one("sweep.md", to_markdown());
    write_one("sweep.json", engine::json_text(to_json(), 2) + "\n");
}

}  // namespace longhaul::runner
