#include "model/hf_tokenizer_files.h"

#include <string>

#include "model/json_options.h"
#include "model/mapped_file.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMaxConfigBytes = 32 << 20;
constexpr std::uint64_t kMaxTemplateBytes = 4 << 20;

// An absent file is an empty text.
Result<std::string> read_optional(const fs::path& path, std::uint64_t limit) {
  auto text = read_text_file(path, limit);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::string();
  return text;
}

// A special token is its text, or an object that holds it as "content".
std::string token_text(JsonOptions& options, std::string_view key) {
  const auto* value = options.find(key);
  if (value == nullptr) return {};
  if (value->is_object()) {
    const auto content = value->find("content");
    if (content != value->end() && content->is_string()) return content->get<std::string>();
  }
  return options.text(key).value_or("");
}

std::string default_template(JsonOptions& options) {
  const auto* value = options.find("chat_template");
  if (value == nullptr || !value->is_array()) return options.text("chat_template").value_or("");
  for (const auto& entry : *value) {
    if (!entry.is_object()) continue;
    const auto name = entry.find("name");
    const auto body = entry.find("template");
    if (name != entry.end() && *name == "default" && body != entry.end() && body->is_string()) {
      return body->get<std::string>();
    }
  }
  return {};
}

}  // namespace

Result<TokenizerSource> read_hf_tokenizer_files(const fs::path& folder) {
  TokenizerSource source;
  std::error_code ignored;
  if (fs::exists(folder / "tokenizer.json", ignored)) source.vocabulary = folder / "tokenizer.json";

  auto text = read_optional(folder / "tokenizer_config.json", kMaxConfigBytes);
  if (!text) return text.error();
  if (!text.value().empty()) {
    auto object = parse_json_object(text.value(), "tokenizer_config.json");
    if (!object) return object.error();
    JsonOptions options(object.value(), "tokenizer_config.");
    source.bos_token = token_text(options, "bos_token");
    source.eos_token = token_text(options, "eos_token");
    source.pad_token = token_text(options, "pad_token");
    source.unk_token = token_text(options, "unk_token");
    source.add_bos = options.boolean("add_bos_token");
    source.add_eos = options.boolean("add_eos_token");
    source.chat_template = default_template(options);
    if (options.error()) return *options.error();
  }
  auto file = read_optional(folder / "chat_template.jinja", kMaxTemplateBytes);
  if (!file) return file.error();
  if (!file.value().empty()) source.chat_template = std::move(file).value();
  return source;
}

}  // namespace hotset::model
