// Which tokens an output may go on with: the sampling room's view of grammars (engine/grammar).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace longhaul::engine {

struct AllowedTokens {
    std::vector<bool> tokens{};  ///< [token]
    std::int64_t count = 0;      ///< of allowed tokens
    bool end = false;            ///< whether the output may end, with a token that is no part of its text
    bool unknown = false;        ///< it would take too long to find out; then nothing is allowed

    [[nodiscard]] bool has(std::int32_t token) const {
        return static_cast<std::size_t>(token) < tokens.size() && tokens[static_cast<std::size_t>(token)];
    }
    /// Whether a token is allowed that is none of `ends`, which end an output whatever their text.
    [[nodiscard]] bool any_but(std::span<const std::int32_t> ends) const {
        std::int64_t others = count;
        for (auto end_token = ends.begin(); end_token != ends.end(); ++end_token)
            others -= has(*end_token) && std::find(ends.begin(), end_token, *end_token) == end_token ? 1 : 0;
        return others > 0;
    }
};

class TokenConstraint {
  public:
    static constexpr std::size_t max_rewind = 256;

    virtual ~TokenConstraint() = default;

    /// What may follow `output` and then `path`. Nothing and no end if no allowed output begins so. Valid until the
    /// next call, which is fast if its output goes on from this one. Outputs of two calls that are longer than
    /// `max_rewind` differ at most in their last so many tokens.
    virtual const AllowedTokens& allowed(std::span<const std::int32_t> output, std::span<const std::int32_t> path) = 0;

    /// Outputs of fewer tokens that go on from that of the last call may end or go on with any token.
    [[nodiscard]] virtual std::int64_t num_free() const { return 0; }
};

}  // namespace longhaul::engine
