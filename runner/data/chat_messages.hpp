// Messages of a chat, as data of prompts and requests of batches have them.
#pragma once

#include <string>
#include <vector>

#include "engine/json.hpp"
#include "engine/tokenizer/chat_template.hpp"

namespace longhaul::runner {

/// Messages {"role", "content", "reasoning_content"?}, whose content is a text or a list of parts {"type": "text",
/// "text"}; behind reasoning it may be null. `field`: the list's place, for messages. Throws InputError.
std::vector<engine::ChatMessage> messages_of(const engine::Json& list, const std::string& where,
                                             const std::string& field);

}  // namespace longhaul::runner
