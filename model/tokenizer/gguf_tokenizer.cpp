#include <algorithm>
#include <array>

#include "core/concat.h"
#include "model/printable.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_draft.h"
#include "model/tokenizer/tokenizer_json_steps.h"
#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

// Patterns of the tokenizer.json files that the converter recognised; GGUF keeps only their names.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                     R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kKimiK2 =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekCjk = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::size_t kMaxSplits = 5;

struct PreTokenizerFamily {
  std::array<std::string_view, 12> names;             // values of tokenizer.ggml.pre
  std::array<std::string_view, kMaxSplits> patterns;  // applied one after the other
  bool ignore_merges = false;
  bool add_bos = false;  // where the file doesn't say
};

constexpr PreTokenizerFamily kFamilies[] = {
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     {R"(\p{N})", kGpt2Pattern}},
    {{"gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling", "exaone4", "gigachat", "mellum"},
     {kGpt2Pattern}},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}, {kLlama3}, true, true},
    {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3}},
    {{"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2", "kormo", "f2llmv2", "solar-open"},
     {kQwen2}},
    {{"qwen35"}, {kQwen35}},
    {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {kGpt4o}},
    {{"tekken"}, {kTekken}, true, true},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {R"(\p{N}{1,3})", kDeepSeekCjk, kDeepSeekWords}},
    {{"deepseek-coder"},
     {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", R"([\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+)",
      R"(\p{N})"}},
    {{"falcon"}, {R"([\p{P}$+<=>^~|`]+)", kGpt2Pattern, "[0-9][0-9][0-9]"}},
    {{"kimi-k2"}, {kKimiK2}},
    {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
    {{"seed-coder"}, {kSeedCoder}},
    {{"default"}, {R"([\p{P}$+<=>^~|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
};

enum TokenType : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

const PreTokenizerFamily* find_family(std::string_view name) {
  for (const auto& family : kFamilies) {
    if (std::find(family.names.begin(), family.names.end(), name) != family.names.end()) return &family;
  }
  return nullptr;
}

// Control tokens stay out of the vocabulary of BPE: plain text must never become one.
Result<void> read_tokens(const GgufTokenizerData& data, TokenizerDraft& out) {
  if (data.tokens.empty()) return corrupt("tokenizer.ggml.tokens is empty");
  if (data.tokens.size() > static_cast<std::size_t>(kMaxVocabulary))
    return corrupt("tokenizer.ggml.tokens is too long");
  if (!data.token_types.empty() && data.token_types.size() != data.tokens.size()) {
    return corrupt(concat("tokenizer.ggml.token_type has ", data.token_types.size(), " entries for ",
                          data.tokens.size(), " tokens"));
  }
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const std::int32_t type = data.token_types.empty() ? std::int32_t{kNormal} : data.token_types[i];
    if (type < kNormal || type > kByte) {
      return corrupt(concat("tokenizer.ggml.token_type[", i, "] is ", type, ", which is no token type"));
    }
    if (!is_valid_utf8(data.tokens[i])) return corrupt(concat("tokenizer.ggml.tokens[", i, "] is not valid UTF-8"));
    const bool special = type == kControl || type == kUnknown;
    if ((special || type == kUserDefined) && !data.tokens[i].empty()) {
      AddedToken token;
      token.content = data.tokens[i];
      token.id = static_cast<std::int32_t>(i);
      token.special = special;
      out.added.push_back(std::move(token));
      if (special) continue;
    }
    auto added = out.vocabulary->add(data.tokens[i], static_cast<std::int64_t>(i));
    if (!added) return added.error();
  }
  return {};
}

Result<void> read_merges(const GgufTokenizerData& data, TokenizerDraft& out) {
  out.merges.reserve(data.merges.size());
  for (std::size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view text = data.merges[i];
    const auto space = text.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == text.size()) {
      return corrupt(concat("tokenizer.ggml.merges[", i, "] must be two tokens"));
    }
    out.merges.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return {};
}

Result<void> add_patterns(const PreTokenizerFamily& family, PreTokenizer& out) {
  for (const std::string_view source : family.patterns) {
    if (source.empty()) break;
    auto pattern = Pattern::regex(source);
    if (!pattern) return pattern.error();
    out.add(SplitStep{std::move(pattern).value(), SplitBehavior::kIsolated, false});
  }
  out.add(ByteLevelStep{});
  return {};
}

Result<std::optional<std::int32_t>> read_id(const std::optional<std::int64_t>& id, std::size_t tokens,
                                            std::string_view key) {
  if (!id) return std::optional<std::int32_t>();
  if (*id < 0 || static_cast<std::uint64_t>(*id) >= tokens) {
    return corrupt(concat("tokenizer.ggml.", key, " is ", *id, ", outside the vocabulary"));
  }
  return std::optional<std::int32_t>(static_cast<std::int32_t>(*id));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_gguf_tokenizer(const GgufTokenizerData& data) {
  if (data.model != "gpt2") {
    return invalid_argument(
        concat("the GGUF tokenizer model '", printable(data.model), "' is not supported; only gpt2 is"));
  }
  const PreTokenizerFamily* family = find_family(data.pre.empty() ? "default" : data.pre);
  if (family == nullptr) {
    return invalid_argument(concat("the GGUF pre-tokenizer '", printable(data.pre), "' is not supported"));
  }
  TokenizerDraft draft;
  auto done = read_tokens(data, draft);
  if (done) done = read_merges(data, draft);
  if (done) done = add_patterns(*family, draft.pre_tokenizer);
  if (!done) return done.error();
  auto bos = read_id(data.bos_id, data.tokens.size(), "bos_token_id");
  if (!bos) return bos.error();
  auto eos = read_id(data.eos_id, data.tokens.size(), "eos_token_id");
  if (!eos) return eos.error();
  draft.bos = bos.value();
  draft.eos = eos.value();
  draft.bpe.ignore_merges = family->ignore_merges;
  draft.decoder.add(ByteLevelDecode{});
  if (draft.bos && data.add_bos.value_or(family->add_bos)) draft.prefix.push_back(*draft.bos);
  if (draft.eos && data.add_eos.value_or(false)) draft.suffix.push_back(*draft.eos);
  return assemble_tokenizer(std::move(draft));
}

}  // namespace hotset::model
