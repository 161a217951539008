// Finds stop strings in text that comes in pieces, without sending any part of one. Only a suffix that is a real prefix
// of a stop string is withheld. The result depends on the text alone, not on where it was cut. Thread: one owner.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hotset::actors {

class StopMatcher {
 public:
  // `stops`: valid UTF-8, empty ones are ignored. `keep_stop`: the stop string itself is part of the output.
  StopMatcher(const std::vector<std::string>& stops, bool keep_stop);

  // Appends to `out` what can be sent now. True: the stop string that ends first was found (of those that end together,
  // the one that starts first); what follows it is dropped, and the matcher is not used again.
  [[nodiscard]] bool add(std::string_view text, std::string& out);
  // The end of the text: appends what was withheld.
  void finish(std::string& out);

 private:
  struct Stop {
    std::string text;
    std::vector<std::size_t> fallback;  // [i]: length of the longest proper border of the first i bytes
    std::size_t matched = 0;            // longest prefix of `text` that the text so far ends with
  };
  std::vector<Stop> stops_;
  bool keep_stop_;
  std::string withheld_;
};

}  // namespace hotset::actors
