#include "model/chat_template.h"

#include <nlohmann/json.hpp>

#include "core/concat.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/parser.h"
#include "model/jinja/print.h"

namespace hotset::model {

struct ChatTemplate::State {
  jinja::Program program;
  const Clock& clock;
  std::string bos_token;
  std::string eos_token;
  jinja::RenderLimits limits;
};

namespace {

constexpr std::size_t kMaxSourceBytes = std::size_t{4} << 20;

Error template_error(const jinja::TemplateError& error, int line, const char* param) {
  if (error.raised_by_template) return invalid_argument(error.message, param);
  const int shown = error.line != 0 ? error.line : line;
  if (shown == 0) return invalid_argument(concat("The chat template failed: ", error.message, "."), param);
  return invalid_argument(concat("The chat template failed in line ", shown, ": ", error.message, "."), param);
}

}  // namespace

Result<ChatTemplate> ChatTemplate::compile(std::string source, const Clock& clock, std::string bos_token,
                                           std::string eos_token, const jinja::RenderLimits& limits) {
  if (source.size() > kMaxSourceBytes) return invalid_argument("The chat template is larger than 4 MiB.");
  try {
    return ChatTemplate(std::make_shared<const State>(
        State{jinja::parse(source), clock, std::move(bos_token), std::move(eos_token), limits}));
  } catch (const jinja::TemplateError& error) {
    return invalid_argument(
        concat("The chat template cannot be compiled, line ", error.line, ": ", error.message, "."));
  }
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                         const nlohmann::ordered_json& tools,
                                         const nlohmann::ordered_json& kwargs) const {
  if (!kwargs.is_null() && !kwargs.is_object()) {
    return invalid_argument("chat_template_kwargs must be an object.", "chat_template_kwargs");
  }
  if (kwargs.contains("messages") || kwargs.contains("tools")) {
    return invalid_argument("chat_template_kwargs must not hold 'messages' or 'tools'.", "chat_template_kwargs");
  }
  const State& state = *state_;
  const std::int64_t input_bytes = jinja::json_size(messages) + jinja::json_size(tools) + jinja::json_size(kwargs);
  jinja::Budget budget(state.limits, state.clock, input_bytes);
  jinja::Interpreter interpreter(state.program, budget);
  try {
    jinja::Interpreter::Context context = {
        {"bos_token", jinja::Value::text(state.bos_token)},
        {"eos_token", jinja::Value::text(state.eos_token)},
        {"messages", jinja::from_json(messages, budget)},
        {"tools", jinja::from_json(tools, budget)},
        {"documents", jinja::Value::none()},
        {"add_generation_prompt", jinja::Value::boolean(add_generation_prompt)},
    };
    for (const auto& [name, value] : kwargs.items()) context.emplace_back(name, jinja::from_json(value, budget));
    return interpreter.render(context);
  } catch (const jinja::TemplateError& error) {
    return template_error(error, interpreter.line(), "messages");
  }
}

}  // namespace hotset::model
