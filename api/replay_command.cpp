#include "api/replay_command.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/command_output.h"
#include "core/concat.h"
#include "sparse/replay.h"
#include "sparse/selection_history.h"
#include "sparse/selection_trace.h"

namespace hotset::api {
namespace {

using Json = nlohmann::ordered_json;

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

struct Summary {
  double mean = 0;   // over the layers
  double least = 0;  // of a layer
  double most = 0;
};

// Values that are no numbers are left out; no others: not a number.
Summary summarize(const std::vector<double>& values) {
  Summary summary{0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  double count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    summary.mean += value;
    summary.least = std::min(summary.least, value);
    summary.most = std::max(summary.most, value);
    ++count;
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (count == 0) return {kNone, kNone, kNone};
  summary.mean /= count;
  return summary;
}

std::vector<double> miss_shares(const sparse::ReplayRun& run) {
  std::vector<double> shares;
  for (const auto& layer : run.layers) shares.push_back(layer.counts.miss_share());
  return shares;
}

double ring_copy_share(const sparse::ReplayRun& run) {
  double copies = 0;
  double selected = 0;
  for (const auto& layer : run.layers) {
    copies += static_cast<double>(layer.counts.ring_copies);
    selected += static_cast<double>(layer.counts.selected);
  }
  return selected == 0 ? 0 : copies / selected;
}

// What a report is about, beside the numbers.
struct Report {
  sparse::TraceHeader trace;
  const sparse::SelectionHistory& history;
  std::vector<BufferSize> sizes;
  sparse::ReplayOptions options;
  sparse::ReplayResult result;

  [[nodiscard]] Summary kept() const {
    std::vector<double> values;
    for (const auto& layer : result.locality) values.push_back(layer.kept);
    return summarize(values);
  }
  [[nodiscard]] Summary shared() const {
    std::vector<double> values;
    for (const auto& layer : result.locality) values.push_back(layer.shared);
    return summarize(values);
  }
};

Json summary_json(const Summary& summary) {
  return {{"mean", summary.mean}, {"least", summary.least}, {"most", summary.most}};
}

Json run_json(const sparse::ReplayRun& run, const BufferSize& size) {
  const std::vector<double> shares = miss_shares(run);
  const Summary summary = summarize(shares);
  Json layers = Json::array();
  for (const auto& layer : run.layers) {
    layers.push_back({{"layer", layer.layer.value()},
                      {"rows", layer.counts.rows},
                      {"selected", layer.counts.selected},
                      {"misses", layer.counts.misses},
                      {"miss_share", layer.counts.miss_share()}});
    // For the best possible policy copies are no measure: sparse/replay.h.
    if (run.policy == sparse::ReplayPolicy::kLru) layers.back()["ring_copies"] = layer.counts.ring_copies;
  }
  return {{"policy", sparse::replay_policy_name(run.policy)},
          {"hot_buffer", size.text},
          {"hot_buffer_tokens", run.hot_buffer_tokens},
          {"miss_share", {{"mean", summary.mean}, {"worst", summary.most}}},
          {"misses_of_a_row", {{"median", run.median_misses}, {"p99", run.p99_misses}}},
          {"layers", std::move(layers)}};
}

std::string json_report(const Report& report) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < report.result.runs.size(); ++i)
    runs.push_back(run_json(report.result.runs[i], report.sizes[i % report.sizes.size()]));
  Json locality = Json::array();
  for (const auto& layer : report.result.locality)
    locality.push_back({{"layer", layer.layer.value()},
                        {"kept_from_the_step_before", layer.kept},
                        {"shared_with_the_layer_before", layer.shared}});
  const Json json = {{"model", report.trace.model},
                     {"algorithm", report.trace.algorithm},
                     {"sequences", report.history.sequences()},
                     {"rows", report.history.rows()},
                     {"budget_tokens", report.history.budget_tokens()},
                     {"hot_ring", report.options.hot_ring},
                     {"skip", report.options.skip},
                     {"kept_from_the_step_before", summary_json(report.kept())},
                     {"shared_with_the_layer_before", summary_json(report.shared())},
                     {"runs", std::move(runs)},
                     {"locality", std::move(locality)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string fixed(double value, int digits) {
  if (std::isnan(value)) return "-";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, digits);
  return {buffer, end.ptr};
}

std::string printable(std::string text) {
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return text;
}

// One line of a table: a name, then a value for each size.
template <class Values, class Text>
void append_row(std::string& out, const std::string& name, const Values& values, Text&& text) {
  constexpr std::size_t kNameWidth = 8;
  constexpr std::size_t kValueWidth = 10;
  out += std::string(kNameWidth - std::min(kNameWidth, name.size()), ' ') + name;
  for (const auto& value : values) {
    const std::string cell = text(value);
    out += std::string(kValueWidth - std::min(kValueWidth - 1, cell.size()), ' ') + cell;
  }
  out += '\n';
}

// The runs of one policy, a column for each.
void append_table(std::string& out, std::span<const sparse::ReplayRun> runs, std::span<const BufferSize> sizes) {
  const bool lru = runs.front().policy == sparse::ReplayPolicy::kLru;
  out += concat("\nShare of the selected blocks that are missed, policy ",
                sparse::replay_policy_name(runs.front().policy), lru ? "\n" : " (the best possible)\n");
  const auto share = [](double value) { return fixed(value, 4); };
  append_row(out, "buffer", sizes, [](const BufferSize& size) { return size.text; });
  append_row(out, "tokens", runs, [](const auto& run) { return concat(run.hot_buffer_tokens); });
  for (std::size_t layer = 0; layer < runs.front().layers.size(); ++layer)
    append_row(out, concat("layer ", runs.front().layers[layer].layer.value()), runs,
               [&](const auto& run) { return share(run.layers[layer].counts.miss_share()); });
  append_row(out, "mean", runs, [&](const auto& run) { return share(summarize(miss_shares(run)).mean); });
  append_row(out, "worst", runs, [&](const auto& run) { return share(summarize(miss_shares(run)).most); });
  if (lru) append_row(out, "copied", runs, [&](const auto& run) { return share(ring_copy_share(run)); });
  out += "Misses of one row in one layer, blocks\n";
  append_row(out, "median", runs, [](const auto& run) { return concat(run.median_misses); });
  append_row(out, "p99", runs, [](const auto& run) { return concat(run.p99_misses); });
}

std::string text_report(const Report& report) {
  const Summary kept = report.kept();
  const Summary shared = report.shared();
  std::string out =
      concat(printable(report.trace.model), ", ", printable(report.trace.algorithm), ": ", report.history.sequences(),
             report.history.sequences() == 1 ? " sequence, " : " sequences, ", report.history.rows(), " rows in ",
             report.result.locality.size(), " layers; largest selection ", report.history.budget_tokens(),
             " tokens (1x), ring of the newest ", report.options.hot_ring, " tokens\n");
  out += concat("Kept from the step before: ", fixed(kept.mean, 3), " (layers ", fixed(kept.least, 3), " to ",
                fixed(kept.most, 3), "). Shared with the layer before: ", fixed(shared.mean, 3), "\n");
  out +=
      concat("Missed: selected, yet neither in the buffer nor in the ring, so it comes over the bus. Copied: from the ",
             "ring into the buffer.\nNot counted: the first ", report.options.skip,
             " rows of each sequence (--skip). Buffers start empty.\n");
  const std::size_t columns = report.sizes.size();
  const std::span<const sparse::ReplayRun> runs(report.result.runs);
  for (std::size_t first = 0; first < runs.size(); first += columns)
    append_table(out, runs.subspan(first, columns), report.sizes);
  return out;
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
  sparse::ReplayOptions options;
  for (const BufferSize& size : sizes.value())
    options.hot_buffer_tokens.push_back(size.tokens_for(loaded.value().history.budget_tokens()));
  options.policies = std::move(policies).value();
  options.hot_ring = arguments.hot_ring.value_or(header.hot_ring > 0 ? header.hot_ring : kDefaultRing);
  options.skip = arguments.skip;
  auto result = sparse::replay(loaded.value().history, options);
  if (!result) return result.error();
  const Report report{header, loaded.value().history, std::move(sizes).value(), std::move(options),
                      std::move(result).value()};
  return arguments.json ? json_report(report) : text_report(report);
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
