#include "model/tokenizer/token_decoder.h"

#include "model/tokenizer/byte_level.h"

namespace hotset::model {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> run_step(const ByteLevelDecode&, std::string_view token) {
  auto bytes = from_byte_level(token);
  return bytes ? std::move(*bytes) : std::string(token);
}

Result<std::string> run_step(const ByteFallbackDecode&, std::string_view token) {
  if (token.size() == 6 && token.starts_with("<0x") && token[5] == '>') {
    const int high = hex_digit(token[3]);
    const int low = hex_digit(token[4]);
    if (high >= 0 && low >= 0) return std::string(1, static_cast<char>(high * 16 + low));
  }
  return std::string(token);
}

Result<std::string> run_step(const ReplaceStep& step, std::string_view token) {
  return replace_matches(*step.pattern, token, step.content);
}

Result<std::string> run_step(const StripDecode& step, std::string_view token) {
  for (int i = 0; i < step.start && token.starts_with(step.content); ++i) token.remove_prefix(step.content.size());
  for (int i = 0; i < step.stop && token.ends_with(step.content); ++i) token.remove_suffix(step.content.size());
  return std::string(token);
}

}  // namespace

Result<std::string> TokenDecoder::bytes_of(std::string_view token) const {
  std::string current(token);
  for (const TokenDecodeStep& step : steps_) {
    auto next = std::visit([&](const auto& kind) { return run_step(kind, current); }, step);
    if (!next) return next.error();
    // A byte is final, and may not be text any more.
    const bool became_byte = std::holds_alternative<ByteFallbackDecode>(step) && next.value() != current;
    current = std::move(next).value();
    if (became_byte) break;
  }
  return current;
}

}  // namespace hotset::model
