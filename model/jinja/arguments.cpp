#include <algorithm>

#include "core/concat.h"
#include "model/jinja/builtins.h"

namespace hotset::model::jinja {
namespace {

Native find_in(const std::vector<NamedNative>& table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.name == name; });
  return found != table.end() ? found->native : nullptr;
}

}  // namespace

Native find_filter(std::string_view name) {
  for (const auto* table : {&text_filters(), &sequence_filters(), &selection_filters(), &number_filters()}) {
    if (const Native native = find_in(*table, name)) return native;
  }
  return nullptr;
}

Values bind(const Arguments& arguments, std::string_view function, std::initializer_list<std::string_view> names,
            std::size_t required) {
  if (arguments.positional.size() > names.size()) {
    fail(concat(function, "() takes at most ", names.size(), " arguments"));
  }
  Values bound(names.size());
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fail(concat(function, "() got an unexpected keyword argument"));
    Value& place = bound[static_cast<std::size_t>(found - names.begin())];
    if (!place.is_missing()) fail(concat(function, "() got an argument twice: '", *found, "'"));
    place = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound[i].is_missing()) fail(concat(function, "() misses its argument '", *(names.begin() + i), "'"));
  }
  return bound;
}

std::int64_t int_argument(const Value& value, std::int64_t otherwise) {
  if (value.is_missing()) return otherwise;
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integral()) fail(concat("a whole number is needed, not '", type_name(value), "'"));
  return value.as_int();
}

bool flag_argument(const Value& value, bool otherwise) { return value.is_missing() ? otherwise : truth(value); }

const std::string& text_argument(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_text()) fail(concat("a text is needed, not '", type_name(value), "'"));
  return value.bytes();
}

}  // namespace hotset::model::jinja
