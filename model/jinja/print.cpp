#include "model/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/concat.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_hex(std::string& out, char32_t c, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out.push_back(kHex[(c >> shift) & 15]);
}

void append_repr_escape(std::string& out, char32_t c) {
  if (c < 0x100) {
    out += "\\x";
    append_hex(out, c, 2);
  } else if (c < 0x10000) {
    out += "\\u";
    append_hex(out, c, 4);
  } else {
    out += "\\U";
    append_hex(out, c, 8);
  }
}

// One printing: `depth` guards against namespaces that hold themselves.
class Printer {
 public:
  Printer(std::string& out, Budget& budget) : out_(out), budget_(budget) {}

  void repr(const Value& value) {
    budget_.step();
    if (++depth_ > 2 * kMaxDepth) fail("a value is nested too deeply to be printed");
    const std::size_t before = out_.size();
    switch (value.kind()) {
      case Kind::kMissing:
      case Kind::kUndefined: out_ += "Undefined"; break;
      case Kind::kNone: out_ += "None"; break;
      case Kind::kBool: out_ += value.as_int() != 0 ? "True" : "False"; break;
      case Kind::kInt: append_part(out_, value.as_int()); break;
      case Kind::kFloat: out_ += float_repr(value.as_double()); break;
      case Kind::kText:
        budget_.bytes(static_cast<std::int64_t>(value.bytes().size()));
        out_ += text_repr(value.bytes());
        break;
      case Kind::kList: items("[", value.items(), "]"); break;
      case Kind::kTuple: items("(", value.items(), value.items().size() == 1 ? ",)" : ")"); break;
      case Kind::kDict: dict(value.entries()); break;
      default: special(value); break;
    }
    budget_.bytes(static_cast<std::int64_t>(std::min<std::size_t>(out_.size() - before, 64)));
    --depth_;
  }

 private:
  void items(std::string_view open, const Values& values, std::string_view close) {
    out_ += open;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i != 0) out_ += ", ";
      repr(values[i]);
    }
    out_ += close;
  }

  void dict(const Dict& value) {
    out_ += '{';
    for (std::size_t i = 0; i < value.entries.size(); ++i) {
      if (i != 0) out_ += ", ";
      repr(value.entries[i].first);
      out_ += ": ";
      repr(value.entries[i].second);
    }
    out_ += '}';
  }

  void special(const Value& value) {
    if (value.is(Kind::kRange)) {
      const Range& range = value.object<Range>();
      out_ += concat("range(", range.start, ", ", range.stop);
      if (range.step != 1) out_ += concat(", ", range.step);
      out_ += ')';
    } else if (value.is(Kind::kView)) {
      out_ += concat(type_name(value), "(");
      items("[", iterate(value, budget_)->items, "])");
    } else if (value.is(Kind::kNamespace)) {
      out_ += "<Namespace {";
      bool first = true;
      for (const auto& [name, item] : value.object<Namespace>().attributes) {
        if (!first) out_ += ", ";
        first = false;
        out_ += text_repr(name);
        out_ += ": ";
        repr(item);
      }
      out_ += "}>";
    } else {
      out_ += concat("<", type_name(value), ">");
    }
  }

  std::string& out_;
  Budget& budget_;
  int depth_ = 0;
};

void append_json_text(std::string& out, std::string_view text, bool ensure_ascii) {
  out.push_back('"');
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
          out += "\\u";
          append_hex(out, c, 4);
        } else if (ensure_ascii && c >= 0x10000) {
          out += "\\u";
          append_hex(out, 0xD800 + ((c - 0x10000) >> 10), 4);
          out += "\\u";
          append_hex(out, 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
        } else {
          out.append(text, start, at - start);
        }
    }
  }
  out.push_back('"');
}

class JsonWriter {
 public:
  JsonWriter(std::string& out, const JsonStyle& style, Budget& budget) : out_(out), style_(style), budget_(budget) {}

