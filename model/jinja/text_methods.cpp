// Methods of str.
#include <algorithm>

#include "core/concat.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"
#include "model/jinja/text_operations.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

using Pieces = std::vector<std::string_view>;

Value pieces_list(Interpreter& interpreter, const Pieces& pieces) {
  std::int64_t bytes = 0;
  for (const std::string_view piece : pieces) bytes += static_cast<std::int64_t>(piece.size() + sizeof(Text) + 16);
  interpreter.budget().bytes(bytes);
  Values items;
  items.reserve(pieces.size());
  for (const std::string_view piece : pieces) items.push_back(Value::text(std::string(piece)));
  return interpreter.list(std::move(items));
}

Value split(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool from_right) {
  const Values a = bind(arguments, from_right ? "rsplit" : "split", {"sep", "maxsplit"});
  std::int64_t limit = int_argument(a[1], -1);
  if (limit < 0) limit = INT64_MAX;
  const std::string& text = self.bytes();
  if (a[0].is_missing() || a[0].is_none()) {
    interpreter.budget().scan(static_cast<std::int64_t>(text.size()));
    return pieces_list(interpreter, split_at_space(text, limit, from_right));
  }
  const std::string& separator = text_argument(a[0]);
  if (separator.empty()) fail("empty separator");
  return pieces_list(interpreter, split_at(text, separator, limit, from_right, interpreter.budget()));
}

Value strip(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool left, bool right) {
  const Values a = bind(arguments, "strip", {"chars"});
  interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  const bool spaces = a[0].is_missing() || a[0].is_none();
  const std::string_view kept = spaces
                                    ? strip_space(self.bytes(), left, right)
                                    : strip_chars(self.bytes(), text_argument(a[0]), left, right, interpreter.budget());
  return kept.size() == self.bytes().size() ? self : interpreter.text(std::string(kept));
}

// The part of `self` that start and end of find(), count(), startswith() leave, and its offset in code points.
struct Window {
  std::string_view text;
  std::int64_t offset = 0;
  bool valid = true;
};
Window window(const Value& self, const Value& start, const Value& end) {
  const std::int64_t length = self.text_length();
  const auto place = [&](const Value& bound, std::int64_t otherwise) {
    if (bound.is_missing() || bound.is_none()) return otherwise;
    const std::int64_t at = int_argument(bound, 0);
    return at < 0 ? std::max<std::int64_t>(at + length, 0) : at;
  };
  const std::int64_t first = place(start, 0);
  const std::int64_t last = std::min(place(end, length), length);
  if (first > last) return {{}, first, false};
  const std::size_t begin = byte_offset(self.bytes(), first);
  const std::string_view rest = std::string_view(self.bytes()).substr(begin);
  return {last == length ? rest : rest.substr(0, byte_offset(rest, last - first)), first, true};
}

std::int64_t find(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool from_right) {
  const Values a = bind(arguments, "find", {"sub", "start", "end"}, 1);
  interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  const Window part = window(self, a[1], a[2]);
  const std::string& wanted = text_argument(a[0]);
  if (!part.valid) return -1;
  const std::size_t at = find_text(part.text, wanted, from_right, interpreter.budget());
  return at == std::string_view::npos ? -1 : part.offset + count_code_points(part.text.substr(0, at));
}

std::int64_t index(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool from_right) {
  const std::int64_t at = find(interpreter, self, arguments, from_right);
  if (at < 0) fail("substring not found");
  return at;
}

Value count(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "count", {"sub", "start", "end"}, 1);
  interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  const Window part = window(self, a[1], a[2]);
  const std::string& wanted = text_argument(a[0]);
  if (!part.valid) return Value::integer(0);
  if (wanted.empty()) return Value::integer(count_code_points(part.text) + 1);
  const auto pieces = split_at(part.text, wanted, INT64_MAX, false, interpreter.budget());
  return Value::integer(static_cast<std::int64_t>(pieces.size()) - 1);
}

Value affix(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool at_end) {
  const Values a = bind(arguments, at_end ? "endswith" : "startswith", {"affix", "start", "end"}, 1);
  const bool whole = a[1].is_missing() && a[2].is_missing();
  if (!whole) interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  const Window part = whole ? Window{self.bytes()} : window(self, a[1], a[2]);
  const auto matches = [&](const Value& wanted) {
    const std::string& text = text_argument(wanted);
    interpreter.budget().scan(static_cast<std::int64_t>(text.size()));
    return part.valid && (at_end ? part.text.ends_with(text) : part.text.starts_with(text));
  };
  if (!a[0].is(Kind::kTuple)) return Value::boolean(matches(a[0]));
  return Value::boolean(std::any_of(a[0].items().begin(), a[0].items().end(), matches));
}

