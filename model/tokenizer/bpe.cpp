#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "core/concat.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::size_t slot_hash(std::uint64_t pair) { return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15ULL) >> 29); }

std::string fallback_token(int byte) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[static_cast<std::size_t>(byte >> 4)], digits[static_cast<std::size_t>(byte & 15)], '>'};
}

}  // namespace

Result<Bpe> Bpe::build(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const BpeOptions& options) {
  Bpe bpe;
  bpe.vocabulary_ = &vocabulary;
  bpe.options_ = options;
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<std::size_t>(byte);
    bpe.byte_ids_[index] = vocabulary.find(byte_level_characters()[index]).value_or(-1);
    bpe.fallback_ids_[index] = vocabulary.find(fallback_token(byte)).value_or(-1);
  }
  bpe.slots_.resize(std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 16)));
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    joined.assign(merge.left).append(merge.right);
    const auto left = vocabulary.find(merge.left);
    const auto right = vocabulary.find(merge.right);
    const auto result = vocabulary.find(joined);
    if (!left || !right) return corrupt(concat("merge ", rank, " names a token that isn't in the vocabulary"));
    if (!result) return corrupt(concat("merge ", rank, " makes a token that isn't in the vocabulary"));
    bpe.insert(pair_key(*left, *right), static_cast<std::uint32_t>(rank), *result);
  }
  return bpe;
}

void Bpe::insert(std::uint64_t pair, std::uint32_t rank, std::int32_t id) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = slot_hash(pair) & mask;
  while (slots_[at].pair != Slot{}.pair && slots_[at].pair != pair) at = (at + 1) & mask;
  slots_[at] = {pair, rank, id};
}

const Bpe::Slot* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_key(left, right);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = slot_hash(pair) & mask; slots_[at].pair != Slot{}.pair; at = (at + 1) & mask) {
    if (slots_[at].pair == pair) return &slots_[at];
  }
  return nullptr;
}

void Bpe::split_characters(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  bool pending = false;  // an unknown token that more characters may still join
  const std::int32_t unknown = options_.unknown.value_or(-1);
  for (std::size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, character_bytes(piece[at]));
    at += character.size();
    if (const auto id = vocabulary_->find(character)) {
      if (pending) symbols.push_back({unknown, 0, 0});
      pending = false;
      symbols.push_back({*id, 0, 0});
      continue;
    }
    const auto has_fallback = [this](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)] >= 0; };
    if (options_.byte_fallback && std::all_of(character.begin(), character.end(), has_fallback)) {
      for (const char byte : character) symbols.push_back({fallback_ids_[static_cast<unsigned char>(byte)], 0, 0});
      continue;
    }
    if (!options_.unknown) continue;
    if (pending && !options_.fuse_unknown) symbols.push_back({unknown, 0, 0});
    pending = true;
  }
  if (pending) symbols.push_back({unknown, 0, 0});
}

void Bpe::split_into_symbols(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  if (options_.byte_level) {
    for (const unsigned char byte : piece) {
      if (byte_ids_[byte] >= 0) symbols.push_back({byte_ids_[byte], 0, 0});
    }
  } else {
    split_characters(piece, scratch);
  }
  const auto count = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)].previous = i - 1;
    symbols[static_cast<std::size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

void Bpe::push_candidate(Scratch& scratch, std::int32_t position) const {
  const auto& symbol = scratch.symbols[static_cast<std::size_t>(position)];
  if (symbol.next < 0) return;
  const Slot* slot = find(symbol.id, scratch.symbols[static_cast<std::size_t>(symbol.next)].id);
  if (slot == nullptr) return;
  scratch.heap.push_back(static_cast<std::uint64_t>(slot->rank) << 32 | static_cast<std::uint32_t>(position));
}

// A heap of (rank, position) keeps this O(n log n). Entries whose pair has changed meanwhile are skipped.
void Bpe::merge_symbols(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) push_candidate(scratch, static_cast<std::int32_t>(i));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](std::int32_t position) {
    const std::size_t before = heap.size();
    push_candidate(scratch, position);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto position = static_cast<std::int32_t>(top & 0xffffffffU);
    auto& symbol = symbols[static_cast<std::size_t>(position)];
    if (symbol.id < 0 || symbol.next < 0) continue;
    auto& right = symbols[static_cast<std::size_t>(symbol.next)];
    const Slot* slot = find(symbol.id, right.id);
    if (slot == nullptr || slot->rank != top >> 32) continue;
    symbol.id = slot->id;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) symbols[static_cast<std::size_t>(symbol.next)].previous = position;
    if (symbol.previous >= 0) push(symbol.previous);
    push(position);
  }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out) const {
  if (options_.ignore_merges) {
    const auto whole = options_.byte_level ? vocabulary_->find(to_byte_level(piece)) : vocabulary_->find(piece);
    if (whole) {
      out.push_back(*whole);
      return;
    }
  }
  split_into_symbols(piece, scratch);
  merge_symbols(scratch);
  for (const auto& symbol : scratch.symbols) {
    if (symbol.id >= 0) out.push_back(symbol.id);
  }
}

}  // namespace hotset::model
