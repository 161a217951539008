// How deep a JSON text nests, told before it is parsed: a parser's tree of a few million brackets takes a hundred times
// their bytes, and whoever walks it by recursion runs out of stack.
#pragma once

#include <string_view>

namespace hotset::model {

// Whether arrays and objects of `json` stand more than `limit` inside each other. Brackets inside texts do not count.
// For text that is no JSON the answer means nothing; the parser refuses it.
[[nodiscard]] inline bool nests_deeper(std::string_view json, int limit) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (in_text) {
      if (c == '\\') ++at;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace hotset::model
