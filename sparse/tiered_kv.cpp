#include "sparse/tiered_kv.h"

#include <algorithm>

#include "core/check.h"

namespace hotset::sparse {

TieredKv::TieredKv(storage::DevicePool& device, storage::HostPool& host, kernels::Backend& backend)
    : device_(device), host_(host), backend_(backend) {
  HS_CHECK(device.layout() == host.layout(), "both tiers hold the same pages");
}

void TieredKv::apply(SequenceKv& kv, const KvOp& op, TierTraffic& traffic) {
  switch (op.kind) {
    case KvOp::Kind::kAddHostPages:
    case KvOp::Kind::kAddDevicePages:
    case KvOp::Kind::kAddMetadataPages: add_pages(kv, layout(), op); return;
    case KvOp::Kind::kEnterResident: enter_resident(kv, op, traffic); return;
    case KvOp::Kind::kEnterHot: enter_hot(kv, op, traffic); return;
    case KvOp::Kind::kPark:
      flush(kv, traffic);
      kv.mode = KvMode::kParked;
      kv.device_pages.clear();
      kv.metadata_pages.clear();
      kv.hot.clear();
      return;
  }
}

void TieredKv::enter_resident(SequenceKv& kv, const KvOp& op, TierTraffic& traffic) {
  HS_CHECK(kv.mode == KvMode::kParked, "only a parked sequence becomes resident");
  kv.mode = KvMode::kResident;
  kv.device_pages.assign(static_cast<std::size_t>(geometry().layers), {});
  kv.metadata_pages.assign(static_cast<std::size_t>(layout().metadata_layers), {});
  append_device_pages(kv, layout(), op);
  append_metadata_pages(kv, layout(), op);
  for (std::int32_t layer = 0; layer < geometry().layers; ++layer) load_rows(kv, LayerId{layer}, 0, traffic);
  load_metadata(kv, traffic);
}

void TieredKv::enter_hot(SequenceKv& kv, const KvOp& op, TierTraffic& traffic) {
  HS_CHECK(kv.mode != KvMode::kHot, "the sequence is hot already");
  flush(kv, traffic);
  const std::int64_t pages = hot_pages_of(op.shape).total();
  const std::int32_t layers = geometry().layers;
  HS_CHECK(static_cast<std::int64_t>(op.device_pages.size()) == pages * layers, "hot pages come for all layers");
  if (kv.mode == KvMode::kParked) {
    kv.metadata_pages.assign(static_cast<std::size_t>(layout().metadata_layers), {});
    append_metadata_pages(kv, layout(), op);
    load_metadata(kv, traffic);
  } else {
    HS_CHECK(op.metadata_pages.empty(), "a resident sequence keeps its metadata pages");
  }
  kv.mode = KvMode::kHot;
  kv.device_pages.assign(static_cast<std::size_t>(layers), {});
  kv.hot_shape = op.shape;
  kv.hot.assign(static_cast<std::size_t>(layers), HotBuffer(op.shape));
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    const auto begin = op.device_pages.begin() + layer * pages;
    kv.device_pages[static_cast<std::size_t>(layer)].assign(begin, begin + pages);
    load_rows(kv, LayerId{layer}, std::max<std::int64_t>(0, kv.length - op.shape.ring_tokens), traffic);
    seed_buffer(kv, LayerId{layer}, traffic);
  }
}

// The newest selection is a good guess for the next one (three quarters stay): its blocks are there at the first step.
void TieredKv::seed_buffer(SequenceKv& kv, LayerId layer, TierTraffic& traffic) {
  const auto at = static_cast<std::size_t>(layer.value());
  if (kv.last_selection.size() <= at || kv.last_selection[at].empty() || kv.length == 0) return;
  kv.hot[at].diff(kv.last_selection[at], kv.length - 1, diff_);
  load_misses(kv, layer, traffic);
}

// Rows [first, length) from the host to their places on the device.
void TieredKv::load_rows(const SequenceKv& kv, LayerId layer, std::int64_t first, TierTraffic& traffic) {
  std::int64_t position = first;
  if (kv.mode == KvMode::kResident && first % kPageTokens == 0) {
    for (; position + kPageTokens <= kv.length; position += kPageTokens) {
      add_copy(host_row(kv, layer, position), device_row(kv, layer, position));
    }
    traffic.bytes_loaded += run_copies(geometry().page_bytes());
  }
  for (; position < kv.length; ++position) add_copy(host_row(kv, layer, position), device_row(kv, layer, position));
  traffic.bytes_loaded += run_copies(geometry().row_bytes());
}

