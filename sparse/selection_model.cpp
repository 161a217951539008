#include "sparse/selection_model.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include "core/concat.h"
#include "core/kv_geometry.h"
#include "sparse/selection_trace.h"

namespace hotset::sparse {
namespace {

constexpr const char* kOption = "--selection-model";

// A sequence's rows while they are read.
struct Collected {
  std::int64_t first_length = 0;
  std::map<LayerId, std::vector<RecordedSelections::Row>> layers;
  bool broken = false;  // a row is missing: those behind it do not count
};

// What `record` adds to its sequence, in whose order rows come layer by layer.
void collect(const SelectionRecord& record, std::int64_t at, Collected& sequence) {
  const std::int64_t length = record.position + 1;
  auto& rows = sequence.layers[record.layer];
  if (sequence.first_length == 0) sequence.first_length = length;
  if (length != sequence.first_length + static_cast<std::int64_t>(rows.size())) sequence.broken = true;
  if (sequence.broken) return;
  rows.push_back({.at = at,
                  .count = static_cast<std::int32_t>(record.blocks.size()),
                  .blocks = static_cast<std::int32_t>(ceil_div(length, std::int64_t{record.block_tokens}))});
}

// Rows that every layer has.
void keep(const Collected& sequence, RecordedSelections& out) {
  if (static_cast<std::int32_t>(sequence.layers.size()) != out.layers) return;
  std::size_t count = std::numeric_limits<std::int32_t>::max();
  for (const auto& [layer, rows] : sequence.layers) count = std::min(count, rows.size());
  if (count == 0) return;
  out.sequences.push_back({.first_row = static_cast<std::int64_t>(out.rows.size()),
                           .first_length = sequence.first_length,
                           .count = static_cast<std::int32_t>(count)});
  for (const auto& [layer, rows] : sequence.layers)
    out.rows.insert(out.rows.end(), rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

Result<SelectionModel> parse_selection_model(std::string_view text) {
  constexpr std::string_view kChurn = "churn=", kTrace = "trace=";
  if (text.starts_with(kTrace) && text.size() > kTrace.size())
    return SelectionModel(RecordedModel{.trace = std::filesystem::path(text.substr(kTrace.size()))});
  if (text.starts_with(kChurn)) {
    ChurnModel churn;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + kChurn.size(), end, churn.share);
    if (read.ec == std::errc{} && read.ptr == end && churn.share >= 0 && churn.share <= 1) return SelectionModel(churn);
  }
  return invalid_argument(concat(kOption, " ", text, ": churn=P with P from 0 to 1, or trace=FILE"), kOption);
}

Result<RecordedSelections> read_recorded_selections(const std::filesystem::path& path, std::int64_t most_blocks) {
  auto opened = TraceReader::open(path);
  if (!opened) return opened.error();
  TraceReader& reader = *opened.value();
  RecordedSelections out{.layers = reader.header().layers, .block_tokens = 0};
  std::map<SequenceId, Collected> sequences;
  while (true) {
    const auto read = reader.next();
    if (!read) return read.error();
    if (!read.value()) break;
    const SelectionRecord& record = *read.value();
    if (record.prefill || record.everything || record.blocks.empty()) continue;
    if (record.position >= std::numeric_limits<std::int32_t>::max())
      return invalid_argument(concat(kOption, ": the trace has positions past 2^31"), kOption);
    if (out.block_tokens != 0 && out.block_tokens != record.block_tokens)
      return invalid_argument(concat(kOption, ": the trace has blocks of more than one size"), kOption);
    const auto at = static_cast<std::int64_t>(out.blocks.size());
    if (at + static_cast<std::int64_t>(record.blocks.size()) > most_blocks) break;
    out.block_tokens = record.block_tokens;
    collect(record, at, sequences[record.sequence]);
    out.blocks.insert(out.blocks.end(), record.blocks.begin(), record.blocks.end());
  }
  for (const auto& [id, sequence] : sequences) keep(sequence, out);
  if (out.sequences.empty()) {
    return invalid_argument(
        concat(kOption, ": the trace holds no sequence with selections of a generated token in every layer"), kOption);
  }
  return out;
}

}  // namespace hotset::sparse
