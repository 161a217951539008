// Chat messages as the template gets them.
#pragma once

#include "actors/requests.h"
#include "api/openai_fields.h"

namespace hotset::api {

// Reads messages, tools, chat_template_kwargs and add_generation_prompt. Text parts of one message are joined by line
// breaks; missing content of an assistant message becomes ""; arguments of tool calls that are JSON text become JSON
// (what templates expect). Other members of a message reach the template unchanged. Problems go to `fields`.
[[nodiscard]] actors::ChatPrompt read_chat_prompt(FieldReader& fields);

}  // namespace hotset::api
