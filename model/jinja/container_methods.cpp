// Methods of dict, list, tuple and range that change nothing, and the global functions.
#include <algorithm>
#include <array>
#include <ctime>

#include "core/concat.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/print.h"

namespace hotset::model::jinja {
namespace {

template <View::What what>
Value dict_view(Interpreter&, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "items", {});
  auto view = std::make_shared<View>();
  view->what = what;
  view->dict = self;
  return Value(Kind::kView, std::move(view));
}

Value dict_get(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "get", {"key", "default"}, 1);
  if (!is_hashable(a[0], interpreter.budget())) fail(concat("unhashable type: '", type_name(a[0]), "'"));
  if (const Value* found = self.entries().find(a[0], interpreter.budget())) return *found;
  return a[1].is_missing() ? Value::none() : a[1];
}

// Values never change, so a copy is the value itself.
Value copy(Interpreter&, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "copy", {});
  return self;
}

Value index_of(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "index", {"value", "start", "stop"}, 1);
  const auto items = iterate(self, interpreter.budget());
  const auto size = static_cast<std::int64_t>(items->items.size());
  const auto place = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size); };
  const std::int64_t stop = place(int_argument(a[2], size));
  for (std::int64_t i = place(int_argument(a[1], 0)); i < stop; ++i) {
    if (equal(items->items[static_cast<std::size_t>(i)], a[0], interpreter.budget())) return Value::integer(i);
  }
  fail("index() does not find the value");
}

Value count_of(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "count", {"value"}, 1);
  const auto items = iterate(self, interpreter.budget());
  return Value::integer(std::count_if(items->items.begin(), items->items.end(),
                                      [&](const Value& item) { return equal(item, a[0], interpreter.budget()); }));
}

Value make_range(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Values a = bind(arguments, "range", {"start", "stop", "step"}, 1);
  auto range = std::make_shared<Range>();
  range->start = a[1].is_missing() ? 0 : int_argument(a[0], 0);
  range->stop = int_argument(a[1].is_missing() ? a[0] : a[1], 0);
  range->step = int_argument(a[2], 1);
  if (range->step == 0) fail("range() needs a step that is not zero");
  if (range->size() < 0 || range->size() > interpreter.budget().limits().range) {
    fail(concat("range() is limited to ", interpreter.budget().limits().range, " numbers"));
  }
  return Value(Kind::kRange, std::move(range));
}

// dict(mapping or pairs, name=value, ...), also what namespace() starts with.
std::shared_ptr<Dict> dict_from(Interpreter& interpreter, const Arguments& arguments) {
  auto dict = std::make_shared<Dict>();
  Budget& budget = interpreter.budget();
  if (arguments.positional.size() > 1) fail("dict() takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.entries().entries) dict->set(key, value, budget);
    } else {
      const auto pairs = iterate(source, budget);
      for (const Value& item : pairs->items) {
        const auto pair = iterate(item, budget);
        if (pair->items.size() != 2) fail("dict() needs pairs of a key and a value");
        dict->set(pair->items[0], pair->items[1], budget);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict->set(interpreter.text(name), value, budget);
  return dict;
}

Value make_dict(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  return Value::dict(dict_from(interpreter, arguments));
}

Value make_namespace(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  auto space = std::make_shared<Namespace>();
  for (const auto start = dict_from(interpreter, arguments); const auto& [key, value] : start->entries) {
    if (!key.is_text()) fail("namespace() needs texts as names");
    space->set(key.bytes(), value);
  }
  interpreter.keep(space);
  return Value(Kind::kNamespace, std::move(space));
}

Value make_cycler(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) fail("cycler() needs at least one item");
  auto cycler = std::make_shared<Cycler>();
  cycler->items = arguments.positional;
  interpreter.keep(cycler);
  return Value(Kind::kCycler, std::move(cycler));
}

Value make_joiner(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Values a = bind(arguments, "joiner", {"sep"});
  auto joiner = std::make_shared<Joiner>();
  joiner->separator = a[0].is_missing() ? ", " : to_text(a[0], interpreter.budget());
  return Value(Kind::kJoiner, std::move(joiner));
}

Value raise_exception(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const Values a = bind(arguments, "raise_exception", {"message"}, 1);
  throw TemplateError{to_text(a[0], interpreter.budget()), true};
}

// datetime.now().strftime(format), by the injected clock and in local time.
Value strftime_now(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const std::string& format = text_argument(bind(arguments, "strftime_now", {"format"}, 1)[0]);
  const std::time_t now = interpreter.budget().clock().unix_seconds();
  std::tm local{};
  localtime_r(&now, &local);
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out.push_back(format[i]);
      continue;
    }
    const char code = format[++i];
    if (code == 'f') {
      out += "000000";
    } else if (code == 'z' || code == 'Z') {
      continue;  // a naive datetime has no zone
    } else {
      // A flag like '-' belongs to the conversion behind it.
      std::string conversion = {'%', code};
      if ((code == '-' || code == '_' || code == '^' || code == '#') && i + 1 < format.size()) {
        conversion.push_back(format[++i]);
      }
      std::array<char, 128> buffer{};
      out.append(buffer.data(), std::strftime(buffer.data(), buffer.size(), conversion.c_str(), &local));
    }
    interpreter.budget().bytes(16);
  }
  return interpreter.text(std::move(out));
}

}  // namespace

Native find_container_method(Kind kind, std::string_view name) {
  if (kind == Kind::kDict) {
    if (name == "items") return dict_view<View::What::kItems>;
    if (name == "keys") return dict_view<View::What::kKeys>;
    if (name == "values") return dict_view<View::What::kValues>;
    if (name == "get") return dict_get;
    return name == "copy" ? copy : nullptr;
  }
  if (name == "index") return index_of;
  if (name == "count") return count_of;
  return kind == Kind::kList && name == "copy" ? copy : nullptr;
}

const std::vector<NamedNative>& global_functions() {
  static const std::vector<NamedNative> kFunctions = {
      {"range", make_range},         {"dict", make_dict},     {"namespace", make_namespace},
      {"cycler", make_cycler},       {"joiner", make_joiner}, {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}};
  return kFunctions;
}

}  // namespace hotset::model::jinja
