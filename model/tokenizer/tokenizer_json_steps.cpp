#include "model/tokenizer/tokenizer_json_steps.h"

#include <array>
#include <limits>
#include <utility>

namespace hotset::model {
namespace {

constexpr std::string_view kPunctuation = R"([\p{P}$+<=>^`|~])";
constexpr std::string_view kMetaspaceMark = "\xe2\x96\x81";  // U+2581

// Calls `read(child)` for each object of the array `name`.
template <class Read>
void for_each_object(const JsonObject& parent, std::string_view name, Read read) {
  const auto& list = parent.array(name);
  for (std::size_t i = 0; i < list.size() && parent.errors().ok(); ++i) {
    read(JsonObject(list[i], concat(parent.path(name), "[", i, "]"), parent.errors()));
  }
}

std::shared_ptr<const Pattern> keep(Result<std::shared_ptr<const Pattern>> pattern, const JsonObject& step) {
  if (pattern) return std::move(pattern).value();
  Error error = pattern.error();
  error.message = concat(step.path(), ": ", error.message);
  step.errors().set(std::move(error));
  return nullptr;
}

// {"String": text} or {"Regex": text}.
std::shared_ptr<const Pattern> read_pattern(const JsonObject& step) {
  const JsonObject pattern = step.object("pattern");
  if (pattern.has("Regex")) return keep(Pattern::regex(pattern.text("Regex")), step);
  const std::string text = pattern.text("String");
  return step.errors().ok() ? keep(Pattern::literal(text), step) : nullptr;
}

ReplaceStep read_replace(const JsonObject& step) {
  ReplaceStep out{read_pattern(step), step.text("content")};
  // In a regex's replacement a dollar refers to a group.
  if (step.errors().ok() && step.object("pattern").has("Regex") && out.content.find('$') != std::string::npos) {
    step.errors().unsupported(step.path("content"), out.content);
  }
  return out;
}

SplitBehavior read_behavior(const JsonObject& step, std::string_view fallback) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  const std::string name = step.text_or("behavior", fallback);
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  step.errors().unsupported(step.path("behavior"), name);
  return SplitBehavior::kIsolated;
}

void add_split(const JsonObject& step, std::string_view regex, SplitBehavior behavior, bool invert, PreTokenizer& out) {
  if (auto pattern = keep(Pattern::regex(regex), step)) out.add(SplitStep{std::move(pattern), behavior, invert});
}

PrependScheme read_prepend_scheme(const JsonObject& step) {
  const std::string name = step.text_or("prepend_scheme", step.flag_or("add_prefix_space", true) ? "always" : "never");
  if (name == "never") return PrependScheme::kNever;
  if (name == "first") return PrependScheme::kFirst;
  if (name != "always") step.errors().unsupported(step.path("prepend_scheme"), name);
  return PrependScheme::kAlways;
}

void add_metaspace(const JsonObject& step, PreTokenizer& out) {
  const std::string mark = step.text_or("replacement", kMetaspaceMark);
  auto pattern = keep(Pattern::literal(mark), step);
  const PrependScheme scheme = read_prepend_scheme(step);
  if (!step.errors().ok()) return;
  out.add(ReplaceSpacesStep{mark});
  out.add(PrefixStep{mark, scheme});
  if (step.flag_or("split", true)) out.add(SplitStep{std::move(pattern), SplitBehavior::kMergedWithNext, false});
}

int small_count(const JsonObject& step, std::string_view name) {
  const std::int64_t count = step.integer_or(name, 0);
  if (count < 0 || count > 1000) step.errors().report(step.path(name), "must be between 0 and 1000");
  return static_cast<int>(count);
}

// A sequence of decoders. Behind "Fuse" all tokens are one string: only what touches its start can still be done.
void read_decoder_step(const JsonObject& step, bool& fused, TokenizerDraft& out) {
  const std::string type = step.text("type");
  if (!step.errors().ok()) return;
  if (type == "Sequence") {
    for_each_object(step, "decoders", [&](const JsonObject& child) { read_decoder_step(child, fused, out); });
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "Strip") {
    StripDecode strip{step.text("content"), small_count(step, "start"), small_count(step, "stop")};
    if (strip.content.empty()) step.errors().report(step.path("content"), "must not be empty");
    if (!fused) {
      out.decoder.add(std::move(strip));
    } else if (strip.stop != 0 || out.leading_strip.count != 0) {
      step.errors().unsupported(step.path(), "Strip behind Fuse at the end of the text");
    } else {
      out.leading_strip = {strip.content, strip.start};
    }
  } else if (fused) {
    step.errors().unsupported(step.path(), concat(type, " behind Fuse"));
  } else if (type == "ByteLevel") {
    out.decoder.add(ByteLevelDecode{});
  } else if (type == "ByteFallback") {
    out.decoder.add(ByteFallbackDecode{});
  } else if (type == "Replace") {
    out.decoder.add(read_replace(step));
  } else if (type == "Metaspace") {
    const std::string mark = step.text_or("replacement", kMetaspaceMark);
    out.decoder.add(ReplaceStep{keep(Pattern::literal(mark), step), " "});
    if (read_prepend_scheme(step) != PrependScheme::kNever) out.leading_strip = {" ", 1};
  } else {
    step.errors().unsupported(step.path("type"), type);
  }
}

std::int32_t token_id_in(const nlohmann::json& value, const std::string& path, JsonErrors& errors) {
  const auto id = json_integer(value);
  if (!id || *id < 0 || *id >= kMaxVocabulary) {
    errors.report(path, "must be a token id");
    return 0;
  }
  return static_cast<std::int32_t>(*id);
}

// "single": a list of {"SpecialToken": {"id": name}} and one {"Sequence": ..}; "special_tokens" gives the names' ids.
void read_template(const JsonObject& step, TokenizerDraft& out) {
  bool behind = false;
  for_each_object(step, "single", [&](const JsonObject& item) {
    if (item.has("Sequence")) {
      if (behind) step.errors().unsupported(step.path("single"), "a text that is used twice");
      behind = true;
      return;
    }
    const std::string name = item.object("SpecialToken").text("id");
    if (!step.errors().ok()) return;
    const JsonObject token = step.object("special_tokens").object(name);
    for (const auto& id : token.array("ids")) {
      (behind ? out.suffix : out.prefix).push_back(token_id_in(id, token.path("ids"), step.errors()));
    }
  });
  if (step.errors().ok() && !behind) step.errors().report(step.path("single"), "has no place for the text");
}

// ["<s>", 1]
std::int32_t read_token_pair(const JsonObject& step, std::string_view name) {
  const auto& pair = step.array(name);
  if (pair.size() == 2) return token_id_in(pair[1], step.path(name), step.errors());
  step.errors().report(step.path(name), "must be a token and its id");
  return 0;
}

}  // namespace

