#include "model/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/concat.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

constexpr std::size_t kIndexFrom = 16;  // dicts smaller than this are searched in a row

int checked_depth(int depth) {
  if (depth > kMaxDepth) fail("lists and dicts are nested too deeply");
  return depth;
}

int compare_doubles(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }

int compare_numbers(const Value& a, const Value& b) {
  if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  return compare_doubles(a.as_double(), b.as_double());
}

bool equal_numbers(const Value& a, const Value& b) {
  if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) return a.as_int() == b.as_int();
  return a.as_double() == b.as_double();
}

bool equal_items(const Values& a, const Values& b, Budget& budget) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](const Value& x, const Value& y) { return equal(x, y, budget); });
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first, budget);
    return other != nullptr && equal(entry.second, *other, budget);
  });
}

}  // namespace

Value Value::real(double d) {
  Value value(Kind::kFloat);
  value.real_ = d;
  return value;
}
Value Value::text(std::string bytes) { return Value(Kind::kText, std::make_shared<Text>(std::move(bytes))); }
Value Value::undefined(std::string message) {
  return Value(Kind::kUndefined, std::make_shared<Text>(std::move(message)));
}

Value Value::sequence(Kind kind, Values items) {
  auto object = std::make_shared<Sequence>();
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  object->depth = checked_depth(depth + 1);
  object->items = std::move(items);
  return Value(kind, std::move(object));
}

Value Value::dict(std::shared_ptr<Dict> entries) { return Value(Kind::kDict, std::move(entries)); }

Value Value::function(Function::Call call, Value self) {
  checked_depth(self.depth() + 1);
  auto object = std::make_shared<Function>();
  object->call = call;
  object->self = std::move(self);
  return Value(Kind::kFunction, std::move(object));
}

const std::string& Value::bytes() const { return object<Text>().bytes; }
std::int64_t Value::text_length() const { return object<Text>().length; }
const Values& Value::items() const { return object<Sequence>().items; }
const Dict& Value::entries() const { return object<Dict>(); }

int Value::depth() const {
  switch (kind_) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kIterator: return object<Sequence>().depth;
    case Kind::kDict: return object<Dict>().depth;
    case Kind::kView: return object<View>().dict.depth() + 1;
    case Kind::kFunction: return object<Function>().self.depth() + 1;
    default: return 0;
  }
}

Text::Text(std::string text) : bytes(std::move(text)), length(count_code_points(bytes)) {}

std::optional<std::size_t> Dict::index_of_text(std::string_view key) const {
  if (table_.empty()) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].first.is_text() && entries[i].first.bytes() == key) return i;
    }
    return std::nullopt;
  }
  const std::size_t mask = table_.size() - 1;
  for (std::size_t at = std::hash<std::string_view>{}(key)&mask; table_[at] != 0; at = (at + 1) & mask) {
    const Value& candidate = entries[table_[at] - 1].first;
    if (candidate.bytes() == key) return table_[at] - 1;
  }
  return std::nullopt;
}

void Dict::grow_table() {
  std::size_t size = 64;
  while (size < entries.size() * 4) size *= 2;
  table_.assign(size, 0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].first.is_text()) continue;
    std::size_t at = std::hash<std::string_view>{}(entries[i].first.bytes()) & (size - 1);
    while (table_[at] != 0) at = (at + 1) & (size - 1);
    table_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

const Value* Dict::find(std::string_view key) const {
  const auto index = index_of_text(key);
  return index ? &entries[*index].second : nullptr;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (key.is_text()) {
    budget.scan(static_cast<std::int64_t>(key.bytes().size()));
    return find(std::string_view(key.bytes()));
  }
  for (const auto& entry : entries) {
    if (!entry.first.is_text() && equal(entry.first, key, budget)) return &entry.second;
  }
  return nullptr;
}

void Dict::set(Value key, Value value, Budget& budget) {
  if (!is_hashable(key, budget)) fail(concat("unhashable type: '", type_name(key), "'"));
  budget.bytes(sizeof(entries[0]) + 16);
  depth = checked_depth(std::max(depth, 1 + std::max(key.depth(), value.depth())));
  if (const Value* old = find(key, budget)) {
    const_cast<Value&>(*old) = std::move(value);  // `old` points into our own entries
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() < kIndexFrom) return;
  if (table_.size() < entries.size() * 2) {
    grow_table();
  } else if (entries.back().first.is_text()) {
    const std::size_t mask = table_.size() - 1;
    std::size_t at = std::hash<std::string_view>{}(entries.back().first.bytes()) & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = static_cast<std::uint32_t>(entries.size());
  }
}

std::int64_t Range::size() const {
  const __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? step : -static_cast<__int128>(step);
  return span <= 0 ? 0 : static_cast<std::int64_t>((span + stride - 1) / stride);
}

std::int64_t Range::at(std::int64_t index) const {
  return static_cast<std::int64_t>(start + static_cast<__int128>(index) * step);
}

