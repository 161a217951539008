#include "benchmarks/fidelity_engine.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "core/check.h"
#include "model/kv_layout.h"

namespace hotset::fidelity {
namespace {

constexpr std::int64_t kChunk = 256;  // the server's default --prefill-chunk

void check(const model::SequenceResult& result) {
  if (!result.error.empty()) throw std::runtime_error(result.error);
}

}  // namespace

Engine::Engine(std::unique_ptr<model::ModelWeights> weights, std::unique_ptr<kernels::Backend> backend,
               std::vector<Configuration> configurations, const EngineLimits& limits)
    : configurations_(std::move(configurations)),
      pool_pages_(static_cast<std::int32_t>(pages_for_tokens(limits.pool_tokens))) {
  std::vector<Algorithm> algorithms;
  for (const Configuration& configuration : configurations_) {
    if (configuration.algorithm) algorithms.push_back(configuration.algorithm);
  }
  auto keeper = std::make_shared<PackedMetadata>(algorithms);
  if (keeper->metadata().kind != MetadataGeometry::Kind::kNone) keeper_ = keeper;
  layout_ = model::kv_layout_of(weights->config, KvDType::kF32, keeper->metadata());
  auto device = storage::DevicePool::create(
      layout_, {.rows = pool_pages_ * layout_.rows.layers, .metadata = pool_pages_ * layout_.metadata_layers});
  // Complete pages are written through to the host, where nothing here reads them: all sequences use the same.
  auto host = storage::HostPool::create(layout_, static_cast<std::int32_t>(pages_for_tokens(limits.tokens)));
  if (!device.ok() || !host.ok()) throw std::runtime_error("the KV cache does not fit the memory");
  meter_ = std::make_shared<MassMeter>(layout_.rows, device.value().base(), limits.mass_every);
  // Budgets of one algorithm stay together: their rows are scored in one call.
  std::map<Algorithm, Algorithm> measured;
  for (Configuration& configuration : configurations_) {
    if (!configuration.algorithm) continue;
    Algorithm& own = measured[configuration.algorithm];
    const std::int64_t offset = keeper->offset_of(configuration.algorithm->metadata());
    if (!own) own = std::make_shared<MeasuredSelection>(configuration.algorithm, offset, meter_);
    configuration.algorithm = own;
  }
  runner_ = std::make_unique<model::StepRunner>(
      std::move(weights), std::move(backend), std::move(device).value(), std::move(host).value(), keeper_,
      model::StepRunnerLimits{.max_batch = limits.batch, .prefill_chunk = kChunk});
}

Sequence Engine::start(std::int64_t capacity, const model::SequenceState* base, std::int64_t shared) {
  HS_CHECK(shared % kPageTokens == 0 && (base == nullptr || shared <= base->kv.length), "complete pages are shared");
  const std::int64_t shared_pages = shared / kPageTokens;
  const std::int64_t pages = pages_for_tokens(capacity);
  const std::int64_t own = std::max<std::int64_t>(pages - shared_pages, 0);
  if (next_page_ + own > pool_pages_) throw std::runtime_error("the benchmark's pool is too small");
  auto sequence = std::make_shared<model::SequenceState>();
  sparse::SequenceKv& kv = sequence->kv;
  kv.id = SequenceId{next_id_++};
  kv.mode = sparse::KvMode::kResident;
  kv.keeps_metadata = keeper_ != nullptr;
  kv.length = kv.host_complete = shared;
  for (std::int64_t page = 0; page < pages; ++page) kv.host_pages.push_back(HostPage{static_cast<std::int32_t>(page)});
  // A page number of the pool stands for one page in each layer.
  const auto fill = [&](auto& tables, const auto* from, std::int32_t layers) {
    tables.resize(static_cast<std::size_t>(layers));
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      auto& table = tables[static_cast<std::size_t>(layer)];
      if (from != nullptr) {
        const auto& source = (*from)[static_cast<std::size_t>(layer)];
        table.assign(source.begin(), source.begin() + shared_pages);
      }
      for (std::int64_t page = 0; page < own; ++page)
        table.emplace_back(static_cast<std::int32_t>((next_page_ + page) * layers + layer));
    }
  };
  fill(kv.device_pages, base != nullptr ? &base->kv.device_pages : nullptr, layout_.rows.layers);
  fill(kv.metadata_pages, base != nullptr ? &base->kv.metadata_pages : nullptr, layout_.metadata_layers);
  next_page_ += static_cast<std::int32_t>(own);
  return sequence;
}

std::vector<double> Engine::prefill(const Sequence& sequence, std::span<const std::int32_t> text, std::int64_t end,
                                    std::int64_t from) {
  std::vector<double> losses;
  while (sequence->kv.length < end) {
    const std::int64_t first = sequence->kv.length;
    // A chunk is scored as a whole or not at all.
    const std::int64_t stop = std::min({first / kChunk * kChunk + kChunk, first < from ? from : end, end});
    model::SequenceStep step{.state = sequence,
                             .first_position = first,
                             .rows = static_cast<std::int32_t>(stop - first),
                             .tokens = {text.begin() + first, text.begin() + stop},
                             .prefill = true,
                             .prompt_logprobs = first >= from ? 0 : -1,
                             .next_token = stop < end ? text[static_cast<std::size_t>(stop)] : -1};
    const model::StepResult result = runner_->run({.step = ++step_, .sequences = {std::move(step)}});
    check(result.sequences.front());
    for (const auto& scored : result.sequences.front().prompt_logprobs) losses.push_back(-double{scored.logprob});
  }
  return losses;
}

std::vector<Engine::Score> Engine::decode(std::span<const Row> rows) {
  model::StepPlan plan{.step = ++step_};
  for (const Row& row : rows) {
    const bool dense = row.configuration == nullptr || !row.configuration->algorithm;
    plan.sequences.push_back({.state = row.sequence,
                              .first_position = row.sequence->kv.length,
                              .rows = 1,
                              .tokens = {row.token},
                              .prompt_logprobs = 1,
                              .next_token = row.target,
                              .selection = dense ? nullptr : row.configuration->algorithm,
                              .budget = dense ? 0 : row.configuration->budget});
  }
  const model::StepResult result = runner_->run(plan);
  std::vector<Score> scores;
  for (const model::SequenceResult& one : result.sequences) {
    check(one);
    HS_CHECK(one.prompt_logprobs.size() == 1, "one row, one score");
    scores.push_back(
        {.nll = -double{one.prompt_logprobs.front().logprob}, .argmax = one.prompt_logprobs.front().top.front().token});
  }
  return scores;
}

}  // namespace hotset::fidelity
