#include "sparse/device_kv.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "kernels/cuda/page_pieces.h"
#include "kernels/cuda/swap_in.h"

namespace hotset::sparse {
namespace {

namespace cuda = kernels::cuda;

constexpr std::int64_t kWord = sizeof(std::int32_t);

template <class Id>
std::int32_t* keep_ids(std::span<const Id> ids, cuda::PinnedBlock& block) {
  const std::span<std::int32_t> out = block.take<std::int32_t>(static_cast<std::int64_t>(ids.size()));
  std::transform(ids.begin(), ids.end(), out.begin(), [](Id id) { return id.value(); });
  return out.data();
}

template <class Id>
std::int64_t entries(const std::vector<std::vector<Id>>& tables) {
  return tables.empty() ? 0 : static_cast<std::int64_t>(tables.front().size());
}

std::int64_t hot_state_bytes(const DeviceKvLimits& limits, std::int32_t layers) {
  return std::int64_t{limits.largest_hot.hot_blocks} * layers *
         static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(std::uint16_t));
}

// Finished sequences are dropped a little later than they free their place.
std::int64_t hot_state_count(const DeviceKvLimits& limits) {
  return limits.largest_hot.hot_blocks == 0 ? 0 : limits.max_batch + std::max(8, limits.max_batch / 2);
}

}  // namespace

DevicePieces::DevicePieces(kernels::DenseBackend& backend, std::int64_t bytes, std::int64_t count)
    : shared_(std::make_shared<Shared>()) {
  const std::int64_t distance = round_up(std::max<std::int64_t>(bytes, 1), 256);
  shared_->memory = backend.allocate(distance * count);
  auto* const data = static_cast<std::byte*>(shared_->memory->data());
  for (std::int64_t i = count - 1; i >= 0; --i) shared_->free.push_back(data + i * distance);
}

std::shared_ptr<std::byte> DevicePieces::take() {
  const std::scoped_lock lock(shared_->mutex);
  HS_CHECK(!shared_->free.empty(), "no more sequences are hot than run");
  std::byte* const piece = shared_->free.back();
  shared_->free.pop_back();
  return {piece, [shared = shared_](std::byte* back) {
            const std::scoped_lock again(shared->mutex);
            shared->free.push_back(back);
          }};
}

DeviceKv::DeviceKv(storage::DevicePool& device, storage::HostPool& host, kernels::DenseBackend& backend,
                   const cuda::DeviceStream& compute, const DeviceKvLimits& limits)
    : device_(device),
      host_(host),
      compute_(compute),
      limits_(limits),
      hot_states_(backend, hot_state_bytes(limits, device.geometry().layers), hot_state_count(limits)),
      rows_(static_cast<std::size_t>(limits.max_batch), nullptr) {
  HS_CHECK(device.layout() == host.layout(), "both tiers hold the same pages");
  HS_CHECK(limits.max_batch <= cuda::kMostSwapBatch, "a step has at most as many sequences as the swap-in takes");
  const std::int64_t batch = limits.max_batch;
  tables_.layers = geometry().layers;
  tables_.metadata_layers = layout().metadata_layers;
  tables_.max_batch = limits.max_batch;
  tables_.max_selected = limits.max_selected;
  tables_.pages = std::max(pages_for_tokens(limits.max_tokens), hot_pages_of(limits.largest_hot).total());
  row_pages_ = backend.array<std::int32_t>((batch + 1) * tables_.layers * tables_.pages);
  metadata_pages_ = backend.array<std::int32_t>((batch + 1) * tables_.metadata_layers * tables_.pages);
  host_pages_ = backend.array<std::int32_t>((batch + 1) * tables_.pages);
  hot_rows_ = backend.array<cuda::HotRow>(tables_.layers * (batch + 1));
  for (std::int32_t layer = 0; layer < tables_.layers; ++layer) selection_layer_.emplace_back(layer);
  selections_ = backend.array<std::int32_t>(tables_.layers * batch * limits.max_selected);
  selection_counts_ = backend.array<std::int32_t>(tables_.layers * batch);
  tables_.row_pages = row_pages_.data();
  tables_.metadata_pages = metadata_pages_.data();
  tables_.host_pages = host_pages_.data();
  tables_.hot_rows = hot_rows_.data();
  tables_.selections = selections_.data();
  tables_.selection_counts = selection_counts_.data();
  std::vector<std::uint16_t> order(static_cast<std::size_t>(limits.largest_hot.hot_blocks));
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  fresh_order_ = backend.array_of(std::span<const std::uint16_t>(order));
  seed_slots_ = backend.array<std::int32_t>(limits.max_selected);
  seed_misses_ = backend.array<cuda::SparseMiss>(limits.max_selected);
  seed_counts_ = backend.array<cuda::SparseDiffCounts>(1);
}

