#include "actors/text_sources.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "core/concat.h"
#include "core/log.h"
#include "model/chat_template.h"
#include "model/mapped_file.h"

namespace hotset::actors {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxTemplateBytes = std::uint64_t{16} << 20;

Result<model::GgufTokenizerData> gguf_data(const model::GgufMetadata& metadata, const model::TokenizerSource& source) {
  const auto model = metadata.string("tokenizer.ggml.model");
  const auto pre = metadata.string("tokenizer.ggml.pre");
  const auto tokens = metadata.strings("tokenizer.ggml.tokens");
  const auto types = metadata.integers("tokenizer.ggml.token_type");
  const auto merges = metadata.strings("tokenizer.ggml.merges");
  const auto bos = metadata.integer("tokenizer.ggml.bos_token_id");
  const auto eos = metadata.integer("tokenizer.ggml.eos_token_id");
  for (const auto* text : {&model, &pre}) {
    if (!*text) return text->error();
  }
  for (const auto* list : {&tokens, &merges}) {
    if (!*list) return list->error();
  }
  for (const auto* id : {&bos, &eos}) {
    if (!*id) return id->error();
  }
  if (!types) return types.error();
  model::GgufTokenizerData data;
  data.model = model.value().value_or("");
  data.pre = pre.value().value_or("");
  if (tokens.value()) data.tokens.assign(tokens.value()->begin(), tokens.value()->end());
  if (types.value()) data.token_types.assign(types.value()->begin(), types.value()->end());
  if (merges.value()) data.merges.assign(merges.value()->begin(), merges.value()->end());
  data.bos_id = bos.value();
  data.eos_id = eos.value();
  data.add_bos = source.add_bos;
  data.add_eos = source.add_eos;
  return data;
}

Result<Json> parse_field(const std::string& text, const char* field) {
  if (text.empty()) return Json(nullptr);
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return invalid_argument("the field is not valid JSON", field);
  return json;
}

Result<std::string> render_chat(const model::ChatTemplate& chat, const ChatPrompt& prompt) {
  const auto messages = parse_field(prompt.messages_json, "messages");
  if (!messages) return messages.error();
  const auto tools = parse_field(prompt.tools_json, "tools");
  if (!tools) return tools.error();
  const auto kwargs = parse_field(prompt.template_kwargs_json, "chat_template_kwargs");
  if (!kwargs) return kwargs.error();
  return chat.render(messages.value(), prompt.add_generation_prompt, tools.value(), kwargs.value());
}

void compile_chat(std::string source, const model::TokenizerSource& texts, std::shared_ptr<const Clock> clock,
                  PromptEncoderParts& parts) {
  if (source.empty()) {
    parts.no_chat_reason =
        "the model has no chat template: start the server with --chat-template, or use /v1/completions";
    return;
  }
  auto chat = model::ChatTemplate::compile(std::move(source), *clock, texts.bos_token, texts.eos_token);
  if (!chat) {
    log_warn("the chat template can't be compiled, chat is refused: ", chat.error().message);
    parts.no_chat_reason = concat("the model's chat template can't be compiled: ", chat.error().message);
    return;
  }
  // The template uses the clock as long as it lives.
  parts.render = [chat = std::move(chat).value(), clock = std::move(clock)](const ChatPrompt& prompt) {
    return render_chat(chat, prompt);
  };
}

}  // namespace

Result<std::shared_ptr<const model::Tokenizer>> load_tokenizer(const model::TokenizerSource& source) {
  if (std::holds_alternative<std::monostate>(source.vocabulary)) {
    return Error{ErrorCode::kNotFound, "the checkpoint has no tokenizer", {}};
  }
  if (const auto* metadata = std::get_if<std::shared_ptr<const model::GgufMetadata>>(&source.vocabulary)) {
    const auto data = gguf_data(**metadata, source);
    if (!data) return data.error();
    return model::load_gguf_tokenizer(data.value());
  }
  const auto text = model::read_text_file(std::get<std::filesystem::path>(source.vocabulary), kMaxTokenizerBytes);
  if (!text) return text.error();
  return model::load_tokenizer_json(text.value(), {.bos_token = source.bos_token,
                                                   .eos_token = source.eos_token,
                                                   .add_bos = source.add_bos,
                                                   .add_eos = source.add_eos});
}

Result<PromptEncoderParts> load_text_parts(const model::TokenizerSource& source, const ServerConfig& config,
                                           std::shared_ptr<const Clock> clock) {
  PromptEncoderParts parts;
  parts.content_special_tokens = config.content_special_tokens;
  std::string chat_source = source.chat_template;
  if (!config.chat_template.empty()) {
    auto file = model::read_text_file(config.chat_template, kMaxTemplateBytes);
    if (!file) return invalid_argument(concat("--chat-template: ", file.error().message), "--chat-template");
    chat_source = std::move(file).value();
  }
  if (std::holds_alternative<std::monostate>(source.vocabulary)) {
    log_warn("the checkpoint has no tokenizer: only token ids are served");
    return parts;
  }
  auto tokenizer = load_tokenizer(source);
  if (!tokenizer && tokenizer.error().code != ErrorCode::kInvalidArgument) return tokenizer.error();
  if (!tokenizer) {
    log_warn("only token ids are served: ", tokenizer.error().message);
    return parts;
  }
  parts.tokenizer = std::move(tokenizer).value();
  compile_chat(std::move(chat_source), source, std::move(clock), parts);
  return parts;
}

}  // namespace hotset::actors
