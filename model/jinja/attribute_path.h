// The `attribute` argument of filters: "address.city", 0, or none for the item itself.
#pragma once

#include <vector>

#include "model/jinja/interpreter.h"

namespace hotset::model::jinja {

class AttributePath {
 public:
  // `attribute`: a text, a whole number, none or missing.
  AttributePath(const Value& attribute, Budget& budget);
  // Undefined where a part is absent; `otherwise` instead, when it is neither missing nor none.
  [[nodiscard]] Value read(Interpreter& interpreter, Value item, const Value& otherwise = {}) const;

 private:
  Values parts_;
};

// The value that sorting and comparing use: texts in lower case unless `case_sensitive`.
[[nodiscard]] Value sort_key(const Value& value, bool case_sensitive);

}  // namespace hotset::model::jinja
