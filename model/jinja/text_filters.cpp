// Filters on texts.
#include <algorithm>

#include "core/concat.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/print.h"
#include "model/jinja/text_operations.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

// str(value), without copying a text.
Value as_text(Interpreter& interpreter, const Value& value) {
  return value.is_text() ? value : Value::text(to_text(value, interpreter.budget()));
}

template <std::string (*Change)(std::string_view)>
Value changed(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "filter", {});
  return interpreter.text(Change(as_text(interpreter, self).bytes()));
}

bool starts_word(char32_t c) { return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<'; }

std::string titled(std::string_view text) {
  std::string out;
  bool at_start = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const bool separator = starts_word(next_code_point(text, at));
    const std::string_view piece = text.substr(begin, at - begin);
    out += at_start && !separator ? to_upper(piece) : to_lower(piece);
    at_start = separator;
  }
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out.push_back(c);
    }
  }
  return out;
}

Value string_of(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "string", {});
  return as_text(interpreter, self);
}

Value trim(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "trim", {"chars"});
  const Value text = as_text(interpreter, self);
  interpreter.budget().scan(static_cast<std::int64_t>(text.bytes().size()));
  const bool spaces = a[0].is_missing() || a[0].is_none();
  const std::string_view kept = spaces
                                    ? strip_space(text.bytes(), true, true)
                                    : strip_chars(text.bytes(), text_argument(a[0]), true, true, interpreter.budget());
  return kept.size() == text.bytes().size() ? text : interpreter.text(std::string(kept));
}

Value replace(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "replace", {"old", "new", "count"}, 2);
  const std::int64_t count = a[2].is_none() ? -1 : int_argument(a[2], -1);
  return Value::text(replace_all(as_text(interpreter, self).bytes(), as_text(interpreter, a[0]).bytes(),
                                 as_text(interpreter, a[1]).bytes(), count, interpreter.budget()));
}

Value indent(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "indent", {"width", "first", "blank"});
  const bool first = flag_argument(a[1], false);
  const bool blank = flag_argument(a[2], false);
  std::string indention;
  if (a[0].is_text()) {
    indention = a[0].bytes();
  } else {
    const std::int64_t width = std::max<std::int64_t>(int_argument(a[0], 4), 0);
    interpreter.budget().bytes(width);
    indention.assign(static_cast<std::size_t>(width), ' ');
  }
  const std::string text = text_argument(self) + '\n';  // so that a last empty line counts
  interpreter.budget().bytes(static_cast<std::int64_t>(text.size()));
  const auto lines = split_lines(text, false);
  std::string out = first ? indention : std::string();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    interpreter.budget().bytes(static_cast<std::int64_t>(indention.size() + lines[i].size() + 1));
    if (i != 0) out.push_back('\n');
    if (i != 0 && (blank || !lines[i].empty())) out += indention;
    out += lines[i];
  }
  return Value::text(std::move(out));
}

Value truncate(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "truncate", {"length", "killwords", "end", "leeway"});
  const std::int64_t length = int_argument(a[0], 255);
  const std::string_view end = a[2].is_missing() ? std::string_view("...") : text_argument(a[2]);
  const std::int64_t leeway = a[3].is_none() ? 5 : int_argument(a[3], 5);
  const std::int64_t end_length = count_code_points(end);
  if (length < end_length || leeway < 0) fail("truncate() needs a length that its end fits in, and a leeway");
  const std::string& text = text_argument(self);
  if (self.text_length() <= length + leeway) return self;
  interpreter.budget().scan(static_cast<std::int64_t>(text.size()));
  std::string_view kept = std::string_view(text).substr(0, byte_offset(text, length - end_length));
  if (!flag_argument(a[1], false)) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return interpreter.text(concat(kept, end));
}

Value center(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "center", {"width"});
  const Value text = as_text(interpreter, self);
  return Value::text(
      padded(text.bytes(), text.text_length(), int_argument(a[0], 80), " ", Alignment::kCenter, interpreter.budget()));
}

