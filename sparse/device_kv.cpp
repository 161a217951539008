#include "sparse/device_kv.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "kernels/cuda/swap_in.h"
#include "sparse/pinned_ids.h"

namespace hotset::sparse {
namespace {

namespace cuda = kernels::cuda;

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

}  // namespace hotset::sparse
