#include <algorithm>

#include "model/json_nesting.h"
#include "model/tokenizer/json_fields.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_draft.h"
#include "model/tokenizer/tokenizer_json_steps.h"

namespace hotset::model {
namespace {

using nlohmann::json;

// Steps are read by recursion. Real files nest about 8 deep.
constexpr int kMaxNesting = 64;

void read_vocabulary(const JsonObject& model, Vocabulary& out) {
  const json& table = model.map("vocab");
  for (const auto& [text, value] : table.items()) {
    const auto id = json_integer(value);
    if (!id) return model.errors().report(model.path("vocab"), "has an entry whose id is not an integer");
    // Ids count up from 0 (gaps may be filled by added tokens), so a far larger one is damage.
    if (*id < 0 || *id >= kMaxVocabulary) {
      return model.errors().report(model.path("vocab"), concat("has the id ", *id, ", which is out of range"));
    }
    auto added = out.add(text, *id);
    if (!added) return model.errors().set(added.error());
  }
}

// "left right" or ["left", "right"].
std::optional<Merge> read_merge(const json& entry) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return Merge{entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>()};
  }
  if (!entry.is_string()) return std::nullopt;
  const std::string_view text = entry.get_ref<const std::string&>();
  const auto space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return std::nullopt;
  return Merge{text.substr(0, space), text.substr(space + 1)};
}

void read_model(const JsonObject& model, TokenizerDraft& out) {
  const std::string type = model.text_or("type", model.has("merges") ? "BPE" : "without a type");
  if (type != "BPE") return model.errors().unsupported("model type", type);
  for (const auto* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text_or(name, "").empty()) return model.errors().unsupported(model.path(), name);
  }
  read_vocabulary(model, *out.vocabulary);
  const json& merges = model.array("merges");
  out.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto merge = read_merge(merges[i]);
    if (!merge) return model.errors().report(concat(model.path("merges"), "[", i, "]"), "must be two tokens");
    out.merges.push_back(*merge);
  }
  out.bpe.ignore_merges = model.flag_or("ignore_merges", false);
  out.bpe.byte_fallback = model.flag_or("byte_fallback", false);
  out.bpe.fuse_unknown = model.flag_or("fuse_unk", false);
  if (!model.has("unk_token")) return;
  out.bpe.unknown = out.vocabulary->find(model.text("unk_token"));
  if (!out.bpe.unknown) model.errors().report(model.path("unk_token"), "is not in the vocabulary");
}

void read_added_tokens(const JsonObject& root, TokenizerDraft& out) {
  if (!root.has("added_tokens")) return;
  const json& list = root.array("added_tokens");
  for (std::size_t i = 0; i < list.size() && root.errors().ok(); ++i) {
    const JsonObject entry(list[i], concat("added_tokens[", i, "]"), root.errors());
    AddedToken token;
    token.content = entry.text("content");
    const std::int64_t id = entry.integer("id");
    if (id < 0 || id >= kMaxVocabulary) return root.errors().report(entry.path("id"), "is out of range");
    token.id = static_cast<std::int32_t>(id);
    token.special = entry.flag_or("special", false);
    token.single_word = entry.flag_or("single_word", false);
    token.lstrip = entry.flag_or("lstrip", false);
    token.rstrip = entry.flag_or("rstrip", false);
    token.normalized = entry.flag_or("normalized", !token.special);
    // The reference leaves tokens without text out, too.
    if (!token.content.empty()) out.added.push_back(std::move(token));
  }
}

std::optional<std::int32_t> find_token(const TokenizerDraft& draft, std::string_view text) {
  for (const AddedToken& token : draft.added) {
    if (token.content == text) return token.id;
  }
  return draft.vocabulary->find(text);
}

std::optional<std::int32_t> find_named(const TokenizerDraft& draft, const std::string& text, std::string_view name,
                                       JsonErrors& errors) {
  if (text.empty()) return std::nullopt;
  const auto id = find_token(draft, text);
  if (!id) errors.report(name, "of tokenizer_config.json is not in the vocabulary");
  return id;
}

// An explicit add_bos_token or add_eos_token outranks the post-processor, as in the reference.
void apply_settings(const TokenizerSettings& settings, TokenizerDraft& out, JsonErrors& errors) {
  // Without settings the post-processor alone tells which token opens a text.
  if (!out.prefix.empty()) out.bos = out.prefix.front();
  if (const auto bos = find_named(out, settings.bos_token, "bos_token", errors)) out.bos = bos;
  out.eos = find_named(out, settings.eos_token, "eos_token", errors);
  if (settings.add_bos && out.bos) {
    const bool has = !out.prefix.empty() && out.prefix.front() == *out.bos;
    if (*settings.add_bos && !has) out.prefix.insert(out.prefix.begin(), *out.bos);
    if (!*settings.add_bos && has) out.prefix.erase(out.prefix.begin());
  }
  if (settings.add_eos && out.eos) {
    const bool has = !out.suffix.empty() && out.suffix.back() == *out.eos;
    if (*settings.add_eos && !has) out.suffix.push_back(*out.eos);
    if (!*settings.add_eos && has) out.suffix.pop_back();
  }
}

void read_file(const JsonObject& root, TokenizerDraft& out) {
  read_model(root.object("model"), out);
  if (!root.errors().ok()) return;
  read_added_tokens(root, out);
  if (root.has("normalizer")) read_normalizer(root.object("normalizer"), out.normalizer);
  if (root.has("pre_tokenizer")) read_pre_tokenizer(root.object("pre_tokenizer"), out.pre_tokenizer);
  if (!root.has("decoder")) return root.errors().report("decoder", "is missing");
  read_decoder(root.object("decoder"), out);
  if (root.has("post_processor")) read_post_processor(root.object("post_processor"), out);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(std::string_view json_text,
                                                             const TokenizerSettings& settings) {
  if (nests_deeper(json_text, kMaxNesting)) return corrupt("tokenizer.json is nested too deeply");
  const json document = json::parse(json_text, nullptr, false);
  if (document.is_discarded()) return corrupt("tokenizer.json is not valid JSON");
  JsonErrors errors("tokenizer.json");
  TokenizerDraft draft;
  read_file(JsonObject(document, "", errors), draft);
  if (errors.ok()) apply_settings(settings, draft, errors);
  if (!errors.ok()) return errors.error();
  auto tokenizer = assemble_tokenizer(std::move(draft));
  if (!tokenizer) errors.set(tokenizer.error());
  return errors.ok() ? std::move(tokenizer) : errors.error();
}

}  // namespace hotset::model