Value replace(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "replace", {"old", "new", "count"}, 2);
  return Value::text(replace_all(self.bytes(), text_argument(a[0]), text_argument(a[1]), int_argument(a[2], -1),
                                 interpreter.budget()));
}

Value partition(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool from_right) {
  const std::string& separator = text_argument(bind(arguments, "partition", {"sep"}, 1)[0]);
  if (separator.empty()) fail("empty separator");
  const std::string_view text = self.bytes();
  interpreter.budget().bytes(static_cast<std::int64_t>(text.size() + 3 * sizeof(Text)));
  const std::size_t at = find_text(text, separator, from_right, interpreter.budget());
  const auto part = [](std::string_view bytes) { return Value::text(std::string(bytes)); };
  if (at != std::string_view::npos) {
    return Value::tuple({part(text.substr(0, at)), part(separator), part(text.substr(at + separator.size()))});
  }
  return from_right ? Value::tuple({part({}), part({}), self}) : Value::tuple({self, part({}), part({})});
}

Value remove_affix(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool at_end) {
  const std::string& part = text_argument(bind(arguments, "removeprefix", {"affix"}, 1)[0]);
  const std::string& text = self.bytes();
  if (part.empty() || !(at_end ? text.ends_with(part) : text.starts_with(part))) return self;
  return interpreter.text(at_end ? text.substr(0, text.size() - part.size()) : text.substr(part.size()));
}

enum class Side { kLeft, kRight, kCenter };

Value pad(Interpreter& interpreter, const Value& self, const Arguments& arguments, Side text_side) {
  const Values a = bind(arguments, "ljust", {"width", "fillchar"}, 1);
  const std::string fill = a[1].is_missing() ? " " : text_argument(a[1]);
  if (count_code_points(fill) != 1) fail("the fill character must be exactly one character long");
  return Value::text(padded(self.bytes(), self.text_length(), int_argument(a[0], 0), fill,
                            text_side == Side::kLeft    ? Alignment::kLeft
                            : text_side == Side::kRight ? Alignment::kRight
                                                        : Alignment::kCenter,
                            interpreter.budget()));
}

Value zfill(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::int64_t width = int_argument(bind(arguments, "zfill", {"width"}, 1)[0], 0);
  const std::string& text = self.bytes();
  const bool has_sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  if (width <= self.text_length()) return self;
  const std::int64_t missing = width - self.text_length();
  interpreter.budget().bytes(missing);
  interpreter.budget().bytes(static_cast<std::int64_t>(text.size()));
  const std::string zeros(static_cast<std::size_t>(missing), '0');
  return Value::text(has_sign ? text.substr(0, 1) + zeros + text.substr(1) : zeros + text);
}

Value splitlines(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const bool keep = flag_argument(bind(arguments, "splitlines", {"keepends"})[0], false);
  interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  return pieces_list(interpreter, split_lines(self.bytes(), keep));
}

Value join(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const auto items = iterate(bind(arguments, "join", {"iterable"}, 1)[0], interpreter.budget());
  std::string out;
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    const Value& item = items->items[i];
    if (!item.is_text()) fail(concat("join() needs texts, found '", type_name(item), "'"));
    interpreter.budget().bytes(static_cast<std::int64_t>(item.bytes().size() + self.bytes().size()));
    if (i != 0) out += self.bytes();
    out += item.bytes();
  }
  return Value::text(std::move(out));
}

