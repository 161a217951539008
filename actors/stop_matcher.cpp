#include "actors/stop_matcher.h"

#include <algorithm>

namespace hotset::actors {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool keep_stop) : keep_stop_(keep_stop) {
  for (const std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop{.text = text, .fallback = std::vector<std::size_t>(text.size() + 1, 0), .matched = 0};
    for (std::size_t i = 1; i < text.size(); ++i) {
      std::size_t border = stop.fallback[i];
      while (border > 0 && text[i] != text[border]) border = stop.fallback[border];
      stop.fallback[i + 1] = border + (text[i] == text[border] ? 1 : 0);
    }
    stops_.push_back(std::move(stop));
  }
}

bool StopMatcher::add(std::string_view text, std::string& out) {
  std::size_t longest = 0;  // of the prefixes that the text ends with: what has to be withheld
  for (std::size_t i = 0; i < text.size(); ++i) {
    longest = 0;
    std::size_t found = 0;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != text[i]) stop.matched = stop.fallback[stop.matched];
      if (stop.text[stop.matched] == text[i]) ++stop.matched;
      longest = std::max(longest, stop.matched);
      if (stop.matched == stop.text.size()) found = std::max(found, stop.matched);
    }
    if (found == 0) continue;
    withheld_.append(text.substr(0, i + 1));
    out.append(withheld_, 0, withheld_.size() - (keep_stop_ ? 0 : found));
    withheld_.clear();
    return true;
  }
  if (text.empty()) return false;
  withheld_.append(text);
  const std::size_t ready = withheld_.size() - longest;
  out.append(withheld_, 0, ready);
  withheld_.erase(0, ready);
  return false;
}

void StopMatcher::finish(std::string& out) {
  out.append(withheld_);
  withheld_.clear();
}

}  // namespace hotset::actors