DeviceSequence& DeviceKv::device_of(SequenceKv& kv) const {
  if (kv.device == nullptr) kv.device = std::make_shared<DeviceSequence>();
  return *kv.device;
}

bool DeviceKv::owns_row(const SequenceKv& kv) const {
  if (kv.device == nullptr || kv.device->row < 0) return false;
  return rows_[static_cast<std::size_t>(kv.device->row)] == kv.device.get();
}

// See write-through in the header.
static_assert(kStepsUnderWay <= kLeastRecent + 1, "a ring slot is not written again before a step waits for its copy");

void DeviceKv::begin_step() {
  ++step_;
  block().clear();
  for (const auto& offload : offloads_) {
    if (offload->step + kStepsUnderWay <= step_) offload->done.make_wait(compute_);
  }
  while (!offloads_.empty() && offloads_.front()->step + kStepsUnderWay <= step_) {
    idle_offloads_.push_back(std::move(offloads_.front()));
    offloads_.pop_front();
  }
}

void DeviceKv::wait_for_offloads() {
  for (const auto& offload : offloads_) offload->done.make_wait(compute_);
}

void DeviceKv::synchronize() const {
  compute_.synchronize();
  offload_stream_.synchronize();
}

void DeviceKv::apply(SequenceKv& kv, const KvOp& op, TierTraffic& traffic) {
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
      device_of(kv) = {};
      return;
  }
}

void DeviceKv::enter_resident(SequenceKv& kv, const KvOp& op, TierTraffic& traffic) {
  HS_CHECK(kv.mode == KvMode::kParked, "only a parked sequence becomes resident");
  wait_for_offloads();
  kv.mode = KvMode::kResident;
  kv.device_pages.assign(static_cast<std::size_t>(geometry().layers), {});
  kv.metadata_pages.assign(static_cast<std::size_t>(layout().metadata_layers), {});
  append_device_pages(kv, layout(), op);
  append_metadata_pages(kv, layout(), op);
  device_of(kv) = {};
  traffic.bytes_loaded += move(list_rows(kv, 0, kv.length, block()), Direction::kToDevice, block(), compute_);
  if (kv.keeps_metadata)
    traffic.bytes_loaded += move(list_metadata(kv, 0, kv.length, block()), Direction::kToDevice, block(), compute_);
}