Value expandtabs(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::int64_t size = int_argument(bind(arguments, "expandtabs", {"tabsize"})[0], 8);
  std::string out;
  std::int64_t column = 0;
  const std::string& text = self.bytes();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (c == '\t') {
      const std::int64_t spaces = size > 0 ? size - column % size : 0;
      interpreter.budget().bytes(spaces);
      out.append(static_cast<std::size_t>(spaces), ' ');
      column += spaces;
    } else {
      out.append(text, start, at - start);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return interpreter.text(std::move(out));
}

template <bool (*Test)(char32_t)>
Value all_code_points(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "is", {});
  const std::string& text = self.bytes();
  interpreter.budget().scan(static_cast<std::int64_t>(text.size()));
  for (std::size_t at = 0; at < text.size();) {
    if (!Test(next_code_point(text, at))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

bool is_identifier_part(char32_t c) { return c == '_' || is_alnum(c); }

Value isidentifier(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value all = all_code_points<is_identifier_part>(interpreter, self, arguments);
  std::size_t at = 0;
  return Value::boolean(truth(all) && !is_digit(next_code_point(self.bytes(), at)));
}

Value isascii(Interpreter&, const Value& self, const Arguments&) {
  return Value::boolean(self.text_length() == static_cast<std::int64_t>(self.bytes().size()));
}

Value isprintable(Interpreter& interpreter, const Value& self, const Arguments&) {
  const std::string& text = self.bytes();
  interpreter.budget().scan(static_cast<std::int64_t>(text.size()));
  for (std::size_t at = 0; at < text.size();) {
    if (!is_printable(next_code_point(text, at))) return Value::boolean(false);
  }
  return Value::boolean(true);
}

Value isupper(Interpreter& interpreter, const Value& self, const Arguments&) {
  interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  return Value::boolean(has_only_case(self.bytes(), true));
}
Value islower(Interpreter& interpreter, const Value& self, const Arguments&) {
  interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  return Value::boolean(has_only_case(self.bytes(), false));
}

Value istitle(Interpreter& interpreter, const Value& self, const Arguments&) {
  interpreter.budget().scan(static_cast<std::int64_t>(self.bytes().size()));
  bool after_cased = false;
  bool any = false;
  const std::string& text = self.bytes();
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const bool upper = is_upper(c);
    const bool cased = upper || is_lower(c);
    if (cased && upper == after_cased) return Value::boolean(false);
    after_cased = cased;
    any |= cased;
  }
  return Value::boolean(any);
}

Value format(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return interpreter.text(brace_format(interpreter, self.bytes(), arguments));
}

template <std::string (*Change)(std::string_view)>
Value changed_case(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "upper", {});
  return interpreter.text(Change(self.bytes()));
}

}  // namespace

Native find_text_method(std::string_view name) {
  using I = Interpreter&;
  using V = const Value&;
  using A = const Arguments&;
  static const std::vector<NamedNative> kMethods = {
      {"split", [](I i, V s, A a) { return split(i, s, a, false); }},
      {"rsplit", [](I i, V s, A a) { return split(i, s, a, true); }},
      {"strip", [](I i, V s, A a) { return strip(i, s, a, true, true); }},
      {"lstrip", [](I i, V s, A a) { return strip(i, s, a, true, false); }},
      {"rstrip", [](I i, V s, A a) { return strip(i, s, a, false, true); }},
      {"startswith", [](I i, V s, A a) { return affix(i, s, a, false); }},
      {"endswith", [](I i, V s, A a) { return affix(i, s, a, true); }},
      {"replace", replace},
      {"upper", changed_case<to_upper>},
      {"lower", changed_case<to_lower>},
      {"casefold", changed_case<to_lower>},
      {"title", changed_case<to_title>},
      {"capitalize", changed_case<capitalized>},
      {"swapcase", changed_case<swap_case>},
      {"join", join},
      {"find", [](I i, V s, A a) { return Value::integer(find(i, s, a, false)); }},
      {"rfind", [](I i, V s, A a) { return Value::integer(find(i, s, a, true)); }},
      {"index", [](I i, V s, A a) { return Value::integer(index(i, s, a, false)); }},
      {"rindex", [](I i, V s, A a) { return Value::integer(index(i, s, a, true)); }},
      {"count", count},
      {"format", format},
      {"splitlines", splitlines},
      {"partition", [](I i, V s, A a) { return partition(i, s, a, false); }},
      {"rpartition", [](I i, V s, A a) { return partition(i, s, a, true); }},
      {"removeprefix", [](I i, V s, A a) { return remove_affix(i, s, a, false); }},
      {"removesuffix", [](I i, V s, A a) { return remove_affix(i, s, a, true); }},
      {"ljust", [](I i, V s, A a) { return pad(i, s, a, Side::kLeft); }},
      {"rjust", [](I i, V s, A a) { return pad(i, s, a, Side::kRight); }},
      {"center", [](I i, V s, A a) { return pad(i, s, a, Side::kCenter); }},
      {"zfill", zfill},
      {"expandtabs", expandtabs},
      {"isspace", all_code_points<is_space>},
      {"isalpha", all_code_points<is_alpha>},
      {"isalnum", all_code_points<is_alnum>},
      {"isdigit", all_code_points<is_digit>},
      {"isdecimal", all_code_points<is_decimal>},
      {"isnumeric", all_code_points<is_numeric>},
      {"isidentifier", isidentifier},
      {"isascii", isascii},
      {"isprintable", isprintable},
      {"isupper", isupper},
      {"islower", islower},
      {"istitle", istitle},
  };
  const auto found = std::find_if(kMethods.begin(), kMethods.end(), [&](const auto& m) { return m.name == name; });
  return found != kMethods.end() ? found->native : nullptr;
}

}  // namespace hotset::model::jinja