void TieredKv::load_metadata(const SequenceKv& kv, TierTraffic& traffic) {
  if (!kv.keeps_metadata) return;
  for (std::int32_t layer = 0; layer < layout().metadata_layers; ++layer) {
    for (std::int64_t page = 0; page < pages_for_tokens(kv.length); ++page) {
      const auto at = static_cast<std::size_t>(page);
      add_copy(host_.metadata(layer, kv.host_pages[at]),
               device_.metadata(kv.metadata_pages[static_cast<std::size_t>(layer)].at(at)));
    }
  }
  traffic.bytes_loaded += run_copies(layout().metadata.page_bytes());
}

void TieredKv::flush(SequenceKv& kv, TierTraffic& traffic) {
  if (kv.mode == KvMode::kParked) {
    HS_CHECK(kv.host_complete == kv.length, "a parked sequence lies on the host");
    return;
  }
  offload(kv, kv.host_complete, kv.length, traffic);
}

void TieredKv::offload(SequenceKv& kv, std::int64_t first, std::int64_t end, TierTraffic& traffic) {
  if (first == end) return;
  const bool whole_pages = kv.mode == KvMode::kResident && first % kPageTokens == 0 && end % kPageTokens == 0;
  const std::int64_t piece = whole_pages ? kPageTokens : 1;
  for (std::int32_t layer = 0; layer < geometry().layers; ++layer) {
    for (std::int64_t position = first; position < end; position += piece) {
      add_copy(device_row(kv, LayerId{layer}, position), host_row(kv, LayerId{layer}, position));
    }
  }
  traffic.bytes_offloaded += run_copies(piece * geometry().row_bytes());
  if (kv.keeps_metadata) {
    for (std::int32_t layer = 0; layer < layout().metadata_layers; ++layer) {
      for (std::int64_t page = first / kPageTokens; page < pages_for_tokens(end); ++page) {
        const auto at = static_cast<std::size_t>(page);
        add_copy(device_.metadata(kv.metadata_pages[static_cast<std::size_t>(layer)].at(at)),
                 host_.metadata(layer, kv.host_pages[at]));
      }
    }
    traffic.bytes_offloaded += run_copies(layout().metadata.page_bytes());
  }
  kv.host_complete = end;
}

void TieredKv::row_targets(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t rows,
                           std::vector<std::byte*>& targets) const {
  for (std::int64_t position = first; position < first + rows; ++position) {
    targets.push_back(kv.mode == KvMode::kParked ? host_row(kv, layer, position) : device_row(kv, layer, position));
  }
}

void TieredKv::metadata_targets(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t rows,
                                std::vector<std::byte*>& pages, std::vector<std::int32_t>& offsets) const {
  const std::int32_t metadata_layer = layout().metadata_of_layer[static_cast<std::size_t>(layer.value())];
  for (std::int64_t position = first; position < first + rows; ++position) {
    const auto page = static_cast<std::size_t>(position / kPageTokens);
    pages.push_back(kv.mode == KvMode::kParked
                        ? host_.metadata(metadata_layer, kv.host_pages.at(page))
                        : device_.metadata(kv.metadata_pages[static_cast<std::size_t>(metadata_layer)].at(page)));
    offsets.push_back(static_cast<std::int32_t>(position % kPageTokens));
  }
}

void TieredKv::metadata_pages(const SequenceKv& kv, LayerId layer, std::int64_t length,
                              std::vector<const std::byte*>& pages) const {
  const std::int32_t metadata_layer = layout().metadata_of_layer[static_cast<std::size_t>(layer.value())];
  for (std::size_t page = 0; page < static_cast<std::size_t>(pages_for_tokens(length)); ++page) {
    pages.push_back(kv.mode == KvMode::kParked
                        ? host_.metadata(metadata_layer, kv.host_pages.at(page))
                        : device_.metadata(kv.metadata_pages[static_cast<std::size_t>(metadata_layer)].at(page)));
  }
}

void TieredKv::commit_rows(SequenceKv& kv, std::int64_t rows, TierTraffic& traffic) {
  kv.length += rows;
  if (kv.mode == KvMode::kParked) {
    kv.host_complete = kv.length;
    traffic.bytes_offloaded += rows * geometry().token_bytes();
    if (kv.keeps_metadata) {
      traffic.bytes_offloaded += rows * layout().metadata_layers * layout().metadata.page_bytes() / kPageTokens;
    }
    return;
  }
  const std::int64_t complete = kv.length / kPageTokens * kPageTokens;
  if (complete > kv.host_complete) offload(kv, kv.host_complete, complete, traffic);
}

