#include "api/openai_messages.h"

#include <algorithm>
#include <array>

#include "core/concat.h"

namespace hotset::api {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

// Text of a message's content; nullopt after a problem.
std::optional<std::string> read_content(FieldReader& fields, const Json* content, const std::string& path,
                                        bool may_be_absent) {
  if (content == nullptr || content->is_null()) {
    if (!may_be_absent) fields.fail(path, "is required");
    return std::string();
  }
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    fields.fail(path, "must be a string or a list of text parts");
    return std::nullopt;
  }
  std::string joined;
  std::size_t index = 0;
  for (const Json& part : *content) {
    const std::string part_path = concat(path, "[", index, "]");
    if (!part.is_object()) {
      fields.fail(part_path, "must be an object with type 'text'");
      return std::nullopt;
    }
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string() || *type != "text") {
      fields.fail(concat(part_path, ".type"), "must be 'text': this model reads text only");
      return std::nullopt;
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) {
      fields.fail(concat(part_path, ".text"), "must be a string");
      return std::nullopt;
    }
    if (index++ != 0) joined += '\n';
    joined += text->get_ref<const std::string&>();
  }
  return joined;
}

void parse_tool_arguments(Json& call) {
  if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) return;
  Json& function = call["function"];
  if (!function.contains("arguments") || !function["arguments"].is_string()) return;
  auto arguments = parse_json(function["arguments"].get_ref<const std::string&>());
  if (arguments && arguments.value().is_object()) function["arguments"] = std::move(arguments).value();
}

void read_message(FieldReader& fields, Json& message, std::size_t index) {
  const std::string path = concat("messages[", index, "]");
  if (!message.is_object()) return fields.fail(path, "must be an object with 'role' and 'content'");
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() ||
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) == kRoles.end()) {
    return fields.fail(concat(path, ".role"), "must be one of system, developer, user, assistant, tool, function");
  }
  const bool assistant = *role == "assistant";
  if (const auto calls = message.find("tool_calls"); calls != message.end()) {
    if (calls->is_null()) {
      message.erase("tool_calls");
    } else if (!assistant || !calls->is_array()) {
      return fields.fail(concat(path, ".tool_calls"), "must be a list, in an assistant message");
    } else {
      for (Json& call : *calls) parse_tool_arguments(call);
    }
  }
  const auto content = message.find("content");
  auto text = read_content(fields, content == message.end() ? nullptr : &*content, concat(path, ".content"), assistant);
  if (text) message["content"] = std::move(*text);
}

}  // namespace

actors::ChatPrompt read_chat_prompt(FieldReader& fields) {
  actors::ChatPrompt prompt;
  const Json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "must be a list with at least one message");
    return prompt;
  }
  Json read = *messages;
  for (std::size_t i = 0; i < read.size() && !fields.failed(); ++i) read_message(fields, read[i], i);
  prompt.messages_json = to_text(read);

  if (const Json* tools = fields.find("tools"); tools != nullptr) {
    const bool objects =
        tools->is_array() && std::all_of(tools->begin(), tools->end(), [](const Json& t) { return t.is_object(); });
    if (!objects) fields.fail("tools", "must be a list of objects");
    if (!tools->empty()) prompt.tools_json = to_text(*tools);
  }
  if (const Json* kwargs = fields.find("chat_template_kwargs"); kwargs != nullptr) {
    if (!kwargs->is_object()) fields.fail("chat_template_kwargs", "must be an object");
    prompt.template_kwargs_json = to_text(*kwargs);
  }
  prompt.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  return prompt;
}

}  // namespace hotset::api