void read_normalizer(const JsonObject& step, Normalizer& out) {
  const std::string type = step.text("type");
  if (!step.errors().ok()) return;
  if (type == "Sequence") {
    for_each_object(step, "normalizers", [&](const JsonObject& child) { read_normalizer(child, out); });
  } else if (type == "NFC") {
    out.add(UnicodeStep{UnicodeForm::kNfc});
  } else if (type == "NFD") {
    out.add(UnicodeStep{UnicodeForm::kNfd});
  } else if (type == "NFKC") {
    out.add(UnicodeStep{UnicodeForm::kNfkc});
  } else if (type == "NFKD") {
    out.add(UnicodeStep{UnicodeForm::kNfkd});
  } else if (type == "Lowercase") {
    out.add(LowercaseStep{});
  } else if (type == "Replace") {
    out.add(read_replace(step));
  } else if (type == "Prepend") {
    out.add(PrependStep{step.text("prepend")});
  } else if (type == "Strip") {
    out.add(StripStep{step.flag_or("strip_left", true), step.flag_or("strip_right", true)});
  } else {
    step.errors().unsupported(step.path("type"), type);
  }
}

void read_pre_tokenizer(const JsonObject& step, PreTokenizer& out) {
  const std::string type = step.text("type");
  if (!step.errors().ok()) return;
  if (type == "Sequence") {
    for_each_object(step, "pretokenizers", [&](const JsonObject& child) { read_pre_tokenizer(child, out); });
  } else if (type == "ByteLevel") {
    if (step.flag_or("add_prefix_space", true)) out.add(PrefixStep{" ", PrependScheme::kAlways});
    if (step.flag_or("use_regex", true)) add_split(step, kGpt2Pattern, SplitBehavior::kIsolated, false, out);
    out.add(ByteLevelStep{});
  } else if (type == "Split") {
    SplitStep split{read_pattern(step), read_behavior(step, "Isolated"), step.flag_or("invert", false)};
    if (split.pattern) out.add(std::move(split));
  } else if (type == "Digits") {
    const bool individual = step.flag_or("individual_digits", false);
    add_split(step, individual ? R"(\p{N})" : R"(\p{N}+)", SplitBehavior::kIsolated, false, out);
  } else if (type == "Punctuation") {
    add_split(step, kPunctuation, read_behavior(step, "Isolated"), false, out);
  } else if (type == "Whitespace") {
    add_split(step, R"(\w+|[^\w\s]+)", SplitBehavior::kRemoved, true, out);
  } else if (type == "WhitespaceSplit") {
    add_split(step, R"(\s)", SplitBehavior::kRemoved, false, out);
  } else if (type == "CharDelimiterSplit") {
    if (auto pattern = keep(Pattern::literal(step.text("delimiter")), step)) {
      out.add(SplitStep{std::move(pattern), SplitBehavior::kRemoved, false});
    }
  } else if (type == "Metaspace") {
    add_metaspace(step, out);
  } else {
    step.errors().unsupported(step.path("type"), type);
  }
}

void read_decoder(const JsonObject& step, TokenizerDraft& out) {
  bool fused = false;
  read_decoder_step(step, fused, out);
}

void read_post_processor(const JsonObject& step, TokenizerDraft& out) {
  const std::string type = step.text("type");
  if (!step.errors().ok()) return;
  if (type == "Sequence") {
    for_each_object(step, "processors", [&](const JsonObject& child) { read_post_processor(child, out); });
  } else if (type == "TemplateProcessing") {
    read_template(step, out);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    out.prefix.push_back(read_token_pair(step, "cls"));
    out.suffix.push_back(read_token_pair(step, "sep"));
  } else if (type != "ByteLevel") {  // that one only changes offsets
    step.errors().unsupported(step.path("type"), type);
  }
}

}  // namespace hotset::model
