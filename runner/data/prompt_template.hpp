// Prompt templates: text files that say how an item's fields become a prompt.
//
//   {source}                  the field's text
//   {?context}…{/context}     only where the field is not empty; may be nested
//   {{ }}                     literal braces
//
// A byte order mark, carriage returns before line feeds and the last line end do not count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {

class PromptTemplate {
  public:
    /// `name`: of the file, for messages; `fields`: the names a template of this task may use. Throws InputError naming
    /// file and line: unknown fields, sections that do not match, lone braces, text that is not UTF-8.
    static PromptTemplate parse(std::string_view text, const std::string& name, const std::vector<std::string>& fields);
    /// Reads the file (at most 1 MiB) and parses it. Throws InputError.
    static PromptTemplate read(const std::filesystem::path& path, const std::vector<std::string>& fields);

    /// `values`: a text for each of the fields, in their order.
    [[nodiscard]] std::string render(const std::vector<std::string>& values) const;
    /// XXH3-64 of the text that counts.
    [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }

  private:
    friend class TemplateParser;
    struct Piece {
        enum class Kind { text, field, section } kind = Kind::text;
        std::string text;       ///< text: itself
        std::size_t field = 0;  ///< field, section: index of the name
        std::size_t end = 0;    ///< section: index of the first piece behind it
    };

    std::vector<Piece> pieces_;
    std::uint64_t fingerprint_ = 0;
};

/// A template of jobs/templates, compiled in: "wmt", "wmt-chat", "xsum", … Throws std::logic_error for another name.
std::string_view built_in_template(std::string_view name);

}  // namespace longhaul::runner
