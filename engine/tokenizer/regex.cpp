#include "engine/tokenizer/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>

#include "engine/error.hpp"
#include "engine/tokenizer/json_view.hpp"

namespace longhaul::engine {

namespace {

constexpr std::size_t max_pattern_bytes = 65536;
constexpr std::size_t jit_stack_bytes = std::size_t{1} << 20;
constexpr std::uint32_t match_limit = 10'000'000;   // steps per match attempt
constexpr std::uint32_t heap_limit_kib = 64 << 10;  // for the interpreter, used when the JIT code runs out of stack
// PCRE2 bounds the cost of one match attempt, not the number of attempts. So attempts are limited to portion_bytes
// start positions per call, and the clock is read between calls. A book takes milliseconds: the budget only stops a
// pattern that would not finish by itself.
constexpr std::size_t portion_bytes = 256;
constexpr double budget_seconds = 10.0;
constexpr double budget_seconds_per_byte = 10e-6;

std::string error_text(int code) {
    std::array<PCRE2_UCHAR, 160> buffer{};
    pcre2_get_error_message(code, buffer.data(), buffer.size());
    return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR as_units(std::string_view text) {
    return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

Regex::Regex(std::string_view pattern, std::string_view file, std::string_view field)
    : Regex(Verbatim{}, pcre_pattern(pattern, file, field), file, field) {}

Regex Regex::literal(std::string_view text, std::string_view file, std::string_view field) {
    std::string escaped;
    for (const char c : text) {
        if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0) escaped += '\\';
        escaped += c;
    }
    return {Verbatim{}, escaped, file, field};
}

Regex::Regex(Verbatim /*tag*/, const std::string& pcre_pattern, std::string_view file, std::string_view field)
    : file_(file), field_(field) {
    const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
        pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_max_pattern_length(context.get(), 4 * max_pattern_bytes);
    int error = 0;
    std::size_t offset = 0;
    // Multi-line, so that ^ and $ work as in Ruby.
    constexpr std::uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
    code_.reset(pcre2_compile(as_units(pcre_pattern), pcre_pattern.size(), options, &error, &offset, context.get()),
                pcre2_code_free);
    if (!code_) throw InputError(file, field, "a regular expression", error_text(error));
    // If this fails, the interpreter gives the same matches, only slower.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

void Regex::Matcher::Free::operator()(pcre2_match_data* data) const {
    pcre2_match_data_free(data);
}
void Regex::Matcher::Free::operator()(pcre2_match_context* context) const {
    pcre2_match_context_free(context);
}
void Regex::Matcher::Free::operator()(pcre2_jit_stack* stack) const {
    pcre2_jit_stack_free(stack);
}

Regex::Matcher::Matcher(const Regex& regex)
    : regex_(regex),
      stack_(pcre2_jit_stack_create(32768, jit_stack_bytes, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      data_(pcre2_match_data_create_from_pattern(regex.code_.get(), nullptr)),
      began_(std::chrono::steady_clock::now()),
      budget_(budget_seconds) {
    if (!stack_ || !context_ || !data_) throw std::bad_alloc();
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
    pcre2_set_match_limit(context_.get(), match_limit);
    pcre2_set_heap_limit(context_.get(), heap_limit_kib);
}

void Regex::Matcher::start(std::string_view subject) {
    subject_ = subject;
    at_ = 0;
    last_end_.reset();
    budget_ += std::chrono::duration<double>(budget_seconds_per_byte * static_cast<double>(subject.size()));
}

std::optional<Regex::Match> Regex::Matcher::next() {
    while (at_ <= subject_.size()) {
        const auto match = find_from(at_);
        if (!match) {
            at_ = subject_.size() + 1;
            return std::nullopt;
        }
        at_ = match->end;
        if (match->begin == match->end) {
            // Step over one character; otherwise the same empty match would be found forever.
            do ++at_;
            while (at_ < subject_.size() && (static_cast<unsigned char>(subject_[at_]) & 0xC0U) == 0x80);
            if (last_end_ == match->end) continue;
        }
        last_end_ = match->end;
        return match;
    }
    return std::nullopt;
}

std::optional<Regex::Match> Regex::Matcher::find_from(std::size_t from) {
    while (true) {
        const std::size_t last_start = std::min(subject_.size(), from + portion_bytes);
        pcre2_set_offset_limit(context_.get(), last_start);
        const int result = match_once(from);
        check_budget();
        if (result > 0) {
            const std::size_t* range = pcre2_get_ovector_pointer(data_.get());
            // \K inside a look-ahead can put the start after the end.
            return Match{std::max(from, std::min(range[0], range[1])), std::max(from, range[1])};
        }
        if (result != PCRE2_ERROR_NOMATCH)
            throw InputError(regex_.file_, regex_.field_, "a pattern that splits this text within limits",
                             error_text(result));
        if (last_start == subject_.size()) return std::nullopt;
        from = last_start;
        while ((static_cast<unsigned char>(subject_[from]) & 0xC0U) == 0x80) --from;
    }
}

int Regex::Matcher::match_once(std::size_t from) {
    const int result = pcre2_match(regex_.code_.get(), as_units(subject_), subject_.size(), from, PCRE2_NO_UTF_CHECK,
                                   data_.get(), context_.get());
    if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
    return pcre2_match(regex_.code_.get(), as_units(subject_), subject_.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data_.get(), context_.get());
}

void Regex::Matcher::check_budget() const {
    if (std::chrono::steady_clock::now() - began_ > budget_)
        throw InputError(regex_.file_, regex_.field_, "a pattern that splits this text within limits",
                         "one that takes more than " + std::to_string(static_cast<int>(budget_.count())) + " seconds");
}

}  // namespace longhaul::engine
