#include "model/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <cstdint>

#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

const icu::Normalizer2* instance_of(UnicodeForm form, UErrorCode& status) {
  switch (form) {
    case UnicodeForm::kNfc: return icu::Normalizer2::getNFCInstance(status);
    case UnicodeForm::kNfd: return icu::Normalizer2::getNFDInstance(status);
    case UnicodeForm::kNfkc: return icu::Normalizer2::getNFKCInstance(status);
    case UnicodeForm::kNfkd: return icu::Normalizer2::getNFKDInstance(status);
  }
  return nullptr;
}

Result<std::string> run_step(const UnicodeStep& step, std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = instance_of(step.form, status);
  std::string out;
  if (U_SUCCESS(status)) {
    out.reserve(text.size());
    icu::StringByteSink<std::string> sink(&out);
    normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr,
                              status);
  }
  if (U_FAILURE(status)) return Error{ErrorCode::kInternal, "Unicode normalisation of the text failed", {}};
  return out;
}

Result<std::string> run_step(const LowercaseStep&, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t point = next_code_point(text, at);
    append_code_point(static_cast<char32_t>(u_tolower(static_cast<UChar32>(point))), out);
    if (point == U'\u0130') append_code_point(U'\u0307', out);  // the only character whose lower case is two
  }
  return out;
}

Result<std::string> run_step(const ReplaceStep& step, std::string_view text) {
  return replace_matches(*step.pattern, text, step.content);
}

Result<std::string> run_step(const PrependStep& step, std::string_view text) {
  return text.empty() ? std::string() : step.text + std::string(text);
}

Result<std::string> run_step(const StripStep& step, std::string_view text) {
  std::size_t begin = std::string_view::npos;  // of the first character that stays
  std::size_t end = 0;                         // of the last one
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    if (u_hasBinaryProperty(static_cast<UChar32>(next_code_point(text, at)), UCHAR_WHITE_SPACE)) continue;
    if (begin == std::string_view::npos) begin = start;
    end = at;
  }
  if (begin == std::string_view::npos) begin = text.size();
  if (!step.left) begin = 0;
  if (!step.right) end = text.size();
  return begin < end ? std::string(text.substr(begin, end - begin)) : std::string();
}

}  // namespace

Result<std::string> Normalizer::run(std::string_view text) const {
  std::string current(text);
  for (const NormalizerStep& step : steps_) {
    auto next = std::visit([&](const auto& kind) { return run_step(kind, current); }, step);
    if (!next) return next.error();
    current = std::move(next).value();
  }
  return current;
}

Result<std::string> replace_matches(const Pattern& pattern, std::string_view text, std::string_view content) {
  std::vector<Span> matches;
  auto found = pattern.find_all(text, 0, matches);
  if (!found) return found.error();
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  for (const Span& match : matches) {
    out += text.substr(at, match.begin - at);
    out += content;
    at = match.end;
  }
  out += text.substr(at);
  return out;
}

}  // namespace hotset::model
