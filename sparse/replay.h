// What hot buffers of several sizes would have missed in a recorded run: under the server's own policy (the HotBuffer
// class itself) and under the best possible one. Thread: one owner; plain computation.
//
// Counted as docs/architecture.md, section 5, has it. Each selected block of a row is exactly one of
//   ring hit    it overlaps the newest R tokens: on the device anyway, never in the buffer
//   hit         in the buffer
//   ring copy   loaded into the buffer from the ring's slack, on the device
//   miss        loaded into the buffer from the host, over the bus
// Every sequence starts with an empty buffer in each layer.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "sparse/selection_history.h"

namespace hotset::sparse {

enum class ReplayPolicy : std::uint8_t {
  kLru,     // HotBuffer
  kBelady,  // fewest counted misses of all policies that load what a row selects and nothing else, knowing the future
};
[[nodiscard]] std::string_view replay_policy_name(ReplayPolicy policy);

struct ReplayOptions {
  std::vector<std::int64_t> hot_buffer_tokens;  // sizes to replay, each at least the history's budget_tokens()
  std::vector<ReplayPolicy> policies;
  std::int64_t hot_ring = 128;  // R, tokens
  // Rows at the beginning of each sequence that run but are not counted. The first one fills the empty buffer; a server
  // seeds it when it demotes a sequence.
  std::int64_t skip = 1;
};

// Of the counted rows. Blocks, not tokens.
struct ReplayCounts {
  std::int64_t rows = 0;
  std::int64_t selected = 0;
  std::int64_t misses = 0;
  std::int64_t ring_copies = 0;  // kBelady: every use of a block in the slack, because keeping it saves no miss

  // NaN where nothing was selected.
  [[nodiscard]] double miss_share() const { return static_cast<double>(misses) / static_cast<double>(selected); }
};

struct LayerReplay {
  LayerId layer;
  ReplayCounts counts;  // over all sequences
};

struct ReplayRun {
  ReplayPolicy policy = ReplayPolicy::kLru;
  std::int64_t hot_buffer_tokens = 0;
  std::vector<LayerReplay> layers;  // those of the history, ascending
  std::int64_t median_misses = 0;   // of a row in a layer (nearest rank)
  std::int64_t p99_misses = 0;
};

// How much selections have in common. NaN where there is nothing to compare.
struct LayerLocality {
  LayerId layer;
  double kept = 0;    // share of a row's blocks that the row before selected too
  double shared = 0;  // share that the layer before selected for the same token
};

struct ReplayResult {
  std::vector<ReplayRun> runs;  // by policy, then size, in the order of the options
  std::vector<LayerLocality> locality;
};

// kInvalidArgument (naming --hot-buffer or --hot-ring): a size below the budget, a ring that can't be.
Result<ReplayResult> replay(const SelectionHistory& history, const ReplayOptions& options);

}  // namespace hotset::sparse
