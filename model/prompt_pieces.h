// The rows of a prompt that lies on the host, as its attention reads them: piece by piece, each brought on a stream of
// its own while the one before is in use, the next layer's first one too.
// Thread: the stream that runs the steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/ids.h"
#include "kernels/cuda/device.h"
#include "model/attention.h"
#include "sparse/device_kv.h"

namespace hotset::model {

class PromptPieces {
 public:
  // Of at most `piece_tokens` rows, whole pages. Everything passed outlives it.
  PromptPieces(sparse::DeviceKv& kv, const kernels::cuda::DeviceStream& compute, std::int64_t piece_tokens);

  // A chunk of a parked sequence: when compute comes here, earlier rows are on the host. The slice outlives its chunk.
  void begin(const SequenceSlice& slice);

  // Rows [first, min(end, first + piece_tokens)) of the layer, `first` a multiple of piece_tokens, in ascending order
  // up to `end`, layer after layer; what compute has queued so far has brought them to the host. Compute waits for
  // them. One page behind the other, until compute has done what is queued before the next call but one.
  [[nodiscard]] const std::byte* take(LayerId layer, std::int64_t first, std::int64_t end);

 private:
  struct Key {
    std::int32_t layer = 0;
    std::int64_t first = 0, end = 0;  // rows
    bool operator==(const Key&) const = default;
  };
  struct Buffer {
    kernels::cuda::GrowingMemory memory;
    kernels::cuda::DeviceEvent loaded;
    std::optional<Key> key;
  };
  [[nodiscard]] std::optional<Key> after(const Key& piece, std::int64_t end) const;
  void load(Buffer& buffer, const Key& piece);

  sparse::DeviceKv& kv_;
  const kernels::cuda::DeviceStream& compute_;
  kernels::cuda::DeviceStream loads_;
  kernels::cuda::DeviceEvent queued_;  // what compute had queued
  std::int64_t piece_tokens_;
  std::array<Buffer, 2> buffers_;
  std::size_t next_ = 0;  // buffer of the next piece
  const SequenceSlice* slice_ = nullptr;
};

}  // namespace hotset::model