void TieredKv::all_slots(const SequenceKv& kv, LayerId layer, std::int64_t length,
                         std::vector<std::int64_t>& slots) const {
  HS_CHECK(kv.mode == KvMode::kResident, "only a resident sequence has all its rows on the device");
  const auto& pages = kv.device_pages[static_cast<std::size_t>(layer.value())];
  for (std::int64_t first = 0; first < length; first += kPageTokens) {
    const std::int64_t base = slot_of(pages[static_cast<std::size_t>(first / kPageTokens)], 0).value();
    const std::int64_t count = std::min(kPageTokens, length - first);
    for (std::int64_t offset = 0; offset < count; ++offset) slots.push_back(base + offset);
  }
}

void TieredKv::selected_slots(SequenceKv& kv, LayerId layer, std::span<const std::int32_t> blocks,
                              std::int32_t block_tokens, std::int64_t length, std::vector<std::int64_t>& slots,
                              TierTraffic& traffic) {
  HS_CHECK(kv.mode != KvMode::kParked, "a parked sequence does not decode");
  kv.last_selection.resize(static_cast<std::size_t>(geometry().layers));
  kv.last_selection[static_cast<std::size_t>(layer.value())].assign(blocks.begin(), blocks.end());
  if (kv.mode == KvMode::kResident) return resident_slots(kv, layer, blocks, block_tokens, length, slots);
  auto& buffer = kv.hot[static_cast<std::size_t>(layer.value())];
  HS_CHECK(buffer.shape().block_tokens == block_tokens, "the buffer holds blocks of the algorithm");
  buffer.diff(blocks, length - 1, diff_);
  load_misses(kv, layer, traffic);
  traffic.hits += diff_.hits;
  traffic.misses += static_cast<std::int64_t>(diff_.misses.size());
  traffic.ring_hits += diff_.ring_hits;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int64_t first = std::int64_t{blocks[i]} * block_tokens;
    const std::int64_t count = std::min<std::int64_t>(block_tokens, length - first);
    const std::int32_t place = diff_.slot_of[i];
    HS_CHECK(place >= 0, "a selection holds valid blocks");
    const bool in_buffer = place < buffer.shape().hot_blocks;
    const std::int64_t base = (in_buffer ? buffer_slot(kv, layer, place) : ring_slot(kv, layer, first)).value();
    for (std::int64_t offset = 0; offset < count; ++offset) slots.push_back(base + offset);
  }
}

void TieredKv::resident_slots(const SequenceKv& kv, LayerId layer, std::span<const std::int32_t> blocks,
                              std::int32_t block_tokens, std::int64_t length, std::vector<std::int64_t>& slots) const {
  for (const std::int32_t block : blocks) {
    const std::int64_t first = std::int64_t{block} * block_tokens;
    const std::int64_t count = std::min<std::int64_t>(block_tokens, length - first);
    const std::int64_t base = resident_slot(kv, layer, first).value();
    for (std::int64_t offset = 0; offset < count; ++offset) slots.push_back(base + offset);
  }
}

void TieredKv::stage_rows(const SequenceKv& kv, LayerId layer, std::span<const std::int64_t> positions,
                          std::byte* target, TierTraffic& traffic) {
  for (const std::int64_t position : positions) {
    add_copy(host_row(kv, layer, position), target);
    target += geometry().row_bytes();
  }
  traffic.bytes_loaded += run_copies(geometry().row_bytes());
}

void TieredKv::load_misses(const SequenceKv& kv, LayerId layer, TierTraffic& traffic) {
  if (diff_.misses.empty()) return;
  const std::int32_t block_tokens = kv.hot[static_cast<std::size_t>(layer.value())].shape().block_tokens;
  const std::int64_t bytes = block_tokens * geometry().row_bytes();
  for (const Miss& miss : diff_.misses) {
    const std::int64_t first = std::int64_t{miss.block} * block_tokens;
    std::byte* target = device_.row(buffer_slot(kv, layer, miss.slot));
    if (miss.source == MissSource::kRing) {
      add_copy(device_.row(ring_slot(kv, layer, first)), target);
    } else {
      HS_CHECK(first + block_tokens <= kv.host_complete, "a missing block is on the host");
      add_copy(host_row(kv, layer, first), target);
      traffic.bytes_loaded += bytes;
    }
  }
  run_copies(bytes);
}

