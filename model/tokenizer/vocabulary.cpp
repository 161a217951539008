#include "model/tokenizer/vocabulary.h"

#include <functional>
#include <limits>

#include "core/concat.h"

namespace hotset::model {
namespace {

std::size_t text_hash(std::string_view text) { return std::hash<std::string_view>{}(text); }

}  // namespace

Vocabulary::Vocabulary() : slots_(1024) {}

Result<void> Vocabulary::add(std::string_view text, std::int64_t id) {
  if (id < 0 || id >= kMaxVocabulary) return corrupt(concat("token id ", id, " is out of range"));
  if (text.size() > std::numeric_limits<std::uint32_t>::max()) return corrupt(concat("token ", id, " is too long"));
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  if (tokens_[index].present) return corrupt(concat("token id ", id, " is given to two tokens"));
  if (!text.empty()) {
    if ((used_ + 1) * 2 > slots_.size()) grow();
    const std::size_t hash = text_hash(text);
    Slot& slot = slots_[slot_of(text, hash)];
    if (slot.id >= 0) return corrupt(concat("token ", id, " has the same text as token ", slot.id));
    slot = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::int32_t>(id)};
    ++used_;
  }
  tokens_[index] = {arena_.size(), static_cast<std::uint32_t>(text.size()), true};
  arena_ += text;
  return {};
}

std::size_t Vocabulary::slot_of(std::string_view text, std::size_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].id >= 0) {
    if (slots_[at].hash == static_cast<std::uint32_t>(hash >> 32) && this->text(slots_[at].id) == text) break;
    at = (at + 1) & mask;
  }
  return at;
}

void Vocabulary::grow() {
  std::vector<Slot> old(slots_.size() * 4);
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    std::size_t at = text_hash(text(slot.id)) & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  const Slot& slot = slots_[slot_of(text, text_hash(text))];
  return slot.id < 0 ? std::nullopt : std::optional(slot.id);
}

bool Vocabulary::contains(std::int32_t id) const {
  return id >= 0 && id < size() && tokens_[static_cast<std::size_t>(id)].present;
}

std::string_view Vocabulary::text(std::int32_t id) const {
  if (!contains(id)) return {};
  const Token& token = tokens_[static_cast<std::size_t>(id)];
  return std::string_view(arena_).substr(token.begin, token.bytes);
}

}  // namespace hotset::model
