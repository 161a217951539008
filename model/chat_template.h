// A model's chat template (Jinja): messages in, prompt text out, as the reference library renders it.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/clock.h"
#include "core/result.h"
#include "model/jinja/budget.h"

namespace hotset::model {

// Immutable and safe to use from many threads. Copies share the compiled template.
class ChatTemplate {
 public:
  // kInvalidArgument with the line when the template cannot be compiled. `clock` gives strftime_now the wall clock
  // (shown in local time) and limits the time of a rendering; it must outlive the template and its copies.
  [[nodiscard]] static Result<ChatTemplate> compile(std::string source, const Clock& clock, std::string bos_token,
                                                    std::string eos_token, const jinja::RenderLimits& limits = {});

  // `messages`: an array, passed on as it is. `tools`: an array or null. `kwargs`: an object or null; its entries
  // become names of the template and win over add_generation_prompt, bos_token and eos_token. Every failure is
  // kInvalidArgument, with param "messages" or "chat_template_kwargs". What the template itself raises
  // (raise_exception) is the message as it is; other messages name the template's line.
  [[nodiscard]] Result<std::string> render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                           const nlohmann::ordered_json& tools,
                                           const nlohmann::ordered_json& kwargs) const;

 private:
  struct State;
  explicit ChatTemplate(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace hotset::model
