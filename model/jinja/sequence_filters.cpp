// Filters on sequences and mappings.
#include <algorithm>

#include "core/concat.h"
#include "model/jinja/attribute_path.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"
#include "model/jinja/text_operations.h"

namespace hotset::model::jinja {
namespace {

Value length(Interpreter&, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "length", {});
  const auto count = length_of(self);
  if (!count) fail(concat("object of type '", type_name(self), "' has no len()"));
  return Value::integer(*count);
}

Value list(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "list", {});
  if (self.is(Kind::kList)) return self;
  return interpreter.list(iterate(self, interpreter.budget())->items);
}

Value first(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "first", {});
  if (self.is(Kind::kIterator)) {
    auto& source = self.object<Sequence>();
    if (source.position < source.items.size()) return source.items[source.position++];
  } else if (truth(self) && (self.is_text() || self.is(Kind::kRange))) {
    return item_at(self, 0, interpreter.budget());
  } else {
    const auto items = iterate(self, interpreter.budget());
    if (!items->items.empty()) return items->items.front();
  }
  return Value::undefined("no first item, the sequence was empty");
}

Value last(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "last", {});
  if (self.is(Kind::kIterator)) fail("'generator' object is not reversible");
  if (truth(self) && (self.is_text() || self.is(Kind::kRange))) return item_at(self, -1, interpreter.budget());
  const auto items = iterate(self, interpreter.budget());
  return items->items.empty() ? Value::undefined("no last item, the sequence was empty") : items->items.back();
}

Value reverse(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "reverse", {});
  if (self.is_text()) return slice(self, {std::nullopt, std::nullopt, -1}, interpreter.budget());
  Values items = iterate(self, interpreter.budget())->items;
  std::reverse(items.begin(), items.end());
  return self.is(Kind::kIterator) ? interpreter.list(std::move(items)) : interpreter.iterator(std::move(items));
}

// Stable; descending keeps the order of equal items too, as Python.
void sort_by(std::vector<std::pair<Value, Value>>& keyed, bool descending, Budget& budget) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return descending ? compare(b.first, a.first, budget) < 0 : compare(a.first, b.first, budget) < 0;
  });
}

Value values_of(Interpreter& interpreter, std::vector<std::pair<Value, Value>> keyed) {
  Values items;
  items.reserve(keyed.size());
  for (auto& entry : keyed) items.push_back(std::move(entry.second));
  return interpreter.list(std::move(items));
}

Value sort(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = flag_argument(a[1], false);
  std::vector<AttributePath> paths;
  if (a[2].is_text()) {
    for (const std::string_view part : split_at(a[2].bytes(), ",", INT64_MAX, false, interpreter.budget())) {
      paths.emplace_back(Value::text(std::string(part)), interpreter.budget());
    }
  } else {
    paths.emplace_back(a[2], interpreter.budget());
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
    Values keys;
    for (const AttributePath& path : paths) keys.push_back(sort_key(path.read(interpreter, item), case_sensitive));
    keyed.emplace_back(interpreter.list(std::move(keys)), item);
  }
  sort_by(keyed, flag_argument(a[0], false), interpreter.budget());
  return values_of(interpreter, std::move(keyed));
}

Value dictsort(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  const bool case_sensitive = flag_argument(a[0], false);
  const std::string by = a[1].is_missing() ? "key" : text_argument(a[1]);
  if (by != "key" && by != "value") fail("dictsort sorts by \"key\" or \"value\"");
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is(Kind::kDict)) fail("dictsort needs a mapping");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : self.entries().entries) {
    keyed.emplace_back(sort_key(by == "key" ? key : value, case_sensitive), Value::tuple({key, value}));
    interpreter.budget().bytes(128);
  }
  sort_by(keyed, flag_argument(a[2], false), interpreter.budget());
  return values_of(interpreter, std::move(keyed));
}

Value unique(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "unique", {"case_sensitive", "attribute"});
  const AttributePath path(a[1], interpreter.budget());
  Dict seen;
  Values items;
  for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
    Value key = sort_key(path.read(interpreter, item), flag_argument(a[0], false));
    const std::size_t before = seen.entries.size();
    seen.set(std::move(key), Value::none(), interpreter.budget());
    if (seen.entries.size() != before) items.push_back(item);
  }
  return interpreter.iterator(std::move(items));
}

