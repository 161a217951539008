// Rows of the decode batch: which sequence has which, and what the tables on the device hold of it.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "sparse/device_kv.h"
#include "sparse/pinned_ids.h"

namespace hotset::sparse {
namespace {

namespace cuda = kernels::cuda;

template <class Id>
std::int64_t entries(const std::vector<std::vector<Id>>& tables) {
  return tables.empty() ? 0 : static_cast<std::int64_t>(tables.front().size());
}

}  // namespace

cuda::HotRow DeviceKv::hot_row(const SequenceKv& kv, std::int32_t layer, const std::int32_t* device_pages,
                               const std::int32_t* host_pages) const {
  if (kv.mode != KvMode::kHot) return {.device_pages = device_pages, .host_pages = host_pages};
  const HotBufferShape& shape = kv.hot_shape;
  const std::int64_t slots = std::int64_t{geometry().layers} * shape.hot_blocks;
  std::byte* const state = kv.device->hot_state.get();
  return {.block_of_slot = reinterpret_cast<std::int32_t*>(state) + std::int64_t{layer} * shape.hot_blocks,
          .lru = reinterpret_cast<std::uint16_t*>(state + slots * kWord) + std::int64_t{layer} * shape.hot_blocks,
          .device_pages = device_pages,
          .host_pages = host_pages,
          .hot_blocks = shape.hot_blocks,
          .block_tokens = shape.block_tokens,
          .ring_recent = shape.ring_recent,
          .ring_tokens = shape.ring_tokens};
}

std::vector<std::int32_t> DeviceKv::place(std::span<SequenceKv* const> sequences) {
  const auto count = static_cast<std::int32_t>(sequences.size());
  HS_CHECK(count <= limits_.max_batch, "the batch fits");
  std::vector<DeviceSequence*> owners(rows_.size(), nullptr);
  for (SequenceKv* kv : sequences) {
    if (owns_row(*kv) && kv->device->row < count) owners[static_cast<std::size_t>(kv->device->row)] = kv->device.get();
  }
  std::int32_t free = 0;
  std::vector<std::int32_t> out;
  for (SequenceKv* kv : sequences) {
    DeviceSequence& device = device_of(*kv);
    const bool owned = owns_row(*kv);
    if (!owned || device.row >= count) {
      while (owners[static_cast<std::size_t>(free)] != nullptr) ++free;
      device.has_selection = device.has_selection && owned;
      if (device.has_selection && tables_.max_selected > 0) move_selection(device.row, free);
      device.row = free;
      device.tables_stale = true;
      owners[static_cast<std::size_t>(free)] = &device;
    }
    out.push_back(device.row);
  }
  rows_ = std::move(owners);
  for (SequenceKv* kv : sequences) sync_tables(*kv, kv->device->row);
  return out;
}

void DeviceKv::move_selection(std::int32_t from, std::int32_t to) {
  const std::int64_t row_bytes = tables_.max_selected * kWord;
  const std::int64_t layer_bytes = row_bytes * tables_.max_batch;
  compute_.copy_rows(tables_.selection_of(LayerId{0}, from), layer_bytes, tables_.selection_of(LayerId{0}, to),
                     layer_bytes, row_bytes, tables_.layers);
  compute_.copy_rows(tables_.selection_counts + from, tables_.max_batch * kWord, tables_.selection_counts + to,
                     tables_.max_batch * kWord, kWord, tables_.layers);
}

void DeviceKv::place_prompt(SequenceKv& kv) {
  DeviceSequence& device = device_of(kv);
  device.tables_stale = true;
  sync_tables(kv, limits_.max_batch);
  device.tables_stale = true;  // the next prompt takes the row
}

template <class Id>
void DeviceKv::upload_table(const std::vector<std::vector<Id>>& table, std::int64_t from, std::int32_t* target) {
  const std::int64_t count = entries(table) - from;
  if (count <= 0) return;
  HS_CHECK(from + count <= tables_.pages, "a sequence has no more pages than its table");
  const auto layers = static_cast<std::int64_t>(table.size());
  const std::span<std::int32_t> staged = block().take<std::int32_t>(layers * count);
  auto out = staged.begin();
  for (const std::vector<Id>& pages : table)
    out = std::transform(pages.begin() + from, pages.end(), out, [](Id id) { return id.value(); });
  compute_.copy_rows(staged.data(), count * kWord, target + from, tables_.pages * kWord, count * kWord, layers);
}

void DeviceKv::sync_tables(SequenceKv& kv, std::int32_t row) {
  DeviceSequence& device = *kv.device;
  if (device.tables_stale) device.pages_known = device.metadata_known = device.host_known = 0;
  upload_table(kv.device_pages, device.pages_known, tables_.rows_of(row, LayerId{0}));
  if (tables_.metadata_layers > 0) upload_table(kv.metadata_pages, device.metadata_known, tables_.metadata_of(row, 0));
  const auto host_count = static_cast<std::int64_t>(kv.host_pages.size()) - device.host_known;
  if (host_count > 0) {
    const auto added = std::span<const HostPage>(kv.host_pages).subspan(static_cast<std::size_t>(device.host_known));
    compute_.copy(keep_ids(added, block()), tables_.host_pages + row * tables_.pages + device.host_known,
                  host_count * kWord);
  }
  if (device.tables_stale) {
    const std::span<cuda::HotRow> hot = block().take<cuda::HotRow>(tables_.layers);
    for (std::int32_t layer = 0; layer < tables_.layers; ++layer) {
      hot[static_cast<std::size_t>(layer)] =
          hot_row(kv, layer, tables_.rows_of(row, LayerId{layer}), tables_.host_pages + row * tables_.pages);
    }
    constexpr std::int64_t kBytes = sizeof(cuda::HotRow);
    compute_.copy_rows(hot.data(), kBytes, tables_.hot_rows + row, (limits_.max_batch + 1) * kBytes, kBytes,
                       tables_.layers);
  }
  device.pages_known = entries(kv.device_pages);
  device.metadata_known = entries(kv.metadata_pages);
  device.host_known = static_cast<std::int64_t>(kv.host_pages.size());
  device.tables_stale = false;
}

}  // namespace hotset::sparse
