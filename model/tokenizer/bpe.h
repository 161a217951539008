// Byte-pair encoding of one piece of text: merges neighbours, best rank first, leftmost first among equals.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "model/tokenizer/vocabulary.h"

namespace hotset::model {

struct BpeOptions {
  bool byte_level = false;              // pieces are raw bytes whose printable spelling is in the vocabulary
  bool ignore_merges = false;           // a piece that is a token as a whole is that token
  bool byte_fallback = false;           // an unknown character becomes its bytes' "<0x..>" tokens
  bool fuse_unknown = false;            // unknown characters in a row give one unknown token
  std::optional<std::int32_t> unknown;  // without it unknown characters are left out
};

struct Merge {
  std::string_view left, right;
};

class Bpe {
 public:
  // Working memory of one thread, kept between pieces.
  struct Scratch {
    struct Symbol {
      std::int32_t id;  // -1: merged into an earlier one
      std::int32_t previous, next;
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> heap;
  };

  // `merges` best first; of equal ones the last counts. Fails with the number of a merge whose parts or result aren't
  // in the vocabulary. The vocabulary must outlive the object.
  [[nodiscard]] static Result<Bpe> build(const Vocabulary& vocabulary, const std::vector<Merge>& merges,
                                         const BpeOptions& options);

  // Appends the ids. `piece` is at most 2^31 - 1 bytes; valid UTF-8 unless byte_level.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  struct Slot {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint32_t rank = 0;
    std::int32_t id = 0;
  };

  void insert(std::uint64_t pair, std::uint32_t rank, std::int32_t id);
  [[nodiscard]] const Slot* find(std::int32_t left, std::int32_t right) const;
  void split_into_symbols(std::string_view piece, Scratch& scratch) const;
  void split_characters(std::string_view piece, Scratch& scratch) const;
  void merge_symbols(Scratch& scratch) const;
  void push_candidate(Scratch& scratch, std::int32_t position) const;

  const Vocabulary* vocabulary_ = nullptr;
  BpeOptions options_;
  std::array<std::int32_t, 256> byte_ids_{};      // by byte, for byte_level; -1 = not in the vocabulary
  std::array<std::int32_t, 256> fallback_ids_{};  // of "<0x..>"
  std::vector<Slot> slots_;                       // open addressing, a power of two, at most half full
};

}  // namespace hotset::model
