#include "model/tokenizer/tokenizer_draft.h"

#include <algorithm>
#include <unordered_set>

#include "core/concat.h"
#include "model/tokenizer/byte_level.h"

namespace hotset::model {
namespace {

// Added tokens may repeat vocabulary entries, but only with the same id and text.
Result<void> check_added(const TokenizerDraft& draft) {
  std::unordered_set<std::string_view> contents;
  std::unordered_set<std::int32_t> ids;
  for (std::size_t i = 0; i < draft.added.size(); ++i) {
    const AddedToken& token = draft.added[i];
    if (token.content.empty()) return corrupt(concat("added token ", i, " has no text"));
    if (token.id < 0 || token.id >= kMaxVocabulary)
      return corrupt(concat("added token ", i, " has an id out of range"));
    if (!contents.insert(token.content).second) return corrupt(concat("added token ", i, " repeats an earlier text"));
    if (!ids.insert(token.id).second) return corrupt(concat("added token ", i, " repeats the id ", token.id));
    const auto known = draft.vocabulary->find(token.content);
    if (known && *known != token.id) {
      return corrupt(concat("added token ", i, " has the id ", token.id, ", but the vocabulary gives it ", *known));
    }
    if (!known && draft.vocabulary->contains(token.id)) {
      return corrupt(concat("added token ", i, " has the id ", token.id, " of another token"));
    }
  }
  // Behind the vocabulary makers leave reserved ids out; inside it a gap means a damaged file.
  for (std::int32_t id = 0; id < draft.vocabulary->size(); ++id) {
    if (!draft.vocabulary->contains(id) && !ids.contains(id)) {
      return corrupt(concat("the vocabulary has no token for id ", id));
    }
  }
  return {};
}

Result<void> fill_bytes(const TokenizerDraft& draft, TokenizerParts& parts) {
  std::int32_t size = parts.vocabulary->size();
  for (const AddedToken& token : draft.added) size = std::max(size, token.id + 1);
  parts.bytes.resize(size);
  parts.special.assign(static_cast<std::size_t>(size), false);
  std::vector<bool> is_added(static_cast<std::size_t>(size), false);
  for (const AddedToken& token : draft.added) {
    const auto index = static_cast<std::size_t>(token.id);
    is_added[index] = true;
    parts.special[index] = token.special;
    parts.bytes.set(token.id, token.content);
  }
  for (std::int32_t id = 0; id < parts.vocabulary->size(); ++id) {
    if (is_added[static_cast<std::size_t>(id)]) continue;
    auto bytes = draft.decoder.bytes_of(parts.vocabulary->text(id));
    if (!bytes) return bytes.error();
    parts.bytes.set(id, bytes.value());
  }
  return {};
}

Result<void> check_special_ids(const TokenizerDraft& draft, std::int32_t size) {
  const auto outside = [size](std::int32_t id) { return id < 0 || id >= size; };
  if (draft.bos && outside(*draft.bos)) return corrupt(concat("the BOS id ", *draft.bos, " is outside the vocabulary"));
  if (draft.eos && outside(*draft.eos)) return corrupt(concat("the EOS id ", *draft.eos, " is outside the vocabulary"));
  for (const auto* ids : {&draft.prefix, &draft.suffix}) {
    for (const std::int32_t id : *ids) {
      if (outside(id)) return corrupt(concat("the post-processor's token id ", id, " is outside the vocabulary"));
    }
  }
  return {};
}

// Whether BPE may work on raw bytes: no byte may need the handling of unknown characters.
bool takes_raw_bytes(const TokenizerDraft& draft) {
  if (!draft.bpe.byte_fallback && !draft.bpe.unknown) return true;
  const auto& characters = byte_level_characters();
  return std::all_of(characters.begin(), characters.end(),
                     [&](const std::string& character) { return draft.vocabulary->find(character).has_value(); });
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> assemble_tokenizer(TokenizerDraft draft) {
  auto checked = check_added(draft);
  if (!checked) return checked.error();
  if (takes_raw_bytes(draft)) draft.bpe.byte_level = draft.pre_tokenizer.drop_final_byte_level();
  auto bpe = Bpe::build(*draft.vocabulary, draft.merges, draft.bpe);
  if (!bpe) return bpe.error();
  auto added = AddedTokens::build(draft.added, draft.normalizer);
  if (!added) return added.error();

  TokenizerParts parts;
  parts.vocabulary = std::move(draft.vocabulary);
  parts.bpe = std::move(bpe).value();
  parts.added = std::move(added).value();
  auto filled = fill_bytes(draft, parts);
  if (!filled) return filled.error();
  checked = check_special_ids(draft, parts.bytes.size());
  if (!checked) return checked.error();
  parts.normalizer = std::move(draft.normalizer);
  parts.pre_tokenizer = std::move(draft.pre_tokenizer);
  parts.leading_strip = std::move(draft.leading_strip);
  parts.prefix = std::move(draft.prefix);
  parts.suffix = std::move(draft.suffix);
  parts.bos = draft.bos;
  parts.eos = draft.eos;
  return std::shared_ptr<const Tokenizer>(std::make_shared<Tokenizer>(std::move(parts)));
}

}  // namespace hotset::model
