#include "api/replay_command.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/command_output.h"
#include "api/replay_report.h"
#include "core/concat.h"
#include "sparse/replay.h"
#include "sparse/selection_history.h"
#include "sparse/selection_trace.h"

namespace hotset::api {
namespace {

constexpr double kMostTimes = 1e6;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr std::int64_t kDefaultRing = 128;

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (true) {
    const auto comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    std::erase(parts.back(), ' ');
    if (comma == list.npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

// A size as the user wrote it: a multiple of the budget, or tokens.
struct BufferSize {
  std::string text;
  double times = 0;  // 0: `tokens` says it
  std::int64_t tokens = 0;

  [[nodiscard]] std::int64_t tokens_for(std::int64_t budget) const {
    return times == 0 ? tokens : static_cast<std::int64_t>(std::ceil(times * static_cast<double>(budget) - 1e-6));
  }
};

std::optional<BufferSize> parse_buffer_size(const std::string& text) {
  BufferSize size{text};
  const char* const end = text.data() + text.size();
  if (text.ends_with('x')) {
    const auto read = std::from_chars(text.data(), end - 1, size.times);
    const bool good = read.ec == std::errc{} && read.ptr == end - 1 && size.times >= 1 && size.times <= kMostTimes;
    return good ? std::optional(size) : std::nullopt;
  }
  const auto read = std::from_chars(text.data(), end, size.tokens);
  const bool good = read.ec == std::errc{} && read.ptr == end && size.tokens >= 1 && size.tokens <= kMostTokens;
  return good ? std::optional(size) : std::nullopt;
}

Result<std::vector<BufferSize>> parse_buffer_sizes(const std::string& list) {
  std::vector<BufferSize> sizes;
  for (const std::string& text : split(list)) {
    const auto size = parse_buffer_size(text);
    if (!size)
      return invalid_argument(
          "--hot-buffer must be sizes of 1x and more (times the largest selection) or in tokens, separated by commas, "
          "for example 1.5x,2x,4096.",
          "--hot-buffer");
    sizes.push_back(*size);
  }
  return sizes;
}

Result<std::vector<sparse::ReplayPolicy>> parse_policies(const std::string& list) {
  std::vector<sparse::ReplayPolicy> policies;
  for (const std::string& name : split(list)) {
    for (const auto policy : {sparse::ReplayPolicy::kLru, sparse::ReplayPolicy::kBelady})
      if (name == sparse::replay_policy_name(policy)) policies.push_back(policy);
    if (policies.empty() || name != sparse::replay_policy_name(policies.back()))
      return invalid_argument("--policies must be lru, belady or both, separated by a comma.", "--policies");
  }
  return policies;
}

// What could be read, and why no more could.
struct LoadedTrace {
  sparse::TraceHeader header;
  sparse::SelectionHistory history;
  std::string damage;  // empty: read to the end
};

Result<LoadedTrace> load(const std::string& file) {
  auto reader = sparse::TraceReader::open(file);
  if (!reader) return reader.error();
  LoadedTrace loaded{reader.value()->header(), {}, {}};
  while (true) {
    const auto record = reader.value()->next();
    if (!record) loaded.damage = record.error().message;
    if (!record || !record.value()) break;
    if (auto added = loaded.history.add(*record.value()); !added)
      return corrupt(concat(file, ": ", added.error().message));
  }
  if (loaded.history.empty())
    return invalid_argument(loaded.damage.empty() ? concat(file, " holds no selection of a generated token")
                                                  : loaded.damage);
  return loaded;
}

Result<std::string> make_report(const ReplayArguments& arguments, std::string& damage) {
  auto sizes = parse_buffer_sizes(arguments.hot_buffer);
  if (!sizes) return sizes.error();
  auto policies = parse_policies(arguments.policies);
  if (!policies) return policies.error();
  auto loaded = load(arguments.file);
  if (!loaded) return loaded.error();
  damage = loaded.value().damage;

  const sparse::TraceHeader& header = loaded.value().header;
  const sparse::SelectionHistory& history = loaded.value().history;
  sparse::ReplayOptions options;
  for (const BufferSize& size : sizes.value())
    options.hot_buffer_tokens.push_back(size.tokens_for(history.budget_tokens()));
  options.policies = std::move(policies).value();
  options.hot_ring = arguments.hot_ring.value_or(header.hot_ring > 0 ? header.hot_ring : kDefaultRing);
  options.skip = arguments.skip;
  auto result = sparse::replay(history, options);
  if (!result) return result.error();
  const auto& layers = result.value().runs.front().layers;
  if (std::ranges::all_of(layers, [](const auto& layer) { return layer.counts.rows == 0; }))
    return invalid_argument(concat("--skip ", options.skip, " leaves no row to count."), "--skip");
  ReplayReport report{header, history.sequences(), history.rows(),           history.budget_tokens(),
                      {},     std::move(options),  std::move(result).value()};
  for (const BufferSize& size : sizes.value()) report.sizes.push_back(size.text);
  return arguments.json ? replay_json(report) : replay_tables(report);
}

}  // namespace

int replay_trace(const ReplayArguments& arguments, std::ostream& out, std::ostream& err) {
  std::string damage;
  const auto report = make_report(arguments, damage);
  if (!report) {
    err << "hotset: " << report.error().message << '\n';
    return 1;
  }
  CommandOutput output(out);
  output.write(report.value());
  const int written = output.finish(err);
  if (damage.empty()) return written;
  err << "hotset: " << damage << '\n';
  return 1;
}

}  // namespace hotset::api
