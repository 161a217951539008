#include "sparse/sequence_kv.h"

#include "core/check.h"

namespace hotset::sparse {
namespace {

// [layers][pages]: each layer's list grows by its own.
template <class Id>
void append_pages(std::vector<std::vector<Id>>& lists, std::size_t layers, const std::vector<Id>& pages) {
  const auto each = static_cast<std::ptrdiff_t>(pages.size() / layers);
  auto from = pages.begin();
  for (std::size_t layer = 0; layer < layers; ++layer, from += each)
    lists[layer].insert(lists[layer].end(), from, from + each);
}

}  // namespace

void append_device_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op) {
  const auto layers = static_cast<std::size_t>(layout.rows.layers);
  HS_CHECK(op.device_pages.size() % layers == 0, "device pages come for all layers");
  append_pages(kv.device_pages, layers, op.device_pages);
}

void append_metadata_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op) {
  const auto layers = static_cast<std::size_t>(layout.metadata_layers);
  if (op.metadata_pages.empty()) return;
  HS_CHECK(kv.keeps_metadata && layers > 0 && op.metadata_pages.size() % layers == 0,
           "metadata pages come for all layers that keep some");
  append_pages(kv.metadata_pages, layers, op.metadata_pages);
}

void add_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op) {
  switch (op.kind) {
    case KvOp::Kind::kAddHostPages:
      kv.host_pages.insert(kv.host_pages.end(), op.host_pages.begin(), op.host_pages.end());
      return;
    case KvOp::Kind::kAddDevicePages:
      HS_CHECK(kv.mode == KvMode::kResident, "only a resident sequence grows by pages");
      append_device_pages(kv, layout, op);
      return;
    case KvOp::Kind::kAddMetadataPages:
      HS_CHECK(kv.mode != KvMode::kParked, "a parked sequence has no metadata on the device");
      append_metadata_pages(kv, layout, op);
      return;
    default: HS_CHECK(false, "the operation adds pages");
  }
}

}  // namespace hotset::sparse