Value extreme(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool largest) {
  const Values a = bind(arguments, largest ? "max" : "min", {"case_sensitive", "attribute"});
  const AttributePath path(a[1], interpreter.budget());
  const auto items = iterate(self, interpreter.budget());
  if (items->items.empty()) return Value::undefined("no aggregated item, the sequence was empty");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items->items) {
    Value key = sort_key(path.read(interpreter, item), flag_argument(a[0], false));
    const bool better = best == nullptr || (largest ? compare(best_key, key, interpreter.budget()) < 0
                                                    : compare(key, best_key, interpreter.budget()) < 0);
    if (!better) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value sum(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "sum", {"attribute", "start"});
  const AttributePath path(a[0], interpreter.budget());
  Value total = a[1].is_missing() ? Value::integer(0) : a[1];
  if (total.is_text()) fail("sum() cannot add texts; use join");
  for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
    total = interpreter.add(total, path.read(interpreter, item));
  }
  return total;
}

Value join(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "join", {"d", "attribute"});
  const std::string separator = a[0].is_missing() ? std::string() : to_text(a[0], interpreter.budget());
  const AttributePath path(a[1], interpreter.budget());
  const auto items = iterate(self, interpreter.budget());
  std::string out;
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    interpreter.budget().bytes(static_cast<std::int64_t>(separator.size()));
    if (i != 0) out += separator;
    append_text(out, path.read(interpreter, items->items[i]), interpreter.budget());
  }
  return Value::text(std::move(out));
}

Value batch(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "batch", {"linecount", "fill_with"}, 1);
  const std::int64_t size = int_argument(a[0], 0);
  Values rows;
  Values row;
  for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
    if (static_cast<std::int64_t>(row.size()) == size) rows.push_back(interpreter.list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    const auto there = static_cast<std::int64_t>(row.size());
    if (!a[1].is_missing() && !a[1].is_none() && there < size) {
      const std::int64_t missing = size - there;
      interpreter.budget().bytes(std::min(missing, INT64_MAX / 64) * static_cast<std::int64_t>(sizeof(Value)));
      row.insert(row.end(), static_cast<std::size_t>(missing), a[1]);
    }
    rows.push_back(interpreter.list(std::move(row)));
  }
  return interpreter.iterator(std::move(rows));
}

Value slices(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "slice", {"slices", "fill_with"}, 1);
  const std::int64_t count = int_argument(a[0], 0);
  if (count == 0) fail("slice needs at least one slice");
  const auto items = iterate(self, interpreter.budget());
  const auto size = static_cast<std::int64_t>(items->items.size());
  Values out;
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool longer = i < size % count;
    const std::int64_t next = at + size / count + (longer ? 1 : 0);
    Values part(items->items.begin() + at, items->items.begin() + next);
    if (!a[1].is_missing() && !a[1].is_none() && !longer) part.push_back(a[1]);
    out.push_back(interpreter.list(std::move(part)));
    at = next;
  }
  return interpreter.iterator(std::move(out));
}

Value items(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "items", {});
  Values pairs;
  if (!self.is_undefined()) {
    if (!self.is(Kind::kDict)) fail("items needs a mapping");
    for (const auto& [key, value] : self.entries().entries) {
      interpreter.budget().bytes(128);
      pairs.push_back(Value::tuple({key, value}));
    }
  }
  return interpreter.iterator(std::move(pairs));
}

Value groupby(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(a[0], interpreter.budget());
  const bool case_sensitive = flag_argument(a[2], false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
    keyed.emplace_back(sort_key(path.read(interpreter, item, a[1]), case_sensitive), item);
    interpreter.budget().bytes(2 * sizeof(Value));
  }
  sort_by(keyed, false, interpreter.budget());
  Values groups;
  for (std::size_t begin = 0; begin < keyed.size();) {
    std::size_t end = begin;
    Values members;
    while (end < keyed.size() && equal(keyed[begin].first, keyed[end].first, interpreter.budget())) {
      members.push_back(keyed[end++].second);
    }
    if (end == begin) members.push_back(keyed[end++].second);  // a NaN equals nothing, not even itself
    Value group = Value::tuple({path.read(interpreter, members.front(), a[1]), interpreter.list(members)});
    group.object<Sequence>().is_group = true;
    groups.push_back(std::move(group));
    begin = end;
  }
  return interpreter.list(std::move(groups));
}

}  // namespace

const std::vector<NamedNative>& sequence_filters() {
  using I = Interpreter&;
  using V = const Value&;
  using A = const Arguments&;
  static const std::vector<NamedNative> kFilters = {
      {"length", length},
      {"count", length},
      {"list", list},
      {"first", first},
      {"last", last},
      {"reverse", reverse},
      {"sort", sort},
      {"dictsort", dictsort},
      {"unique", unique},
      {"min", [](I i, V s, A a) { return extreme(i, s, a, false); }},
      {"max", [](I i, V s, A a) { return extreme(i, s, a, true); }},
      {"sum", sum},
      {"join", join},
      {"batch", batch},
      {"slice", slices},
      {"items", items},
      {"groupby", groupby},
  };
  return kFilters;
}

}  // namespace hotset::model::jinja
