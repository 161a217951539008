// Values of a template, with Python's semantics: truth, equality, order, printing. Texts, lists and dicts are immutable
// and shared, so copying a Value costs a reference count and a 1 MB message is never copied by passing it on.
// Containers know their depth and none is deeper than kMaxDepth: walking or destroying one cannot overflow the stack.
// Constants of a compiled template are read by many threads; everything mutable belongs to one rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/budget.h"

namespace hotset::model::jinja {

inline constexpr int kMaxDepth = 200;  // of nested lists and dicts

enum class Kind : std::uint8_t {
  kMissing,  // an argument that was not given; never visible to a template
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,      // dict.keys(), .values(), .items()
  kIterator,  // what map, select, ... give: read once, always true, no length
  kNamespace,
  kFunction,
  kMacro,
  kLoop,
  kCycler,
  kJoiner,
};

class Object {
 public:
  virtual ~Object() = default;
  // Drops references to other values, to break cycles at the end of a rendering.
  virtual void clear() {}
};

class Interpreter;
class Value;
struct Arguments;
struct Text;
struct Sequence;
struct Dict;
using Values = std::vector<Value>;

class Value {
 public:
  Value() = default;  // kMissing
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b) { return Value(Kind::kBool, b ? 1 : 0); }
  static Value integer(std::int64_t i) { return Value(Kind::kInt, i); }
  static Value real(double d);
  static Value text(std::string bytes);
  // `message`: what the error says when a template uses it.
  static Value undefined(std::string message);
  // Fail when deeper than kMaxDepth.
  static Value list(Values items) { return sequence(Kind::kList, std::move(items)); }
  static Value tuple(Values items) { return sequence(Kind::kTuple, std::move(items)); }
  static Value iterator(Values items) { return sequence(Kind::kIterator, std::move(items)); }
  static Value dict(std::shared_ptr<Dict> entries);
  static Value function(Value (*call)(Interpreter&, const Value& self, const Arguments&), Value self);

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is(Kind kind) const { return kind_ == kind; }
  [[nodiscard]] bool is_text() const { return kind_ == Kind::kText; }
  [[nodiscard]] bool is_undefined() const { return kind_ == Kind::kUndefined; }
  [[nodiscard]] bool is_missing() const { return kind_ == Kind::kMissing; }
  [[nodiscard]] bool is_none() const { return kind_ == Kind::kNone; }
  [[nodiscard]] bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  [[nodiscard]] bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }

  // Each needs the matching kind.
  [[nodiscard]] std::int64_t as_int() const { return integer_; }  // kBool too
  [[nodiscard]] double as_double() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  [[nodiscard]] const std::string& bytes() const;
  [[nodiscard]] std::int64_t text_length() const;
  [[nodiscard]] const Values& items() const;
  [[nodiscard]] const Dict& entries() const;
  template <class T>
  [[nodiscard]] T& object() const {
    return static_cast<T&>(*object_);
  }
  [[nodiscard]] const std::shared_ptr<Object>& pointer() const { return object_; }
  [[nodiscard]] int depth() const;  // 0 for what holds nothing

 private:
  explicit Value(Kind kind, std::int64_t integer = 0) : kind_(kind), integer_(integer) {}
  static Value sequence(Kind kind, Values items);

  Kind kind_ = Kind::kMissing;
  union {
    std::int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

struct Text final : Object {
  explicit Text(std::string text);
  std::string bytes;
  std::int64_t length;  // in code points
};
struct Sequence final : Object {
  Values items;
  int depth = 0;
  bool is_group = false;     // a tuple of groupby: has .grouper and .list
  std::size_t position = 0;  // kIterator: what was read
};
struct Dict final : Object {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion, keys unique
  int depth = 1;

  [[nodiscard]] const Value* find(const Value& key, Budget& budget) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  // Adds or replaces. Fails for keys that Python cannot hash and when too deep.
  void set(Value key, Value value, Budget& budget);

 private:
  [[nodiscard]] std::optional<std::size_t> index_of_text(std::string_view key) const;
  std::vector<std::uint32_t> table_;  // open addressing over text keys, once there are many; 0 = empty, else index + 1
  void grow_table();
};
struct Range final : Object {
  std::int64_t start = 0, stop = 0, step = 1;
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t at(std::int64_t index) const;  // 0 <= index < size()
};
struct View final : Object {
  enum class What { kKeys, kValues, kItems } what = What::kKeys;
  Value dict;
};
struct Namespace final : Object {
  std::vector<std::pair<std::string, Value>> attributes;
  [[nodiscard]] Value* find(std::string_view name);
  void set(std::string_view name, Value value);
  void clear() override { attributes.clear(); }
};
struct Cycler final : Object {
  Values items;
  std::size_t position = 0;
  void clear() override { items.clear(); }
};
// A built-in function, or a method with its object. `call` is one of builtins.h's Native functions.
struct Function final : Object {
  using Call = Value (*)(Interpreter& interpreter, const Value& self, const Arguments& arguments);
  Call call = nullptr;
  Value self;
};
struct Joiner final : Object {
  std::string separator;
  bool used = false;
};

[[nodiscard]] std::string_view type_name(const Value& value);  // as Python: "str", "NoneType", ...
[[nodiscard]] bool truth(const Value& value);
[[nodiscard]] bool is_iterable(const Value& value);
// Number of items, or nothing for what has no len().
[[nodiscard]] std::optional<std::int64_t> length_of(const Value& value);
// Every item, in order; the list itself for lists and tuples. Empties iterators. Fails for what is not iterable.
[[nodiscard]] std::shared_ptr<const Sequence> iterate(const Value& value, Budget& budget);
[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);
// Negative, zero, positive. Fails when Python has no order for the two.
[[nodiscard]] int compare(const Value& a, const Value& b, Budget& budget);
[[nodiscard]] bool is_hashable(const Value& value, Budget& budget);
[[noreturn]] void fail_undefined(const Value& undefined);

}  // namespace hotset::model::jinja
