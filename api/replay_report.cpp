#include "api/replay_report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "core/concat.h"

namespace hotset::api {
namespace {

using Json = nlohmann::ordered_json;

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

Summary locality(const ReplayReport& report, double sparse::LayerLocality::* share) {
  std::vector<double> values;
  for (const auto& layer : report.result.locality) values.push_back(layer.*share);
  return summarize(values);
}

Json summary_json(const Summary& summary) {
  return {{"mean", summary.mean}, {"least", summary.least}, {"most", summary.most}};
}

Json run_json(const sparse::ReplayRun& run, const std::string& size) {
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
          {"hot_buffer", size},
          {"hot_buffer_tokens", run.hot_buffer_tokens},
          {"miss_share", {{"mean", summary.mean}, {"worst", summary.most}}},
          {"misses_of_a_row", {{"median", run.median_misses}, {"p99", run.p99_misses}}},
          {"layers", std::move(layers)}};
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
void append_table(std::string& out, std::span<const sparse::ReplayRun> runs, std::span<const std::string> sizes) {
  const bool lru = runs.front().policy == sparse::ReplayPolicy::kLru;
  out += concat("\nShare of the selected blocks that are missed, policy ",
                sparse::replay_policy_name(runs.front().policy), lru ? "\n" : " (the best possible)\n");
  const auto share = [](double value) { return fixed(value, 4); };
  append_row(out, "buffer", sizes, [](const std::string& size) { return size; });
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

}  // namespace

std::string replay_json(const ReplayReport& report) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < report.result.runs.size(); ++i)
    runs.push_back(run_json(report.result.runs[i], report.sizes[i % report.sizes.size()]));
  Json layers = Json::array();
  for (const auto& layer : report.result.locality)
    layers.push_back({{"layer", layer.layer.value()},
                      {"kept_from_the_step_before", layer.kept},
                      {"shared_with_the_layer_before", layer.shared}});
  const Json json = {{"model", report.trace.model},
                     {"algorithm", report.trace.algorithm},
                     {"sequences", report.sequences},
                     {"rows", report.rows},
                     {"budget_tokens", report.budget_tokens},
                     {"hot_ring", report.options.hot_ring},
                     {"skip", report.options.skip},
                     {"kept_from_the_step_before", summary_json(locality(report, &sparse::LayerLocality::kept))},
                     {"shared_with_the_layer_before", summary_json(locality(report, &sparse::LayerLocality::shared))},
                     {"runs", std::move(runs)},
                     {"locality", std::move(layers)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string replay_tables(const ReplayReport& report) {
  const Summary kept = locality(report, &sparse::LayerLocality::kept);
  const Summary shared = locality(report, &sparse::LayerLocality::shared);
  std::string out =
      concat(printable(report.trace.model), ", ", printable(report.trace.algorithm), ": ", report.sequences,
             report.sequences == 1 ? " sequence, " : " sequences, ", report.rows, " rows in ",
             report.result.locality.size(), " layers; largest selection ", report.budget_tokens,
             " tokens (1x), ring of the newest ", report.options.hot_ring, " tokens\n");
  out += concat("Kept from the step before: ", fixed(kept.mean, 3), " (layers ", fixed(kept.least, 3), " to ",
                fixed(kept.most, 3), "). Shared with the layer before: ", fixed(shared.mean, 3), "\n");
  out +=
      concat("Missed: selected, yet neither in the buffer nor in the ring, so it comes over the bus. Copied: from the ",
             "ring into the buffer.\nCounted: all but the first ", report.options.skip,
             " of each sequence's rows (--skip). Buffers start empty.\n");
  const std::size_t columns = report.sizes.size();
  const std::span<const sparse::ReplayRun> runs(report.result.runs);
  for (std::size_t first = 0; first < runs.size(); first += columns)
    append_table(out, runs.subspan(first, columns), report.sizes);
  return out;
}

}  // namespace hotset::api