void DeviceKv::enter_hot(SequenceKv& kv, const KvOp& op, TierTraffic& traffic) {
  HS_CHECK(kv.mode != KvMode::kHot, "the sequence is hot already");
  flush(kv, traffic);
  const std::int64_t pages = hot_pages_of(op.shape).total();
  const std::int32_t layers = geometry().layers;
  HS_CHECK(static_cast<std::int64_t>(op.device_pages.size()) == pages * layers, "hot pages come for all layers");
  HS_CHECK(op.shape.hot_blocks <= limits_.largest_hot.hot_blocks && pages <= tables_.pages,
           "the shape is within the limits");
  HS_CHECK(op.shape.ring_recent >= kLeastRecent && op.shape.ring_tokens >= op.shape.ring_recent + kPageTokens,
           "a ring holds a page beside the newest rows");
  if (kv.mode == KvMode::kParked) {
    kv.metadata_pages.assign(static_cast<std::size_t>(layout().metadata_layers), {});
    append_metadata_pages(kv, layout(), op);
    if (kv.keeps_metadata)
      traffic.bytes_loaded += move(list_metadata(kv, 0, kv.length, block()), Direction::kToDevice, block(), compute_);
  } else {
    HS_CHECK(op.metadata_pages.empty(), "a resident sequence keeps its metadata pages");
  }
  kv.mode = KvMode::kHot;
  kv.hot_shape = op.shape;
  kv.device_pages.assign(static_cast<std::size_t>(layers), {});
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    const auto begin = op.device_pages.begin() + layer * pages;
    kv.device_pages[static_cast<std::size_t>(layer)].assign(begin, begin + pages);
  }
  DeviceSequence& device = device_of(kv);
  device.tables_stale = true;
  device.hot_state = hot_states_.take();
  const std::int64_t slots = std::int64_t{layers} * op.shape.hot_blocks;
  compute_.fill_bytes(device.hot_state.get(), 0xff, slots * kWord);  // no block anywhere
  constexpr std::int64_t kOrderBytes = sizeof(std::uint16_t);
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    std::byte* const order = device.hot_state.get() + slots * kWord + layer * op.shape.hot_blocks * kOrderBytes;
    compute_.copy(fresh_order_.data(), order, op.shape.hot_blocks * kOrderBytes);
  }
  const std::int64_t first = std::max<std::int64_t>(0, kv.length - op.shape.ring_tokens);
  traffic.bytes_loaded += move(list_rows(kv, first, kv.length, block()), Direction::kToDevice, block(), compute_);
  seed_buffer(kv);
}

// The newest selection is a good guess for the next one (three quarters stay): its blocks are there at the first step.
void DeviceKv::seed_buffer(SequenceKv& kv) {
  if (kv.length == 0 || !owns_row(kv) || !kv.device->has_selection) return;
  const std::int32_t row = kv.device->row;
  const std::int32_t* const host_pages = keep_ids(std::span<const HostPage>(kv.host_pages), block());
  const std::span<std::int32_t> length = block().take<std::int32_t>(1);
  length[0] = static_cast<std::int32_t>(kv.length);
  for (std::int32_t layer = 0; layer < geometry().layers; ++layer) {
    const auto& pages = kv.device_pages[static_cast<std::size_t>(layer)];
    const LayerId of = selection_layer_[static_cast<std::size_t>(layer)];
    const cuda::HotRow hot = hot_row(kv, layer, keep_ids(std::span<const PageId>(pages), block()), host_pages);
    cuda::SwapInParams params{.diff = {.rows = block().keep(std::span(&hot, 1)),
                                       .lengths = length.data(),
                                       .selected = tables_.selection_of(of, row),
                                       .selected_counts = tables_.selection_counts_of(of) + row,
                                       .slot_of = seed_slots_.data(),
                                       .misses = seed_misses_.data(),
                                       .counts = seed_counts_.data(),
                                       .batch = 1,
                                       .max_selected = static_cast<std::int32_t>(tables_.max_selected),
                                       .max_hot_blocks = kv.hot_shape.hot_blocks},
                              .host_rows = host_rows(LayerId{layer}),
                              .device_rows = row_pool(),
                              .row_bytes = geometry().row_bytes()};
    cuda::launch_swap_in(params, compute_.get());
  }
}

void DeviceKv::flush(SequenceKv& kv, TierTraffic& traffic) {
  wait_for_offloads();
  if (kv.mode == KvMode::kParked) {
    HS_CHECK(kv.host_complete == kv.length, "a parked sequence lies on the host");
    return;
  }
  const std::int64_t first = kv.host_complete;
  if (first == kv.length) return;
  traffic.bytes_offloaded += move(list_rows(kv, first, kv.length, block()), Direction::kToHost, block(), compute_);
  if (kv.keeps_metadata)
    traffic.bytes_offloaded +=
        move(list_metadata(kv, first, kv.length, block()), Direction::kToHost, block(), compute_);
  kv.host_complete = kv.length;
}

const std::int32_t* DeviceKv::host_pages_of(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                            cuda::PinnedBlock& block) const {
  const std::int64_t first_page = first / kPageTokens;
  const auto pages =
      std::span(kv.host_pages)
          .subspan(static_cast<std::size_t>(first_page), static_cast<std::size_t>(pages_for_tokens(end) - first_page));
  return keep_ids(pages, block) - first_page;
}

