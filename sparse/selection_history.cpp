#include "sparse/selection_history.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/concat.h"
#include "sparse/selection_code.h"

namespace hotset::sparse {

Result<void> SelectionHistory::add(const SelectionRecord& record) {
  if (record.prefill || record.everything) return {};
  Packed& series = series_[{record.sequence, record.layer}];
  if (series.rows == 0) series.block_tokens = record.block_tokens;
  if (record.position <= series.last_position || record.block_tokens != series.block_tokens)
    return invalid_argument(concat("sequence ", record.sequence.value(), ", layer ", record.layer.value(),
                                   ": position ", record.position, " with blocks of ", record.block_tokens,
                                   " tokens can't follow position ", series.last_position, " with blocks of ",
                                   series.block_tokens));
  put_number(static_cast<std::uint64_t>(record.position - series.last_position), series.bytes);
  put_number(record.blocks.size(), series.bytes);
  HS_CHECK(put_blocks(record.blocks, series.bytes), "a record's blocks ascend");
  series.last_position = record.position;
  ++series.rows;
  ++rows_;
  budget_tokens_ =
      std::max(budget_tokens_, static_cast<std::int64_t>(record.blocks.size()) * std::int64_t{record.block_tokens});
  return {};
}

std::size_t SelectionHistory::sequences() const {
  std::size_t count = 0;
  const Key* before = nullptr;
  for (const auto& [key, packed] : series_) {
    if (before == nullptr || before->first != key.first) ++count;
    before = &key;
  }
  return count;
}

void SelectionHistory::unpack(const Key& key, const Packed& packed, SelectionSeries& out) {
  out = {key.first,           key.second,           packed.block_tokens, std::move(out.positions),
         std::move(out.ends), std::move(out.blocks)};
  out.positions.clear();
  out.ends.clear();
  out.blocks.clear();
  NumberReader reader(packed.bytes);
  std::int64_t position = -1;
  std::vector<std::int32_t> row;
  for (std::size_t i = 0; i < packed.rows; ++i) {
    const auto step = reader.number();
    const auto count = reader.number();
    HS_CHECK(step && count && reader.blocks(*count, std::numeric_limits<std::int32_t>::max(), row),
             "add() packed whole rows");
    position += static_cast<std::int64_t>(*step);
    out.positions.push_back(position);
    out.blocks.insert(out.blocks.end(), row.begin(), row.end());
    out.ends.push_back(out.blocks.size());
  }
}

}  // namespace hotset::sparse