std::string url_quoted(std::string_view text, bool in_query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (static_cast<unsigned char>(c) < 0x80 && is_alnum(static_cast<char32_t>(c))) || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !in_query);
    if (plain) {
      out.push_back(c);
    } else if (c == ' ' && in_query) {
      out.push_back('+');
    } else {
      out.push_back('%');
      out.push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      out.push_back(kHex[static_cast<unsigned char>(c) & 15]);
    }
  }
  return out;
}

Value urlencode(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "urlencode", {});
  if (self.is_text() || !is_iterable(self)) {
    return interpreter.text(url_quoted(as_text(interpreter, self).bytes(), false));
  }
  std::string out;
  const auto add = [&](const Value& key, const Value& value) {
    if (!out.empty()) out.push_back('&');
    out += url_quoted(as_text(interpreter, key).bytes(), true);
    out.push_back('=');
    out += url_quoted(as_text(interpreter, value).bytes(), true);
    interpreter.budget().bytes(32);
  };
  if (self.is(Kind::kDict)) {
    for (const auto& [key, value] : self.entries().entries) add(key, value);
  } else {
    for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
      const auto pair = iterate(item, interpreter.budget());
      if (pair->items.size() != 2) fail("urlencode needs pairs of a key and a value");
      add(pair->items[0], pair->items[1]);
    }
  }
  return interpreter.text(std::move(out));
}

Value wordcount(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "wordcount", {});
  const Value text = as_text(interpreter, self);
  interpreter.budget().scan(static_cast<std::int64_t>(text.bytes().size()));
  std::int64_t words = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.bytes().size();) {
    const char32_t c = next_code_point(text.bytes(), at);
    const bool part = c == '_' || is_alnum(c);
    words += part && !inside ? 1 : 0;
    inside = part;
  }
  return Value::integer(words);
}

Value format(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("format cannot take positional and named arguments at once");
  }
  Value values;
  if (arguments.named.empty()) {
    values = Value::tuple(arguments.positional);
  } else {
    auto dict = std::make_shared<Dict>();
    for (const auto& [name, value] : arguments.named) dict->set(interpreter.text(name), value, interpreter.budget());
    values = Value::dict(std::move(dict));
  }
  return interpreter.text(percent_format(interpreter, as_text(interpreter, self).bytes(), values));
}

Value tojson(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = flag_argument(a[0], false);
  style.sort_keys = flag_argument(a[3], false);
  if (a[1].is_text()) {
    style.indent = a[1].bytes();
  } else if (!a[1].is_missing() && !a[1].is_none()) {
    const std::int64_t width = std::max<std::int64_t>(int_argument(a[1], 0), 0);
    interpreter.budget().bytes(width);
    style.indent = std::string(static_cast<std::size_t>(width), ' ');
  }
  if (style.indent) style.item_separator.pop_back();  // no space before a line end
  if (!a[2].is_missing() && !a[2].is_none()) {
    const auto separators = iterate(a[2], interpreter.budget());
    if (separators->items.size() != 2) fail("tojson needs two separators");
    style.item_separator = text_argument(separators->items[0]);
    style.key_separator = text_argument(separators->items[1]);
  }
  return interpreter.text(to_json(self, style, interpreter.budget()));
}

}  // namespace

const std::vector<NamedNative>& text_filters() {
  static const std::vector<NamedNative> kFilters = {
      {"upper", changed<to_upper>},
      {"lower", changed<to_lower>},
      {"capitalize", changed<capitalized>},
      {"title", changed<titled>},
      {"e", changed<escaped>},
      {"escape", changed<escaped>},
      {"forceescape", changed<escaped>},
      {"safe", string_of},
      {"string", string_of},
      {"trim", trim},
      {"replace", replace},
      {"indent", indent},
      {"truncate", truncate},
      {"center", center},
      {"urlencode", urlencode},
      {"wordcount", wordcount},
      {"format", format},
      {"tojson", tojson},
  };
  return kFilters;
}

}  // namespace hotset::model::jinja