// Runs of at most a page, of every layer. Page lists are kept from the first page on that the rows need, and named so
// that a position finds its page.
DeviceKv::Moves DeviceKv::list_rows(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                    cuda::PinnedBlock& block) const {
  Moves moves{.row_bytes = geometry().row_bytes(), .device = row_pool()};
  if (first == end) return moves;
  const bool hot = kv.mode == KvMode::kHot;
  const std::int64_t first_page = first / kPageTokens;
  const auto pages = [&](const auto& list) {
    return std::span(list).subspan(static_cast<std::size_t>(first_page),
                                   static_cast<std::size_t>(pages_for_tokens(end) - first_page));
  };
  const std::int32_t* const host_pages = host_pages_of(kv, first, end, block);
  for (std::int32_t layer = 0; layer < geometry().layers; ++layer) {
    const auto& table = kv.device_pages[static_cast<std::size_t>(layer)];
    const std::int32_t* const device_pages =
        hot ? keep_ids(std::span(table).subspan(static_cast<std::size_t>(hot_pages_of(kv.hot_shape).buffer)), block)
            : keep_ids(pages(table), block) - first_page;
    add_runs(moves, first, end,
             {.device_pages = device_pages,
              .host_pages = host_pages,
              .host_rows = host_.device_rows(LayerId{layer}),
              .ring_tokens = hot ? kv.hot_shape.ring_tokens : 0});
  }
  return moves;
}

// Whole pages, as 64 rows of a 64th each.
DeviceKv::Moves DeviceKv::list_metadata(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                        cuda::PinnedBlock& block) const {
  Moves moves{.row_bytes = metadata_row_bytes(), .device = metadata_pool()};
  if (first == end) return moves;
  const std::int64_t first_page = first / kPageTokens;
  const std::int64_t end_page = pages_for_tokens(end);
  const auto pages = [&](const auto& list) {
    return std::span(list).subspan(static_cast<std::size_t>(first_page),
                                   static_cast<std::size_t>(end_page - first_page));
  };
  const std::int32_t* const host_pages = host_pages_of(kv, first, end, block);
  for (std::int32_t layer = 0; layer < layout().metadata_layers; ++layer) {
    const auto& table = kv.metadata_pages[static_cast<std::size_t>(layer)];
    add_runs(moves, first_page * kPageTokens, end_page * kPageTokens,
             {.device_pages = keep_ids(pages(table), block) - first_page,
              .host_pages = host_pages,
              .host_rows = host_.device_metadata(layer)});
  }
  return moves;
}

std::int64_t DeviceKv::metadata_row_bytes() const {
  const std::int64_t bytes = layout().metadata.page_bytes();
  HS_CHECK(bytes % kPageTokens == 0, "a metadata page divides into 64 equal parts");
  return bytes / kPageTokens;
}

void DeviceKv::add_runs(Moves& moves, std::int64_t first, std::int64_t end, cuda::RowRun run) {
  for (std::int64_t position = first; position < end; position += run.rows) {
    run.first_position = position;
    run.rows = static_cast<std::int32_t>(std::min(end, (position / kPageTokens + 1) * kPageTokens) - position);
    moves.runs.push_back(run);
    moves.rows += run.rows;
  }
}

std::int64_t DeviceKv::move(const Moves& moves, Direction direction, cuda::PinnedBlock& block,
                            const cuda::DeviceStream& stream) const {
  if (moves.runs.empty()) return 0;
  const std::int64_t least = &stream == &compute_ ? cuda::kLeastPieceAlone : cuda::kLeastPieceBesideWork;
  const cuda::SplitRuns split = cuda::split_runs(moves.runs, moves.device, moves.row_bytes, least);
  const bool to_host = direction == Direction::kToHost;
  cuda::copy_pieces(split.pieces, to_host, stream.get());
  const cuda::MoveRowsParams params{.runs = block.keep(std::span<const cuda::RowRun>(split.rest)),
                                    .device_rows = moves.device,
                                    .row_bytes = moves.row_bytes,
                                    .run_count = static_cast<std::int32_t>(split.rest.size())};
  if (to_host) {
    cuda::launch_offload(params, stream.get());
  } else {
    cuda::launch_restore(params, stream.get());
  }
  return moves.rows * moves.row_bytes;
}

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

