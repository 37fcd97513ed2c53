// Vocabulary: tokens by id and ids by token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace longhaul::engine {

/// Largest id accepted: four times the largest vocabulary in use. Ids may have holes, as in published vocabularies, so
/// the limit bounds what a hostile file can make us allocate.
inline constexpr std::int64_t max_token_id = (std::int64_t{1} << 20) - 1;

struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

class Vocabulary {
  public:
    /// Adds a token. Returns what is already taken, its text or its id; then nothing is added.
    enum class Conflict { none, same_token, same_id };
    Conflict add(std::string_view token, std::int32_t token_id);

    [[nodiscard]] std::optional<std::int32_t> find(std::string_view token) const {
        const auto found = ids_.find(token);
        return found == ids_.end() ? std::nullopt : std::optional(found->second);
    }
    [[nodiscard]] bool contains(std::int32_t token_id) const {
        return token_id >= 0 && token_id < size() && present_[token_id];
    }
    /// Text of a token; `contains(token_id)` must be true.
    [[nodiscard]] const std::string& text(std::int32_t token_id) const { return texts_[token_id]; }
    /// Largest id plus one.
    [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(texts_.size()); }

  private:
    std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>> ids_;
    std::vector<std::string> texts_;  // [token_id]
    std::vector<bool> present_;       // [token_id]
};

}  // namespace longhaul::engine
