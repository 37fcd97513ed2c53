#include "engine/tokenizer/jinja_form.hpp"

#include <algorithm>

namespace longhaul::engine {

namespace {

constexpr std::string_view blanks = " \t\n\v\f\r";

void drop_blanks_before_end(std::string& text, std::size_t low) {
    while (text.size() > low && blanks.find(text.back()) != std::string_view::npos) text.pop_back();
}

/// Produces the normal form of one text.
class Lexer {
  public:
    explicit Lexer(std::string_view text) {
        // Every line end becomes one character. A line end at the end of the text is dropped.
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (text[i] == '\r') text_ += '\n';
            if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n')
                ++i;
            else if (text[i] != '\r')
                text_ += text[i];
        }
        if (text_.ends_with('\n')) text_.pop_back();
    }

    std::string run() {
        while (at_ < text_.size()) {
            const std::size_t tag = find_tag();
            const std::size_t begin = form_.size();
            form_.append(text_, at_, tag - at_);
            at_ = tag;
            if (tag == text_.size()) break;
            trim_before(begin);
            read_tag();
        }
        return std::move(form_);
    }

  private:
    [[nodiscard]] char at(std::size_t place) const { return place < text_.size() ? text_[place] : '\0'; }

    [[nodiscard]] std::size_t find_tag() const {
        for (std::size_t i = at_; i + 1 < text_.size(); ++i) {
            const char next = text_[i + 1];
            if (text_[i] == '{' && (next == '{' || next == '%' || next == '#')) return i;
        }
        return text_.size();
    }

    /// Trims white space before the tag at at_. The text before the tag starts at `begin` in form_.
    void trim_before(std::size_t begin) {
        if (at(at_ + 2) == '-') return drop_blanks_before_end(form_, begin);
        if (at(at_ + 1) == '{' || at(at_ + 2) == '+') return;
        std::size_t line = form_.size();
        while (line > begin && (form_[line - 1] == ' ' || form_[line - 1] == '\t')) --line;
        const bool starts_line = line > begin ? form_[line - 1] == '\n' : at_line_start_;
        if (starts_line) form_.resize(line);
    }

    void read_tag() {
        const char kind = at(at_ + 1);
        const bool comment = kind == '#';
        const char close = kind == '{' ? '}' : kind;
        at_ += 2;
        if (at(at_) == '-' || at(at_) == '+') ++at_;
        const std::size_t begin = form_.size();
        form_ += {'{', kind};
        char sign = ' ';
        while (at_ < text_.size() && !(text_[at_] == close && at(at_ + 1) == '}')) {
            const char c = text_[at_];
            const bool ends_next = at(at_ + 1) == close && at(at_ + 2) == '}';
            if ((c == '-' || c == '+') && ends_next)
                sign = c;
            else if (!comment && (c == '\'' || c == '"'))
                read_string(c);
            else if (blanks.find(c) == std::string_view::npos)
                form_ += c;
            ++at_;
        }
        form_ += {close, '}'};
        at_ = std::min(at_ + 2, text_.size());
        if (comment) form_.resize(begin);
        trim_behind(sign, kind);
    }

    void trim_behind(char sign, char kind) {
        at_line_start_ = false;
        if (sign == '-') {
            while (at_ < text_.size() && blanks.find(text_[at_]) != std::string_view::npos)
                at_line_start_ = text_[at_++] == '\n' || at_line_start_;
        } else if (sign != '+' && kind != '{' && at(at_) == '\n') {
            ++at_;
            at_line_start_ = true;
        }
    }

    /// Reads a string: at_ moves from the opening quote to the closing one.
    void read_string(char quote) {
        form_ += '"';
        for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
            char c = text_[at_];
            if (c == '\\' && at_ + 1 < text_.size()) {
                c = text_[++at_];
                if (c == 'n')
                    c = '\n';
                else if (c == 't')
                    c = '\t';
                else if (c != '\\' && c != '\'' && c != '"')
                    form_ += R"(\\)";
            }
            if (c == '\n')
                form_ += R"(\n)";
            else if (c == '"' || c == '\\')
                form_ += {'\\', c};
            else
                form_ += c;
        }
        form_ += '"';
    }

    std::string text_, form_;
    std::size_t at_ = 0;
    bool at_line_start_ = true;
};

}  // namespace

std::string jinja_form(std::string_view text) {
    return Lexer(text).run();
}

namespace {

/// Whether this part of a form consists of statements only. Returns false for a statement with "%}" inside a string.
bool prints_nothing(std::string_view form) {
    while (form.starts_with("{%")) {
        const std::size_t end = form.find("%}");
        if (end == std::string_view::npos) return false;
        form.remove_prefix(end + 2);
    }
    return form.empty();
}

}  // namespace

std::optional<std::vector<std::string>> match_jinja(std::string_view form, std::string_view pattern) {
    const std::string parts = jinja_form(pattern);
    std::vector<std::string> gaps;
    std::size_t at = 0, begin = 0;
    for (;;) {
        const std::size_t end = std::min(parts.find_first_of("\x01\x02", begin), parts.size());
        const std::string_view part = std::string_view(parts).substr(begin, end - begin);
        const bool first = begin == 0, last = end == parts.size();
        const bool fits = form.size() - at >= part.size();
        const std::size_t found = !fits            ? std::string_view::npos
                                  : last && !first ? (form.ends_with(part) ? form.size() - part.size() : form.npos)
                                  : first          ? (form.starts_with(part) ? 0 : form.npos)
                                                   : form.find(part, at);
        if (found == std::string_view::npos) return std::nullopt;
        if (!first) gaps.emplace_back(form.substr(at, found - at));
        if (!first && parts[begin - 1] == '\x02' && !prints_nothing(gaps.back())) return std::nullopt;
        at = found + part.size();
        if (last) break;
        begin = end + 1;
    }
    return at == form.size() ? std::optional(gaps) : std::nullopt;
}

std::string jinja_literal(std::string_view escaped) {
    std::string text;
    for (std::size_t i = 0; i < escaped.size(); ++i) {
        const bool escape = escaped[i] == '\\' && i + 1 < escaped.size();
        const char c = escape ? escaped[++i] : escaped[i];
        text += escape && c == 'n' ? '\n' : c;
    }
    return text;
}

}  // namespace longhaul::engine
