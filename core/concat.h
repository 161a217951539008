// Joins strings, string views, characters and numbers into one string, for messages.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace hotset {

inline void append_part(std::string& out, std::string_view part) { out.append(part); }
inline void append_part(std::string& out, const char* part) { out.append(part); }
inline void append_part(std::string& out, char part) { out.push_back(part); }
inline void append_part(std::string& out, bool part) { out.append(part ? "true" : "false"); }
template <class T>
  requires(std::integral<T> || std::floating_point<T>)
void append_part(std::string& out, T part) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, part);
  out.append(buffer, end.ptr);
}

template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string out;
  (append_part(out, parts), ...);
  return out;
}

}  // namespace hotset
