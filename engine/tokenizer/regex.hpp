// Split patterns of tokenizer files. They are written for Oniguruma; PCRE2 matches them here with the same meaning.
// Used by Normalizer and PreTokenizer.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace longhaul::engine {

/// A compiled pattern. Any number of threads may match with it, each with its own Matcher.
class Regex {
  public:
    /// Throws InputError(file, field) if the pattern does not compile or uses syntax that would mean something else in
    /// PCRE2.
    Regex(std::string_view pattern, std::string_view file, std::string_view field);

    /// A pattern that matches `text` literally.
    static Regex literal(std::string_view text, std::string_view file, std::string_view field);

    struct Match {
        std::size_t begin;
        std::size_t end;
    };

    /// Iterates over the matches in texts, from left to right. Cost is bounded for any pattern and text: next() throws
    /// InputError beyond the bound.
    class Matcher {
      public:
        explicit Matcher(const Regex& regex);

        /// Starts a new text: valid UTF-8 that stays valid while it is matched.
        void start(std::string_view subject);
        /// The next match. Skips an empty match directly after the previous match.
        std::optional<Match> next();

      private:
        struct Free {
            void operator()(pcre2_real_match_data_8* data) const;
            void operator()(pcre2_real_match_context_8* context) const;
            void operator()(pcre2_real_jit_stack_8* stack) const;
        };

        std::optional<Match> find_from(std::size_t from);
        [[nodiscard]] int match_once(std::size_t from);
        void check_budget() const;

        const Regex& regex_;
        std::unique_ptr<pcre2_real_jit_stack_8, Free> stack_;
        std::unique_ptr<pcre2_real_match_context_8, Free> context_;
        std::unique_ptr<pcre2_real_match_data_8, Free> data_;
        std::string_view subject_;
        std::size_t at_ = 0;
        std::optional<std::size_t> last_end_;
        std::chrono::steady_clock::time_point began_;
        std::chrono::duration<double> budget_{};
    };

  private:
    struct Verbatim {};
    Regex(Verbatim /*tag*/, const std::string& pcre_pattern, std::string_view file, std::string_view field);

    std::shared_ptr<pcre2_real_code_8> code_;
    std::string file_;
    std::string field_;
};

/// Translates an Oniguruma pattern (Ruby syntax) to PCRE2 syntax. Throws InputError for unsupported syntax.
std::string pcre_pattern(std::string_view pattern, std::string_view file, std::string_view field);

}  // namespace longhaul::engine
