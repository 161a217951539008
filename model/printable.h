// Names out of files, for messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/concat.h"

namespace hotset::model {

// `text` shortened to 80 bytes, bytes outside printable ASCII as '?'.
[[nodiscard]] inline std::string printable(std::string_view text) {
  constexpr std::size_t kLimit = 80;
  std::string out(text.substr(0, kLimit));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > kLimit) out += "...";
  return out;
}

// "a, b, c": the first 8, then how many more there are.
[[nodiscard]] inline std::string name_list(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    out += concat(i == 0 ? "" : ", ", printable(names[i]));
  }
  if (names.size() > kShown) out += concat(" and ", names.size() - kShown, " more");
  return out;
}

}  // namespace hotset::model
