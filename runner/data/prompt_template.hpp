// Prompt templates: text files that define how the fields of an item become a prompt. Used by dataset.cpp.
//
//   {source}                  the field's text
//   {?context}…{/context}     section that is left out if the field is empty; may be nested
//   {{ }}                     literal braces
//
// A byte order mark, carriage returns before line feeds and the last line end are ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {

class PromptTemplate {
  public:
    /// Parses a template. `name` is the file's name for messages; `fields` are the names that the task allows. Throws
    /// InputError naming file and line: unknown fields, sections that do not match, lone braces, text that is not
    /// UTF-8.
    static PromptTemplate parse(std::string_view text, const std::string& name, const std::vector<std::string>& fields);
    /// Reads the file (at most 1 MiB) and parses it. Throws InputError.
    static PromptTemplate read(const std::filesystem::path& path, const std::vector<std::string>& fields);

    /// A field that a template names.
    struct Field {
        std::string name;
        std::string place{};    ///< where it is named first: "FILE:LINE", or that of a key
        bool optional = false;  ///< it stands only in sections {?name}…{/name} of its own
    };
    /// Parses a template that is the value of a key. `place` names the key in messages. Throws InputError.
    static PromptTemplate parse_value(std::string_view text, const std::string& place,
                                      const std::vector<std::string>& fields);

    /// The fields of the template in a file, in the order in which they appear, whatever their names. Throws
    /// InputError.
    static std::vector<Field> fields_in(const std::filesystem::path& path);
    /// The same of a key's value.
    static std::vector<Field> fields_in_value(std::string_view text, const std::string& place);

    /// Renders the template. `values` holds one text per field, in the order of `fields`.
    [[nodiscard]] std::string render(const std::vector<std::string>& values) const;
    /// XXH3-64 of the template text without the ignored parts.
    [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }

  private:
    friend class TemplateParser;
    struct Piece {
        enum class Kind { text, field, section } kind = Kind::text;
        std::string text;       ///< text: the text itself
        std::size_t field = 0;  ///< field, section: index of the field
        std::size_t end = 0;    ///< section: index of the first piece after it
    };

    std::vector<Piece> pieces_;
    std::uint64_t fingerprint_ = 0;
};

/// A template of jobs/templates, compiled in: "wmt", "wmt-chat", "xsum", … Throws std::logic_error for an unknown name.
std::string_view built_in_template(std::string_view name);

}  // namespace longhaul::runner
