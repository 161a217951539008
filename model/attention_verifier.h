// Verify mode (--verify-rate): compares what generated tokens attended to on the device with the host pool, for a share
// of steps and layers. It reads only, and allocates only when it checks. Thread: the stream that runs the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "kernels/backend.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

struct VerifyFailure {
  enum class Kind { kRow, kAttention };
  SequenceId sequence;
  LayerId layer;
  std::int64_t block = 0;  // kRow: the block whose rows differ from the host's; kAttention: of the query's position
  Kind kind = Kind::kRow;
};
[[nodiscard]] std::string describe(const VerifyFailure& failure);

struct VerifyOutcome {
  std::int64_t checked = 0;             // generated tokens, over layers
  std::int64_t failed = 0;              // of them
  std::vector<VerifyFailure> failures;  // the first kMostFailures
  static constexpr std::size_t kMostFailures = 16;
};

// One generated token's attention in one layer, as it was computed.
struct AttendedRow {
  const sparse::SequenceKv* kv = nullptr;
  std::span<const std::int32_t> blocks;  // the selection; empty with `everything`
  bool everything = false;
  std::int32_t block_tokens = 1;
  std::int64_t length = 0;         // tokens seen, its own included
  const float* q = nullptr;        // [heads * key_dim]
  const float* context = nullptr;  // [heads * value_dim], what attention gave
};

class AttentionVerifier {
 public:
  // rate: 0 ... 1. The backend and the cache outlive it.
  AttentionVerifier(double rate, std::int32_t heads, float scale, kernels::Backend& backend, sparse::TieredKv& kv);

  // The same for every run: a hash of step and layer.
  [[nodiscard]] bool due(std::uint64_t step, LayerId layer) const;

  // - Every row on the device that also lies on the host (hot: all blocks of the buffer, selected or not, and the ring;
  //   resident: the rows attended to) is compared with the host's copy, byte by byte.
  // - Attention is computed again over the host's copies (rows that are not there yet: the device's) and must give the
  //   same bits.
  void check(LayerId layer, const AttendedRow& row);

  // What was found since the last call.
  [[nodiscard]] VerifyOutcome take();

 private:
  [[nodiscard]] bool check_rows(LayerId layer, const AttendedRow& row);
  [[nodiscard]] bool check_attention(LayerId layer, const AttendedRow& row);
  [[nodiscard]] bool same_rows(const sparse::SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t rows,
                               const std::byte* device) const;
  void report(LayerId layer, const AttendedRow& row, std::int64_t block, VerifyFailure::Kind kind);
  void list_positions(const AttendedRow& row);

  double rate_;
  std::int32_t heads_;
  float scale_;
  kernels::Backend& backend_;
  sparse::TieredKv& kv_;
  VerifyOutcome outcome_;
  std::vector<std::int64_t> positions_, slots_;
  std::vector<std::byte> rows_;
  std::vector<float> context_;
};

}  // namespace hotset::model
