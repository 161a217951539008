#include "sparse/sequence_kv.h"

#include "core/check.h"

namespace hotset::sparse {

void append_device_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op) {
  const auto layers = static_cast<std::size_t>(layout.rows.layers);
  HS_CHECK(op.device_pages.size() % layers == 0, "device pages come for all layers");
  for (std::size_t i = 0; i < op.device_pages.size(); ++i) kv.device_pages[i % layers].push_back(op.device_pages[i]);
}

void append_metadata_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op) {
  const auto layers = static_cast<std::size_t>(layout.metadata_layers);
  if (op.metadata_pages.empty()) return;
  HS_CHECK(kv.keeps_metadata && layers > 0 && op.metadata_pages.size() % layers == 0,
           "metadata pages come for all layers that keep some");
  for (std::size_t i = 0; i < op.metadata_pages.size(); ++i)
    kv.metadata_pages[i % layers].push_back(op.metadata_pages[i]);
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
