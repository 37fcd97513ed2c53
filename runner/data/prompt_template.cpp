#include "runner/data/prompt_template.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {

/// Parses one template into pieces.
class TemplateParser {
  public:
    /// `fields`: nullptr: any. `has_lines`: places are lines of a file called `name`.
    TemplateParser(std::string text, const std::string& name, const std::vector<std::string>* fields,
                   bool has_lines = true)
        : text_(std::move(text)), name_(name), takes_any_(fields == nullptr), has_lines_(has_lines) {
        if (fields != nullptr) fields_ = *fields;
    }

    /// The fields that `run` found.
    [[nodiscard]] std::vector<PromptTemplate::Field> fields() const {
        std::vector<PromptTemplate::Field> fields;
        for (std::size_t i = 0; i < fields_.size(); ++i)
            fields.push_back({.name = fields_[i], .place = place(lines_[i]), .optional = !needed_.contains(i)});
        return fields;
    }

    PromptTemplate run() {
        while (at_ < text_.size()) {
            const char c = text_[at_];
            const bool doubled = at_ + 1 < text_.size() && text_[at_ + 1] == c;
            if (c != '{' && c != '}') {
                add_text(c);
            } else if (doubled) {
                add_text(c);
                ++at_;
            } else if (c == '}') {
                refuse("a field such as " + first_field() + ", or }} for a brace", "a lone }");
            } else {
                read_tag();
                continue;
            }
            ++at_;
        }
        if (!open_.empty()) {
            const auto [piece, line] = open_.back();
            const std::string& field = fields_[made_.pieces_[piece].field];
            throw InputError(place(line), "", "{/" + field + "} to end {?" + field + "}",
                             has_lines_ ? "the end of the file" : "the end of the text");
        }
        made_.fingerprint_ = engine::hash_of(text_);
        return std::move(made_);
    }

  private:
    using Piece = PromptTemplate::Piece;

    [[nodiscard]] std::string place(std::size_t line) const {
        return has_lines_ ? name_ + ":" + std::to_string(line) : name_;
    }
    /// Line number of at_. Counts line ends from the position of the previous call on.
    [[nodiscard]] std::size_t line() const {
        line_ += static_cast<std::size_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                                     text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
        counted_ = at_;
        return line_;
    }
    [[nodiscard]] std::string first_field() const { return "{" + (fields_.empty() ? "prompt" : fields_.front()) + "}"; }
    [[noreturn]] void refuse(const std::string& expected, const std::string& got, const std::string& fix = "") const {
        throw InputError(place(line()), "", expected, got, fix);
    }

    void add_text(char c) {
        auto& pieces = made_.pieces_;
        // A section ends with its last piece, so text after it must start a new piece.
        if (pieces.empty() || pieces.back().kind != Piece::Kind::text || pieces.size() == closed_)
            pieces.push_back({.kind = Piece::Kind::text, .text = {}});
        pieces.back().text += c;
    }

    void read_tag() {
        const std::size_t end = text_.find_first_of("{}\n", at_ + 1);
        if (end == std::string::npos || text_[end] != '}')
            refuse("a field such as " + first_field() + ", or {{ for a brace", "a lone {");
        std::string name = text_.substr(at_ + 1, end - at_ - 1);
        const char sign = name.starts_with('?') || name.starts_with('/') ? name.front() : ' ';
        if (sign != ' ') name.erase(0, 1);
        const std::size_t field = find_field(name);
        if (sign == '/') {
            end_section(field);
        } else {
            const auto is_of_field = [&](const auto& open) { return made_.pieces_[open.first].field == field; };
            if (sign == '?') {
                open_.emplace_back(made_.pieces_.size(), line());
            } else if (std::none_of(open_.begin(), open_.end(), is_of_field)) {
                needed_.insert(field);
            }
            made_.pieces_.push_back(
                {.kind = sign == '?' ? Piece::Kind::section : Piece::Kind::field, .text = {}, .field = field});
        }
        at_ = end + 1;
    }

