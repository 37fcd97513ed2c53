#include "engine/verify/rule.hpp"

#include <algorithm>

#include "engine/error.hpp"

namespace longhaul::engine {

VerifyRule::VerifyRule(std::string_view name) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
        std::string known;
        for (std::size_t i = 0; i < names.size(); ++i)
            known.append(i == 0 ? "" : i + 1 < names.size() ? ", " : " or ").append(names[i]);
        throw UsageError("verify: expected " + known + ", got '" + std::string(name) + "'");
    }
    value_ = static_cast<Value>(found - names.begin());
}

}  // namespace longhaul::engine
