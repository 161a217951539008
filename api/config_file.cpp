#include "api/config_file.h"

#include <algorithm>

#include "core/concat.h"

namespace hotset::api {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if ((c == '#' || c == ';') && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
      return line.substr(0, i);
    }
  }
  return line;
}

// False when the quotes do not match.
bool unquote(std::string_view& value) {
  if (value.empty() || (value.front() != '"' && value.front() != '\'')) return true;
  const auto end = value.find(value.front(), 1);
  if (end != value.size() - 1) return false;
  value = value.substr(1, value.size() - 2);
  return true;
}

}  // namespace

Result<std::vector<ConfigEntry>> parse_config_text(std::string_view text) {
  std::vector<ConfigEntry> entries;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (int number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(without_comment(trimmed(text.substr(0, end))));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line == "[serve]") continue;
    if (line.front() == '[') {
      return invalid_argument(
          concat("line ", number, ": there is no section ", line, "; write the keys without a section"));
    }
    const auto equals = line.find('=');
    std::string key(trimmed(line.substr(0, equals)));
    if (equals == line.npos || key.empty())
      return invalid_argument(concat("line ", number, ": expected 'key = value'"));
    std::string_view value = trimmed(line.substr(equals + 1));
    if (!unquote(value)) return invalid_argument(concat("line ", number, ": the quotes of '", key, "' do not match"));
    std::replace(key.begin(), key.end(), '_', '-');
    const auto same = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.key == key; });
    if (same != entries.end()) {
      return invalid_argument(concat("line ", number, ": '", key, "' was already set in line ", same->line));
    }
    entries.push_back({std::move(key), std::string(value), number});
  }
  return entries;
}

}  // namespace hotset::api
