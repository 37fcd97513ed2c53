// Messages of a chat, as data of prompts and requests of batches have them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/json.hpp"
#include "engine/tokenizer/chat_template.hpp"

namespace longhaul::runner {

/// Messages {"role", "content", "reasoning_content"?, "tool_calls"?, "tool_call_id"?, "name"?}, whose content is a text
/// or a list of parts {"type": "text", "text"}; beside reasoning or calls it may be null. Calls are those of OpenAI's
/// API, whose arguments are the text of an object; templates see the object, as with transformers and vLLM. `field`:
/// the list's place, for messages of errors. Throws InputError.
std::vector<engine::ChatMessage> messages_of(const engine::Json& list, const std::string& where,
                                             const std::string& field);

/// Makes texts of arguments that are objects, as transformers has them: their members have an order, which `list` does
/// not keep. text_of_list(): the text of the list as it stands in the data; if it has none, or another one, they are
/// sorted.
void spell_arguments(engine::Json& list, const std::function<std::string()>& text_of_list);

}  // namespace longhaul::runner
