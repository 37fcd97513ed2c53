// The split patterns of tokenizer files, matched by PCRE2 with the meaning they have in Oniguruma, the engine they are
// written for.
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

/// A pattern, compiled once; any number of threads may match with it, each with a Matcher of its own.
class Regex {
  public:
    /// Throws InputError(file, field) when the pattern does not compile or uses what would mean another thing here.
    Regex(std::string_view pattern, std::string_view file, std::string_view field);

    /// A pattern that matches `text` itself.
    static Regex literal(std::string_view text, std::string_view file, std::string_view field);

    struct Match {
        std::size_t begin;
        std::size_t end;
    };

    /// Goes through the matches of texts, left to right. What it may cost is bounded, whatever pattern and text are:
    /// beyond the bound it throws InputError.
    class Matcher {
      public:
        explicit Matcher(const Regex& regex);

        /// Starts on another text (valid UTF-8; it must stay where it is).
        void start(std::string_view subject);
        /// The next match. An empty one right behind the last match does not count.
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

/// An Oniguruma pattern (Ruby syntax) in the syntax of PCRE2. Throws InputError for what it does not know.
std::string pcre_pattern(std::string_view pattern, std::string_view file, std::string_view field);

}  // namespace longhaul::engine
