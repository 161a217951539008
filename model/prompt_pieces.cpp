#include "model/prompt_pieces.h"

#include <algorithm>

#include "core/check.h"

namespace hotset::model {

PromptPieces::PromptPieces(sparse::DeviceKv& kv, const kernels::cuda::DeviceStream& compute, std::int64_t piece_tokens)
    : kv_(kv), compute_(compute), piece_tokens_(piece_tokens) {}

void PromptPieces::begin(const SequenceSlice& slice) {
  slice_ = &slice;
  for (Buffer& buffer : buffers_) buffer.key.reset();
}

// Another layer's rows of this chunk are not on the host yet.
std::optional<PromptPieces::Key> PromptPieces::after(const Key& piece, std::int64_t end) const {
  if (piece.end < end) return Key{piece.layer, piece.end, std::min(end, piece.end + piece_tokens_)};
  const Key next{piece.layer + 1, 0, std::min(end, piece_tokens_)};
  if (next.layer == kv_.geometry().layers || next.end > slice_->first_position) return std::nullopt;
  return next;
}

void PromptPieces::load(Buffer& buffer, const Key& piece) {
  auto* const rows = static_cast<std::byte*>(buffer.memory.reserve(piece_tokens_ * kv_.geometry().row_bytes()));
  queued_.make_wait(loads_);
  kv_.move_parked_rows(*slice_->kv, LayerId{piece.layer}, piece.first, piece.end, rows, piece_tokens_,
                       sparse::DeviceKv::Direction::kToDevice, *slice_->traffic, loads_);
  buffer.loaded.record(loads_);
  buffer.key = piece;
}

const std::byte* PromptPieces::take(LayerId layer, std::int64_t first, std::int64_t end) {
  HS_CHECK(first % piece_tokens_ == 0 && first < end, "pieces begin at multiples of their length");
  const Key wanted{layer.value(), first, std::min(end, first + piece_tokens_)};
  Buffer& buffer = buffers_[next_];
  next_ = 1 - next_;
  queued_.record(compute_);
  if (buffer.key != wanted) load(buffer, wanted);
  buffer.loaded.make_wait(compute_);
  // The other buffer's readers are among what is queued.
  if (const auto next = after(wanted, end)) load(buffers_[next_], *next);
  return static_cast<const std::byte*>(buffer.memory.reserve(0));
}

}  // namespace hotset::model