Value* Namespace::find(std::string_view name) {
  for (auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}
void Namespace::set(std::string_view name, Value value) {
  if (Value* old = find(name)) {
    *old = std::move(value);
  } else {
    attributes.emplace_back(std::string(name), std::move(value));
  }
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kText: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kRange: return "range";
    case Kind::kView:
      return value.object<View>().what == View::What::kKeys     ? "dict_keys"
             : value.object<View>().what == View::What::kValues ? "dict_values"
                                                                : "dict_items";
    case Kind::kIterator: return "generator";
    case Kind::kNamespace: return "Namespace";
    case Kind::kFunction: return "function";
    case Kind::kMacro: return "Macro";
    case Kind::kLoop: return "LoopContext";
    case Kind::kCycler: return "Cycler";
    case Kind::kJoiner: return "Joiner";
  }
  return "object";
}

std::optional<std::int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kText: return value.text_length();
    case Kind::kList:
    case Kind::kTuple: return static_cast<std::int64_t>(value.items().size());
    case Kind::kDict: return static_cast<std::int64_t>(value.entries().entries.size());
    case Kind::kRange: return value.object<Range>().size();
    case Kind::kView: return length_of(value.object<View>().dict);
    default: return std::nullopt;
  }
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.as_int() != 0;
    case Kind::kFloat: return value.as_double() != 0;
    default: return length_of(value).value_or(1) != 0;
  }
}

bool is_iterable(const Value& value) {
  return length_of(value).has_value() || value.is(Kind::kIterator) || value.is(Kind::kLoop);
}

std::shared_ptr<const Sequence> iterate(const Value& value, Budget& budget) {
  const auto count = length_of(value);
  if (value.is(Kind::kList) || value.is(Kind::kTuple)) return std::static_pointer_cast<const Sequence>(value.pointer());
  auto out = std::make_shared<Sequence>();
  out->depth = value.depth();
  if (value.is(Kind::kIterator)) {
    auto& source = value.object<Sequence>();
    out->items.assign(source.items.begin() + static_cast<std::ptrdiff_t>(source.position), source.items.end());
    source.position = source.items.size();
    budget.bytes(static_cast<std::int64_t>(out->items.size() * sizeof(Value)));
    return out;
  }
  if (!count) fail(concat("'", type_name(value), "' object is not iterable"));
  budget.bytes(*count * static_cast<std::int64_t>(sizeof(Value)));
  out->items.reserve(static_cast<std::size_t>(*count));
  switch (value.kind()) {
    case Kind::kText: {
      budget.bytes(*count * 64);
      const std::string& bytes = value.bytes();
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t start = at;
        next_code_point(bytes, at);
        out->items.push_back(Value::text(bytes.substr(start, at - start)));
      }
      break;
    }
    case Kind::kDict:
      for (const auto& entry : value.entries().entries) out->items.push_back(entry.first);
      break;
    case Kind::kRange:
      for (std::int64_t i = 0; i < *count; ++i) out->items.push_back(Value::integer(value.object<Range>().at(i)));
      break;
    case Kind::kView: {
      const View& view = value.object<View>();
      if (view.what == View::What::kItems) budget.bytes(*count * 128);
      for (const auto& [key, item] : view.dict.entries().entries) {
        out->items.push_back(view.what == View::What::kKeys     ? key
                             : view.what == View::What::kValues ? item
                                                                : Value::tuple({key, item}));
      }
      break;
    }
    default: break;
  }
  return out;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.kind() != b.kind()) return false;
  if (a.pointer() == b.pointer() && a.pointer() != nullptr) return true;
  switch (a.kind()) {
    case Kind::kNone:
    case Kind::kUndefined: return true;
    case Kind::kText:
      budget.scan(static_cast<std::int64_t>(std::min(a.bytes().size(), b.bytes().size())));
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple: return equal_items(a.items(), b.items(), budget);
    case Kind::kDict: return equal_dicts(a.entries(), b.entries(), budget);
    case Kind::kRange:
    case Kind::kView: {
      const auto x = iterate(a, budget);
      const auto y = iterate(b, budget);
      return equal_items(x->items, y->items, budget);
    }
    default: return false;
  }
}

int compare(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_text() && b.is_text()) {
    // UTF-8 keeps the order of code points.
    budget.scan(static_cast<std::int64_t>(std::min(a.bytes().size(), b.bytes().size())));
    return a.bytes().compare(b.bytes());
  }
  if ((a.is(Kind::kList) && b.is(Kind::kList)) || (a.is(Kind::kTuple) && b.is(Kind::kTuple))) {
    const std::size_t common = std::min(a.items().size(), b.items().size());
    for (std::size_t i = 0; i < common; ++i) {
      if (!equal(a.items()[i], b.items()[i], budget)) return compare(a.items()[i], b.items()[i], budget);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size() ? 1 : 0;
  }
  fail(concat("'<' is not supported between '", type_name(a), "' and '", type_name(b), "'"));
}

bool is_hashable(const Value& value, Budget& budget) {
  budget.step();
  if (value.is(Kind::kTuple)) {
    return std::all_of(value.items().begin(), value.items().end(),
                       [&](const Value& item) { return is_hashable(item, budget); });
  }
  return !value.is(Kind::kList) && !value.is(Kind::kDict) && !value.is(Kind::kView);
}

void fail_undefined(const Value& undefined) { fail(undefined.bytes()); }

}  // namespace hotset::model::jinja
