#include "api/openai_json.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "core/concat.h"

namespace hotset::api {
namespace {

constexpr float kNonFinite = -9999.0F;  // what clients of other servers expect in place of minus infinity
constexpr std::size_t kLongestPath = 128;

// Builds the value while watching the limits, and knows the path of the value that is being read.
class LimitedBuilder final : public nlohmann::json_sax<Json> {
 public:
  LimitedBuilder(Json& root, const JsonLimits& limits) : root_(root), limits_(limits) {}

  bool null() override { return add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return add(Json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(Json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(Json(value)) != nullptr; }
  bool string(string_t& value) override { return add(Json(std::move(value))) != nullptr; }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (++members_ > limits_.members || open_.back()->size() >= limits_.members_per_object) {
      return fail("has too many members");
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    const std::string_view text = error.what();
    if (text.find("UTF-8") != text.npos) return fail("holds bytes that are not UTF-8");
    if (text.find("surrogate") != text.npos) return fail("holds half of a surrogate pair");
    if (text.find("out_of_range") != text.npos) return fail("holds a number that is out of range");
    return fail("is not valid JSON");
  }

  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Json* add(Json value) {
    if (++values_ > limits_.values) {
      fail("holds too many values");
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& member = parent[key_];
    member = std::move(value);
    return &member;
  }

  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= limits_.depth) return fail("is nested too deeply");
    if (++containers_ > limits_.containers) return fail("holds too many lists and objects");
    std::string name = path();
    Json* added = add(std::move(container));
    if (added == nullptr) return false;
    open_.push_back(added);
    paths_.push_back(std::move(name));
    key_.clear();
    return true;
  }

  bool close() {
    open_.pop_back();
    paths_.pop_back();
    key_.clear();
    return true;
  }

  // Path of the value that comes next. Names that a client made up are not repeated to it at length or in other
  // scripts.
  [[nodiscard]] std::string path() const {
    if (open_.empty()) return {};
    const std::string& parent = paths_.back();
    if (parent.size() > kLongestPath) return parent;
    if (open_.back()->is_array()) return concat(parent, "[", open_.back()->size(), "]");
    if (key_.empty()) return parent;
    std::string name = key_.substr(0, 64);
    for (char& c : name) {
      if (c != '_' && c != '-' && !std::isalnum(static_cast<unsigned char>(c))) c = '?';
    }
    return parent.empty() ? name : concat(parent, ".", name);
  }

  bool fail(std::string_view what) {
    const std::string where = path();
    error_ = where.empty() ? invalid_argument(concat("The request body ", what, "."))
                           : invalid_argument(concat("The field '", where, "' ", what, "."), where);
    return false;
  }

  Json& root_;
  const JsonLimits& limits_;
  std::vector<Json*> open_;         // stable: a container only grows while it is the last one
  std::vector<std::string> paths_;  // of the open containers
  std::string key_;
  std::size_t values_ = 0, containers_ = 0, members_ = 0;
  Error error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  Json root;
  LimitedBuilder builder(root, limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return builder.error();
  return root;
}

Result<Json> parse_json_object(std::string_view text, const JsonLimits& limits) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) return invalid_argument("The request body is empty.");
  auto parsed = parse_json(text, limits);
  if (parsed && !parsed.value().is_object()) return invalid_argument("The request body must be a JSON object.");
  return parsed;
}

std::string to_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json number(float value) {
  if (!std::isfinite(value)) value = kNonFinite;
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  double exact = 0;
  std::from_chars(digits, end, exact);
  return exact;
}

bool is_valid_utf8(std::string_view text) {
  const auto* byte = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = byte + text.size();
  while (byte != end) {
    const unsigned lead = *byte++;
    if (lead < 0x80) continue;
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || end - byte < more) return false;
    const unsigned second = *byte;
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
        (lead == 0xF4 && second > 0x8F)) {
      return false;
    }
    for (int i = 0; i < more; ++i) {
      if ((*byte++ & 0xC0) != 0x80) return false;
    }
  }
  return true;
}

}  // namespace hotset::api
