// Verification rules by name: the values of the job key `verify` (algorithms.md section 3).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace longhaul::engine {

/// One of the rules. A name is parsed once, at construction; code compares values.
class VerifyRule {
  public:
    enum Value : std::uint8_t { coupled, rejection, multi_round, k_seq, recursive };
    static constexpr std::array<std::string_view, 5> names{"coupled", "rejection", "multi-round", "k-seq", "recursive"};

    constexpr VerifyRule(Value value = coupled) : value_(value) {}
    // Implicit, so that a rule can be given by its name. Throws UsageError for an unknown name.
    VerifyRule(std::string_view name);
    VerifyRule(const char* name) : VerifyRule(std::string_view(name)) {}
    VerifyRule(const std::string& name) : VerifyRule(std::string_view(name)) {}

    constexpr operator Value() const { return value_; }
    [[nodiscard]] std::string name() const { return std::string(names.at(value_)); }

  private:
    Value value_;
};

}  // namespace longhaul::engine
