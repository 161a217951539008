// Selection algorithms: which blocks of earlier tokens one query attends to, in one layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace hotset::sparse {

// What an algorithm may look at. `query` is post-RoPE, [heads, head_dim].
struct SelectionContext {
  SequenceId sequence;
  LayerId layer;
  std::int64_t length = 0;  // tokens seen so far, the query's own included (query position + 1)
  const float* query = nullptr;
};

// Immutable after construction; select() may be called from the stream thread only.
class SelectionAlgorithm {
 public:
  virtual ~SelectionAlgorithm() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::int32_t block_tokens() const = 0;  // B, divides 64
  [[nodiscard]] virtual std::int64_t max_blocks()
      const = 0;  // upper bound of one selection; a hot buffer holds as many
  [[nodiscard]] virtual std::int64_t window_tokens() const = 0;  // newest tokens always selected; the ring holds them
  // Ascending, unique, in range blocks; the last one may be partly filled.
  virtual void select(const SelectionContext& context, std::vector<std::int32_t>& blocks) const = 0;
};

// First block plus every block that overlaps the last `window` tokens. Xiao et al., Efficient Streaming Language Models
// with Attention Sinks (ICLR 2024), in blocks. kInvalidArgument names the option.
Result<std::shared_ptr<const SelectionAlgorithm>> make_streaming(std::int64_t block_tokens, std::int64_t window_tokens);

// The server's choice of --algorithm and its options. `algorithm` null = dense.
struct SelectionPolicy {
  std::shared_ptr<const SelectionAlgorithm> algorithm;
  std::int64_t threshold = 4096;  // lengths up to it are attended in full, in every mode

  // Whether a generated token whose length (position + 1) is `length` attends to a selection.
  [[nodiscard]] bool sparse_at(std::int64_t length) const { return algorithm != nullptr && length > threshold; }
};

}  // namespace hotset::sparse