void DeviceKv::commit_rows(SequenceKv& kv, std::int64_t rows, TierTraffic& traffic) {
  HS_CHECK(kv.mode != KvMode::kHot || rows == 1, "a hot sequence gets one row a step");
  kv.length += rows;
  if (kv.mode == KvMode::kParked) {  // the attention has put them on the host, and counted them
    kv.host_complete = kv.length;
    return;
  }
  const std::int64_t complete = kv.length / kPageTokens * kPageTokens;
  if (complete <= kv.host_complete) return;
  if (next_offload_ == nullptr) {
    if (idle_offloads_.empty() || !idle_offloads_.front()->done.reached()) {
      next_offload_ = std::make_unique<Offload>();
    } else {
      next_offload_ = std::move(idle_offloads_.front());
      idle_offloads_.pop_front();
      next_offload_->block.clear();
    }
  }
  const auto add = [&](Moves moves) {
    traffic.bytes_offloaded += moves.rows * moves.row_bytes;
    next_offload_->moves.push_back(std::move(moves));
  };
  add(list_rows(kv, kv.host_complete, complete, next_offload_->block));
  if (kv.keeps_metadata) add(list_metadata(kv, kv.host_complete, complete, next_offload_->block));
  kv.host_complete = complete;
}

void DeviceKv::end_step() {
  if (next_offload_ == nullptr) return;
  Offload& offload = *next_offload_;
  step_written_.record(compute_);
  step_written_.make_wait(offload_stream_);
  for (const Moves& moves : offload.moves) move(moves, Direction::kToHost, offload.block, offload_stream_);
  offload.moves.clear();
  offload.done.record(offload_stream_);
  offload.step = step_;
  offloads_.push_back(std::move(next_offload_));
}

void DeviceKv::move_parked_rows(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t end,
                                std::byte* buffer, std::int64_t buffer_rows, Direction direction, TierTraffic& traffic,
                                const kernels::cuda::DeviceStream& stream) {
  Moves moves{.row_bytes = geometry().row_bytes(), .device = buffer};
  HS_CHECK(buffer_rows % kPageTokens == 0 && end - first <= buffer_rows, "the rows fit the buffer");
  const std::span<std::int32_t> pages = block().take<std::int32_t>(buffer_rows / kPageTokens);
  std::iota(pages.begin(), pages.end(), 0);
  add_runs(moves, first, end,
           {.device_pages = pages.data(),
            .host_pages = host_pages_of(kv, first, end, block()),
            .host_rows = host_.device_rows(layer),
            .ring_tokens = static_cast<std::int32_t>(buffer_rows)});
  const std::int64_t bytes = move(moves, direction, block(), stream);
  (direction == Direction::kToHost ? traffic.bytes_offloaded : traffic.bytes_loaded) += bytes;
}

void DeviceKv::move_parked_metadata(const SequenceKv& kv, std::int32_t metadata_layer, std::int64_t first,
                                    std::int64_t end, std::byte* buffer, Direction direction, TierTraffic& traffic) {
  if (first >= end) return;
  Moves moves{.row_bytes = metadata_row_bytes(), .device = buffer};
  const std::int64_t first_page = first / kPageTokens;
  const std::span<std::int32_t> pages = block().take<std::int32_t>(pages_for_tokens(end) - first_page);
  std::iota(pages.begin(), pages.end(), static_cast<std::int32_t>(first_page));
  add_runs(moves, first_page * kPageTokens, pages_for_tokens(end) * kPageTokens,
           {.device_pages = pages.data() - first_page,
            .host_pages = host_pages_of(kv, first, end, block()),
            .host_rows = host_.device_metadata(metadata_layer)});
  const std::int64_t bytes = move(moves, direction, block(), compute_);
  (direction == Direction::kToHost ? traffic.bytes_offloaded : traffic.bytes_loaded) += bytes;
}

}  // namespace hotset::sparse
