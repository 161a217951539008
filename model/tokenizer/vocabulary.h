// The model's own tokens: text by id and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace hotset::model {

inline constexpr std::int64_t kMaxVocabulary = 4 * 1024 * 1024;

// Texts share one buffer and the index is a flat table: loading asks it several times per merge. Ids may have gaps.
class Vocabulary {
 public:
  Vocabulary();
  // Fails when the id is out of range or taken, or the text is known already. Tokens without text may repeat.
  [[nodiscard]] Result<void> add(std::string_view text, std::int64_t id);
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const;
  // Empty where the id has no token. Valid until the next add().
  [[nodiscard]] std::string_view text(std::int32_t id) const;
  [[nodiscard]] bool contains(std::int32_t id) const;
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }  // largest id + 1

 private:
  struct Token {
    std::size_t begin = 0;
    std::uint32_t bytes = 0;
    bool present = false;
  };
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;  // -1: free
  };

  [[nodiscard]] std::size_t slot_of(std::string_view text, std::size_t hash) const;  // its own or the free one for it
  void grow();

  std::string arena_;
  std::vector<Token> tokens_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::size_t used_ = 0;
};

}  // namespace hotset::model
