// The data plane's view of one sequence's KV cache, and the operations by which the control plane changes it. The
// control plane decides pages and sends KvOps inside a step; the stream applies them in step order, before the step's
// rows. So a page freed in the plan of step t may be given to another sequence in the plan of step t + 1: the stream
// runs t first. Thread: a SequenceKv belongs to the stream that runs the sequence's steps.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ids.h"
#include "core/kv_geometry.h"
#include "sparse/hot_buffer.h"

namespace hotset::sparse {

enum class KvMode : std::uint8_t {
  kParked,    // nothing on the device. A new sequence starts here; a streamed prefill runs here (rows go to the host)
  kResident,  // all rows on the device, finished pages also on the host
  kHot,       // hot buffer and ring on the device, finished pages on the host
};

struct KvOp {
  enum class Kind : std::uint8_t {
    kAddHostPages,      // host_pages are appended
    kAddDevicePages,    // resident only: device_pages [layers][pages] are appended
    kAddMetadataPages,  // resident and hot: metadata_pages [metadata layers][pages] are appended
    kEnterResident,     // from parked: device_pages [layers][pages] and metadata_pages cover the rows so far, which are
                        // loaded from the host
    kEnterHot,  // from parked or resident: device_pages [layers][buffer pages + ring pages] (see HotPages). From
                // parked, metadata_pages cover the rows so far; from resident the sequence keeps its own. Rows that are
                // not on the host yet are written there, then the ring and the last selection's blocks are loaded: so
                // the new pages may be among those that the sequence had.
    kPark,      // from resident or hot: rows and metadata that are not on the host yet are written there
  };
  Kind kind = Kind::kAddHostPages;
  std::vector<HostPage> host_pages;
  std::vector<PageId> device_pages;
  std::vector<MetadataPageId> metadata_pages;
  HotBufferShape shape;  // kEnterHot
};

// Device pages of one layer of a hot sequence: the buffer's slots lie one after the other, H * B rows; then the C rows
// of the ring.
struct HotPages {
  std::int64_t buffer = 0;
  std::int64_t ring = 0;
  [[nodiscard]] std::int64_t total() const { return buffer + ring; }
};
[[nodiscard]] constexpr HotPages hot_pages_of(const HotBufferShape& shape) {
  return {pages_for_tokens(std::int64_t{shape.hot_blocks} * shape.block_tokens), pages_for_tokens(shape.ring_tokens)};
}

struct DeviceSequence;  // sparse/device_kv.h

struct SequenceKv {
  SequenceId id;
  KvMode mode = KvMode::kParked;
  bool keeps_metadata = false;                    // set when it is made: its algorithm needs the server's metadata
  std::int64_t length = 0;                        // rows written so far
  std::int64_t host_complete = 0;                 // rows [0, host_complete) are on the host, in every layer
  std::vector<HostPage> host_pages;               // [page]
  std::vector<std::vector<PageId>> device_pages;  // resident: [layer][page]; hot: [layer][buffer pages, ring pages]
  std::vector<std::vector<MetadataPageId>> metadata_pages;  // resident, hot: [metadata layer][page]
  std::vector<HotBuffer> hot;                               // hot: [layer]
  std::vector<std::vector<std::int32_t>> last_selection;    // [layer] of its newest generated token; seeds a hot buffer
  HotBufferShape hot_shape;                                 // hot
  std::shared_ptr<DeviceSequence> device;  // what a GPU keeps of it beside pages, in place of `hot` and last_selection
};

// An operation of a kind kAdd...: the sequence's lists grow, nothing moves.
void add_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op);
// What an operation brings of device pages, and of metadata pages (perhaps none), joins the lists of the layers.
void append_device_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op);
void append_metadata_pages(SequenceKv& kv, const KvLayout& layout, const KvOp& op);

}  // namespace hotset::sparse