  void write(const Value& value, int level) {
    const std::size_t before = out_.size();
    switch (value.kind()) {
      case Kind::kNone: out_ += "null"; break;
      case Kind::kBool: out_ += value.as_int() != 0 ? "true" : "false"; break;
      case Kind::kInt: append_part(out_, value.as_int()); break;
      case Kind::kFloat: out_ += number(value.as_double()); break;
      case Kind::kText:
        budget_.bytes(static_cast<std::int64_t>(value.bytes().size()));
        append_json_text(out_, value.bytes(), style_.ensure_ascii);
        break;
      case Kind::kList:
      case Kind::kTuple: list(value.items(), level); break;
      case Kind::kDict: dict(value.entries(), level); break;
      default: fail(concat("Object of type ", type_name(value), " is not JSON serializable"));
    }
    budget_.bytes(static_cast<std::int64_t>(std::min<std::size_t>(out_.size() - before, 64)));
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void line(int level) {
    if (!style_.indent) return;
    budget_.bytes(static_cast<std::int64_t>(style_.indent->size()) * level + 1);
    out_.push_back('\n');
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
  }

  void list(const Values& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_.push_back('[');
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += style_.item_separator;
      line(level + 1);
      write(items[i], level + 1);
    }
    line(level);
    out_.push_back(']');
  }

  void key(const Value& value) {
    switch (value.kind()) {
      case Kind::kText: append_json_text(out_, value.bytes(), style_.ensure_ascii); break;
      case Kind::kNone: out_ += "\"null\""; break;
      case Kind::kBool: out_ += value.as_int() != 0 ? "\"true\"" : "\"false\""; break;
      case Kind::kInt: out_ += concat('"', value.as_int(), '"'); break;
      case Kind::kFloat: out_ += concat('"', number(value.as_double()), '"'); break;
      default: fail(concat("keys must be str, int, float, bool or None, not ", type_name(value)));
    }
  }

  void dict(const Dict& value, int level) {
    if (value.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : value.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return compare(a->first, b->first, budget_) < 0; });
    }
    out_.push_back('{');
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i != 0) out_ += style_.item_separator;
      line(level + 1);
      key(entries[i]->first);
      out_ += style_.key_separator;
      write(entries[i]->second, level + 1);
    }
    line(level);
    out_.push_back('}');
  }

  std::string& out_;
  const JsonStyle& style_;
  Budget& budget_;
};

Value read_json(const nlohmann::ordered_json& json, Budget& budget, int depth) {
  if (depth > kMaxDepth) fail("the messages are nested too deeply");
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null:
    case Type::discarded: return Value::none();
    case Type::boolean: return Value::boolean(json.get<bool>());
    case Type::number_integer: return Value::integer(json.get<std::int64_t>());
    case Type::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > INT64_MAX) fail("a whole number in the messages does not fit 64 bits");
      return Value::integer(static_cast<std::int64_t>(number));
    }
    case Type::number_float: return Value::real(json.get<double>());
    case Type::string: return Value::text(json.get_ref<const std::string&>());
    case Type::array: {
      Values items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(read_json(item, budget, depth + 1));
      return Value::list(std::move(items));
    }
    case Type::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [name, item] : json.items()) {
        dict->set(Value::text(name), read_json(item, budget, depth + 1), budget);
      }
      return Value::dict(std::move(dict));
    }
    case Type::binary: break;
  }
  fail("the messages hold binary data");
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = scientific.find('e');
  int exponent = 0;
  const char* digits = scientific.data() + e + 1;
  if (*digits == '+') ++digits;
  std::from_chars(digits, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string out(buffer, fixed_end);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string text_repr(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(text, start, at - start);
    } else {
      append_repr_escape(out, c);
    }
  }
  out.push_back(quote);
  return out;
}

void append_text(std::string& out, const Value& value, Budget& budget) {
  if (value.is_undefined() || value.is_missing()) return;
  if (!value.is_text()) {
    Printer(out, budget).repr(value);
    return;
  }
  budget.bytes(static_cast<std::int64_t>(value.bytes().size()));
  out += value.bytes();
}

std::string to_text(const Value& value, Budget& budget) {
  std::string out;
  append_text(out, value, budget);
  return out;
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  std::string out;
  JsonWriter(out, style, budget).write(value, 0);
  return out;
}

Value from_json(const nlohmann::ordered_json& json, Budget& budget) { return read_json(json, budget, 0); }

std::int64_t json_size(const nlohmann::ordered_json& json) {
  // Walks with a list of its own: the nesting of a request is not limited yet.
  std::int64_t bytes = 0;
  std::vector<const nlohmann::ordered_json*> open{&json};
  while (!open.empty()) {
    const nlohmann::ordered_json& node = *open.back();
    open.pop_back();
    bytes += 16;
    if (node.is_string()) bytes += static_cast<std::int64_t>(node.get_ref<const std::string&>().size());
    if (!node.is_structured()) continue;
    for (const auto& child : node) open.push_back(&child);
  }
  return bytes;
}

}  // namespace hotset::model::jinja