    [[nodiscard]] std::size_t find_field(const std::string& name) {
        const auto found = std::find(fields_.begin(), fields_.end(), name);
        if (found != fields_.end()) return found - fields_.begin();
        if (takes_any_ && !name.empty()) {
            fields_.push_back(name);
            lines_.push_back(line());
            return fields_.size() - 1;
        }
        const std::string near = nearest_word(name, fields_);
        refuse(takes_any_            ? "the name of a field"
               : fields_.size() == 1 ? "the field " + fields_.front()
                                     : "one of the fields " + list_words(fields_),
               name.empty() ? "none" : "'" + engine::printable(name) + "'",
               near.empty() ? "a brace itself is {{" : "did you mean '" + near + "'?");
    }

    void end_section(std::size_t field) {
        if (open_.empty()) refuse("{?" + fields_[field] + "} before {/" + fields_[field] + "}", "none");
        Piece& section = made_.pieces_[open_.back().first];
        if (section.field != field)
            refuse(
                "{/" + fields_[section.field] + "} to end the section of line " + std::to_string(open_.back().second),
                "{/" + fields_[field] + "}");
        section.end = closed_ = made_.pieces_.size();
        open_.pop_back();
    }

    std::string text_;
    const std::string& name_;
    bool takes_any_, has_lines_;
    std::vector<std::string> fields_;
    std::vector<std::size_t> lines_;  ///< where each was named first, if any may be
    std::set<std::size_t> needed_;    ///< fields outside of sections of their own
    PromptTemplate made_;
    std::vector<std::pair<std::size_t, std::size_t>> open_;  ///< open sections: piece and line
    std::size_t closed_ = 0;                                 ///< number of pieces when a section was last closed
    std::size_t at_ = 0;
    mutable std::size_t counted_ = 0, line_ = 1;
};

/// The text without what templates ignore. Throws InputError.
static std::string plain_text(std::string_view text, const std::string& name) {
    check_text(text, name);
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    std::string plain(text);
    drop_carriage_returns(plain);
    if (plain.ends_with('\n')) plain.pop_back();
    return plain;
}

constexpr std::int64_t max_template_bytes = 1 << 20;

PromptTemplate PromptTemplate::parse(std::string_view text, const std::string& name,
                                     const std::vector<std::string>& fields) {
    return TemplateParser(plain_text(text, name), name, &fields).run();
}

PromptTemplate PromptTemplate::read(const std::filesystem::path& path, const std::vector<std::string>& fields) {
    return parse(engine::read_file(path, max_template_bytes), path.string(), fields);
}

PromptTemplate PromptTemplate::parse_value(std::string_view text, const std::string& place,
                                           const std::vector<std::string>& fields) {
    return TemplateParser(std::string(text), place, &fields, false).run();
}

std::vector<PromptTemplate::Field> PromptTemplate::fields_in_value(std::string_view text, const std::string& place) {
    TemplateParser parser(std::string(text), place, nullptr, false);
    parser.run();
    return parser.fields();
}

std::vector<PromptTemplate::Field> PromptTemplate::fields_in(const std::filesystem::path& path) {
    const std::string name = path.string();
    TemplateParser parser(plain_text(engine::read_file(path, max_template_bytes), name), name, nullptr);
    parser.run();
    return parser.fields();
}

std::string PromptTemplate::render(const std::vector<std::string>& values) const {
    std::string text;
    for (std::size_t i = 0; i < pieces_.size();) {
        const Piece& piece = pieces_[i];
        const bool skipped = piece.kind == Piece::Kind::section && values.at(piece.field).empty();
        if (piece.kind == Piece::Kind::text) text += piece.text;
        if (piece.kind == Piece::Kind::field) text += values.at(piece.field);
        i = skipped ? piece.end : i + 1;
    }
    return text;
}

}  // namespace longhaul::runner
