#include "engine/tokenizer/vocabulary.hpp"

namespace longhaul::engine {

Vocabulary::Conflict Vocabulary::add(std::string_view token, std::int32_t token_id) {
    if (contains(token_id)) return Conflict::same_id;
    if (!ids_.try_emplace(std::string(token), token_id).second) return Conflict::same_token;
    const auto index = static_cast<std::size_t>(token_id);
    if (index >= texts_.size()) {
        texts_.resize(index + 1);
        present_.resize(index + 1);
    }
    texts_[index] = token;
    present_[index] = true;
    return Conflict::none;
}

}  // namespace longhaul::engine