const std::byte* TieredKv::resident_tile(const SequenceKv& kv, LayerId layer, std::int64_t tile) const {
  if (kv.mode != KvMode::kResident) return nullptr;
  return device_.page(kv.device_pages[static_cast<std::size_t>(layer.value())][static_cast<std::size_t>(tile)]);
}

void TieredKv::stage_tile(const SequenceKv& kv, LayerId layer, std::int64_t tile, std::int64_t length,
                          std::byte* target, TierTraffic& traffic) {
  const std::int64_t first = tile * kPageTokens;
  const std::int64_t rows = std::min(kPageTokens, length - first);
  add_copy(host_row(kv, layer, first), target);
  traffic.bytes_loaded += run_copies(rows * geometry().row_bytes());
}

std::byte* TieredKv::device_row(const SequenceKv& kv, LayerId layer, std::int64_t position) const {
  if (kv.mode == KvMode::kHot) return device_.row(ring_slot(kv, layer, position));
  return device_.row(resident_slot(kv, layer, position));
}

SlotId TieredKv::resident_slot(const SequenceKv& kv, LayerId layer, std::int64_t position) const {
  const auto& pages = kv.device_pages[static_cast<std::size_t>(layer.value())];
  HS_CHECK(position / kPageTokens < static_cast<std::int64_t>(pages.size()), "the row has a device page");
  return slot_of(pages[static_cast<std::size_t>(position / kPageTokens)], position % kPageTokens);
}

std::int64_t TieredKv::ring_begin(const SequenceKv& kv, LayerId layer) const {
  const HotBufferShape& shape = kv.hot[static_cast<std::size_t>(layer.value())].shape();
  return std::max<std::int64_t>(0, kv.length + 1 - shape.ring_tokens);
}

std::vector<TieredKv::BufferedBlock> TieredKv::buffered_blocks(const SequenceKv& kv, LayerId layer) const {
  const HotBuffer& buffer = kv.hot[static_cast<std::size_t>(layer.value())];
  const std::int64_t block_tokens = buffer.shape().block_tokens;
  std::vector<BufferedBlock> out;
  for (std::int64_t slot = 0; slot < buffer.shape().hot_blocks; ++slot) {
    const std::int32_t block = buffer.block_of_slot()[static_cast<std::size_t>(slot)];
    if (block < 0) continue;
    out.push_back(
        {.first = block * block_tokens, .rows = block_tokens, .device = device_.row(buffer_slot(kv, layer, slot))});
  }
  return out;
}

std::byte* TieredKv::host_row(const SequenceKv& kv, LayerId layer, std::int64_t position) const {
  HS_CHECK(position / kPageTokens < static_cast<std::int64_t>(kv.host_pages.size()), "the row has a host page");
  const HostPage page = kv.host_pages[static_cast<std::size_t>(position / kPageTokens)];
  return host_.row(layer, host_slot_of(page, position % kPageTokens));
}

SlotId TieredKv::ring_slot(const SequenceKv& kv, LayerId layer, std::int64_t position) const {
  const HotBufferShape& shape = kv.hot[static_cast<std::size_t>(layer.value())].shape();
  const std::int64_t row = position % shape.ring_tokens;
  const auto page = static_cast<std::size_t>(hot_pages_of(shape).buffer + row / kPageTokens);
  return slot_of(kv.device_pages[static_cast<std::size_t>(layer.value())][page], row % kPageTokens);
}

SlotId TieredKv::buffer_slot(const SequenceKv& kv, LayerId layer, std::int64_t block_slot) const {
  const std::int64_t row = block_slot * kv.hot[static_cast<std::size_t>(layer.value())].shape().block_tokens;
  const auto& pages = kv.device_pages[static_cast<std::size_t>(layer.value())];
  return slot_of(pages[static_cast<std::size_t>(row / kPageTokens)], row % kPageTokens);
}

std::int64_t TieredKv::run_copies(std::int64_t bytes) {
  const auto count = static_cast<std::int64_t>(sources_.size());
  if (count > 0) {
    backend_.copy({.sources = sources_.data(), .targets = targets_.data(), .count = count, .bytes = bytes});
    sources_.clear();
    targets_.clear();
  }
  return count * bytes;
}

}  // namespace hotset::sparse
