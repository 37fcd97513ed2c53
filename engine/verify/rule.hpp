// Verification rules by name: the values of the job key `verify` (ALGORITHMS.md section 3).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace longhaul::engine {

/// One of the rules. A name is parsed once, at construction; code compares values.
class VerifyRule {
  public:
    enum Value : std::uint8_t { coupled, rejection, multi_round, k_seq, recursive, tokenswift_paper };
    static constexpr std::array<std::string_view, 6> names{"coupled", "rejection", "multi-round",
                                                           "k-seq",   "recursive", "tokenswift-paper"};

    constexpr VerifyRule(Value value = coupled) : value_(value) {}
    // Implicit, so that a rule can be given by its name. Throws UsageError for an unknown name.
    VerifyRule(std::string_view name);
    VerifyRule(const char* name) : VerifyRule(std::string_view(name)) {}
    VerifyRule(const std::string& name) : VerifyRule(std::string_view(name)) {}

    constexpr operator Value() const { return value_; }
    /// Whether the output follows the target's distribution. A rule that is not is there for comparison alone.
    [[nodiscard]] constexpr bool is_lossless() const { return value_ != tokenswift_paper; }
    [[nodiscard]] std::string name() const { return std::string(names.at(value_)); }

  private:
    Value value_;
};

}  // namespace longhaul::engine
