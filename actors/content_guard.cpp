#include "actors/content_guard.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace hotset::actors {
namespace {

using Json = nlohmann::ordered_json;
using MarkText = std::function<std::string(std::string_view)>;

constexpr int kMaxDepth = 256;  // of the client's JSON; the walk below is recursive

std::size_t character_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte >= 0xF0) return 4;
  if (byte >= 0xE0) return 3;
  return byte >= 0xC0 ? 2 : 1;
}

std::string private_use_character(int number) {  // U+E000 + number, number < 6400
  const int code = 0xE000 + number;
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

bool rewrite(Json& value, const MarkText& mark, int depth) {
  if (depth > kMaxDepth) return false;
  if (value.is_string()) {
    value = mark(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    for (Json& item : value) {
      if (!rewrite(item, mark, depth + 1)) return false;
    }
  } else if (value.is_object()) {
    Json out = Json::object();
    for (auto& [key, item] : value.items()) {
      if (!rewrite(item, mark, depth + 1)) return false;
      out[mark(key)] = std::move(item);
    }
    value = std::move(out);
  }
  return true;
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

ContentGuard::ContentGuard(std::shared_ptr<const model::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {
  for (std::int32_t id = 0; id < tokenizer_->vocabulary_size(); ++id) {
    if (!tokenizer_->is_special(id)) continue;
    const std::string_view text = tokenizer_->token_bytes(id);
    if (!text.empty()) specials_by_first_byte_[static_cast<unsigned char>(text.front())].emplace_back(text);
  }
  for (auto& texts : specials_by_first_byte_) {
    std::sort(texts.begin(), texts.end(), [](const std::string& a, const std::string& b) {
      return a.size() != b.size() ? a.size() > b.size() : a < b;
    });
  }
}

Result<GuardedChat> ContentGuard::protect(const ChatPrompt& prompt) const {
  GuardedChat out{.prompt = prompt, .mark = {}};
  std::string* const texts[] = {&out.prompt.messages_json, &out.prompt.tools_json, &out.prompt.template_kwargs_json};
  const char* const fields[] = {"messages", "tools", "chat_template_kwargs"};
  Json parsed[3];
  std::string everything;
  for (int i = 0; i < 3; ++i) {
    if (texts[i]->empty()) continue;
    parsed[i] = Json::parse(*texts[i], nullptr, false);
    if (parsed[i].is_discarded()) return invalid_argument("the field is not valid JSON", fields[i]);
    everything += text_of(parsed[i]);
  }
  int number = 0;
  while (number < 6400 && everything.find(private_use_character(number)) != std::string::npos) ++number;
  if (number == 6400) return invalid_argument("the messages use every private-use character", "messages");
  const std::string mark = private_use_character(number);
  const auto mark_text = [&](std::string_view text) { return marked(text, mark); };
  for (int i = 0; i < 3; ++i) {
    if (texts[i]->empty()) continue;
    if (!rewrite(parsed[i], mark_text, 0)) return invalid_argument("the field is nested too deeply", fields[i]);
    std::string rewritten = text_of(parsed[i]);
    if (rewritten.find(mark) == std::string::npos) continue;
    out.mark = mark;
    *texts[i] = std::move(rewritten);
  }
  return out;
}

bool ContentGuard::may_begin_special(std::string_view text, std::size_t position) const {
  const std::string_view rest = text.substr(position);
  for (const std::string& special : specials_by_first_byte_[static_cast<unsigned char>(rest.front())]) {
    const std::size_t common = std::min(rest.size(), special.size());
    if (rest.substr(0, common) == std::string_view(special).substr(0, common)) return true;
  }
  return false;
}

std::string ContentGuard::marked(std::string_view text, std::string_view mark) const {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!may_begin_special(text, i)) continue;
    const std::size_t after = std::min(text.size(), i + character_bytes(text[i]));
    out.append(text, copied, after - copied);
    out.append(mark);
    copied = after;
  }
  out.append(text.substr(copied));
  return out;
}

std::size_t ContentGuard::special_at(std::string_view text, std::size_t position, std::string_view mark) const {
  const std::string_view rest = text.substr(position);
  for (const std::string& special : specials_by_first_byte_[static_cast<unsigned char>(rest.front())]) {
    if (!rest.starts_with(special)) continue;
    // A token of one character can't hold the mark inside: it follows.
    const bool single = special.size() == character_bytes(special.front());
    if (single && rest.substr(special.size()).starts_with(mark)) continue;
    return special.size();
  }
  return 0;
}

Result<std::vector<std::int32_t>> ContentGuard::encode(std::string_view rendered, std::string_view mark) const {
  if (mark.empty()) return tokenizer_->encode(rendered);
  std::vector<std::int32_t> out;
  std::string plain;
  std::optional<Error> failure;
  const auto encode_part = [&](std::string_view text, bool special) {
    if (text.empty() || failure) return;
    auto ids = tokenizer_->encode(text, {.add_special_tokens = false, .parse_special = special});
    if (!ids) {
      failure = ids.error();
      return;
    }
    out.insert(out.end(), ids.value().begin(), ids.value().end());
  };
  for (std::size_t i = 0; i < rendered.size();) {
    if (rendered.substr(i).starts_with(mark)) {
      i += mark.size();
    } else if (const std::size_t size = special_at(rendered, i, mark); size > 0) {
      encode_part(std::exchange(plain, {}), false);
      encode_part(rendered.substr(i, size), true);
      i += size;
    } else {
      plain.push_back(rendered[i++]);
    }
  }
  encode_part(plain, false);
  if (failure) return *failure;
  return out;
}

}  // namespace hotset::actors
