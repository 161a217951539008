#include "model/calibration.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "core/concat.h"
#include "core/kv_geometry.h"
#include "model/kv_layout.h"
#include "sparse/second_moment.h"
#include "sparse/tiered_kv.h"
#include "storage/kv_pools.h"

namespace hotset::model {
namespace {

constexpr std::int64_t kWholeTokens = 4096;
constexpr std::int64_t kPieceTokens = 2048;
constexpr std::int64_t kMostTokens = 8192;
constexpr std::int64_t kChunkTokens = 256;

// One sequence at a time through the model, its rows parked in a host pool of its own.
class KeySource {
 public:
  static Result<std::unique_ptr<KeySource>> create(const ModelWeights& weights, kernels::Backend& backend,
                                                   std::int64_t longest) {
    const auto layout = KvLayout::uniform(kv_geometry_of(weights.config, KvDType::kF32));
    // Nothing is ever resident: one page is the smallest pool.
    auto device = storage::DevicePool::create(layout, {.rows = 1});
    if (!device) return device.error();
    auto host = storage::HostPool::create(layout, static_cast<std::int32_t>(pages_for_tokens(longest)));
    if (!host) return host.error();
    return std::make_unique<KeySource>(weights, backend, std::move(device).value(), std::move(host).value());
  }

  KeySource(const ModelWeights& weights, kernels::Backend& backend, storage::DevicePool device, storage::HostPool host)
      : device_(std::move(device)),
        host_(std::move(host)),
        kv_(device_, host_, backend),
        transformer_(weights, backend, kv_, nullptr, kChunkTokens, kChunkTokens) {}

  void begin(std::int64_t tokens) {
    sequence_ = {};
    for (std::int32_t page = 0; page < pages_for_tokens(tokens); ++page) {
      sequence_.host_pages.push_back(HostPage{page});
    }
  }

  // Appends up to kChunkTokens tokens.
  void run(std::span<const std::int32_t> tokens) {
    sparse::TierTraffic traffic;
    const SequenceSlice slice{.kv = &sequence_,
                              .rows = static_cast<std::int64_t>(tokens.size()),
                              .first_position = sequence_.length,
                              .prefill = true,
                              .traffic = &traffic};
    transformer_.forward(step_++, tokens, std::span(&slice, 1));
    kv_.commit_rows(sequence_, slice.rows, traffic);
  }

  // Keys of the newest `rows` tokens in a layer: [rows, kv_heads * key_dim].
  std::span<const float> newest_keys(LayerId layer, std::int64_t rows) {
    const auto width = static_cast<std::size_t>(kv_.geometry().key_elements());
    keys_.resize(static_cast<std::size_t>(rows) * width);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::byte* source = kv_.host_row(sequence_, layer, sequence_.length - rows + row);
      std::memcpy(&keys_[static_cast<std::size_t>(row) * width], source, width * sizeof(float));
    }
    return keys_;
  }

  [[nodiscard]] const KvGeometry& geometry() const { return kv_.geometry(); }

 private:
  storage::DevicePool device_;
  storage::HostPool host_;
  sparse::TieredKv kv_;
  TieredTransformer transformer_;
  sparse::SequenceKv sequence_;
  std::uint64_t step_ = 0;
  std::vector<float> keys_;
};

Result<void> check_tokens(std::span<const std::int32_t> tokens, std::int64_t vocabulary) {
  if (static_cast<std::int64_t>(tokens.size()) < kMinCalibrationTokens) {
    return invalid_argument(
        concat("the calibration text has ", tokens.size(), " tokens; at least ", kMinCalibrationTokens, " are needed"));
  }
  const auto outside = [&](std::int32_t token) { return token < 0 || token >= vocabulary; };
  if (std::any_of(tokens.begin(), tokens.end(), outside)) {
    return invalid_argument("the calibration text has tokens that the model's embedding lacks");
  }
  return {};
}

}  // namespace

std::vector<std::span<const std::int32_t>> calibration_sequences(std::span<const std::int32_t> tokens,
                                                                 std::int64_t max_positions) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count <= std::min(max_positions, kWholeTokens)) return {tokens};
  const std::int64_t length = std::min({count, max_positions, kPieceTokens});
  const std::int64_t pieces = std::min(kMostTokens / length, ceil_div(count, length));
  std::vector<std::span<const std::int32_t>> sequences;
  for (std::int64_t i = 0; i < pieces; ++i) {
    // The last one ends with the text; when the pieces cover all of it, they overlap a little.
    const std::int64_t first = pieces == 1 ? 0 : (count - length) * i / (pieces - 1);
    sequences.push_back(tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(length)));
  }
  return sequences;
}

Result<Calibration> calibrate(const ModelWeights& weights, kernels::Backend& backend,
                              std::span<const std::int32_t> tokens, std::optional<std::int64_t> rank,
                              const CalibrationProgress& progress) {
  const ModelConfig& config = weights.config;
  const std::int32_t key_dim = kv_geometry_of(config, KvDType::kF32).key_dim;
  const std::int64_t chosen = rank.value_or(sparse::default_index_rank(key_dim, config.latent.has_value()));
  if (auto ok = sparse::check_index_rank(chosen, key_dim, "--index-rank"); !ok) return ok.error();
  if (auto ok = check_tokens(tokens, config.vocabulary); !ok) return ok.error();
  const auto sequences = calibration_sequences(tokens, config.max_positions);
  auto source = KeySource::create(weights, backend, static_cast<std::int64_t>(sequences.front().size()));
  if (!source) return source.error();

  const KvGeometry& geometry = source.value()->geometry();
  sparse::SecondMoment moment(geometry.layers, geometry.kv_heads, geometry.key_dim);
  std::int64_t total = 0;
  for (const auto& sequence : sequences) total += static_cast<std::int64_t>(sequence.size());
  std::int64_t done = 0;
  for (const auto& sequence : sequences) {
    source.value()->begin(static_cast<std::int64_t>(sequence.size()));
    for (std::size_t first = 0; first < sequence.size(); first += kChunkTokens) {
      const auto chunk = sequence.subspan(first, std::min<std::size_t>(kChunkTokens, sequence.size() - first));
      source.value()->run(chunk);
      const auto rows = static_cast<std::int64_t>(chunk.size());
      for (std::int32_t layer = 0; layer < geometry.layers; ++layer) {
        moment.add(layer, source.value()->newest_keys(LayerId{layer}, rows));
      }
      done += rows;
      progress(done, total);
    }
  }
  auto basis = sparse::make_index_basis(moment, static_cast<std::int32_t>(chosen));
  if (!basis) return basis.error();
  auto captured = sparse::captured_share(moment, basis.value());
  return Calibration{.basis = std::move(basis).value(), .captured = std::move(captured), .tokens = done};
}

}  // namespace hotset::model
