// Which tokens an output may go on with: the sampling room's view of grammars (engine/grammar).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longhaul::engine {

struct AllowedTokens {
    std::vector<bool> tokens{};  ///< [token]
    bool any = false;            ///< whether some token is allowed
    bool end = false;            ///< whether the output may end, with a token that is no part of its text
    bool unknown = false;        ///< it would take too long to find out; then `any` and `end` are false
};

class TokenConstraint {
  public:
    virtual ~TokenConstraint() = default;

    /// What may follow `output` and then `path`. Nothing and no end if no allowed output begins so. Valid until the
    /// next call, which is fast if its output begins with that of the call before.
    virtual const AllowedTokens& allowed(std::span<const std::int32_t> output, std::span<const std::int32_t> path) = 0;
};

}  // namespace longhaul::engine
