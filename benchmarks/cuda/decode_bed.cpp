#include "benchmarks/cuda/decode_bed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "benchmarks/cuda/graph_time.h"
#include "benchmarks/target_models.h"
#include "kernels/cuda/mapped_pool.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/selection/store_metadata.h"
#include "kernels/cuda/sparse_attention.h"
#include "model/device_engine.h"
#include "model/dummy_weights.h"
#include "model/kv_layout.h"

namespace hotset {
namespace {

namespace cuda = kernels::cuda;

constexpr std::int64_t kGrowth = 320;                     // rows of a run; whole pages
constexpr std::int64_t kReserve = std::int64_t{8} << 30;  // device memory for workspaces and graphs
constexpr int kWarmUp = 4;                                // the second step of a shape is captured

template <class T>
T require(Result<T> result) {
  HS_CHECK(result.ok(), result.ok() ? "" : result.error().message.c_str());
  return std::move(result).value();
}

}  // namespace

DecodeBed::DecodeBed(const DecodeBedOptions& options)
    : options_(options),
      algorithm_(target_algorithm(options.config, options.dtype, options.budget)),
      hot_shape_(require(sparse::hot_buffer_shape_for(*algorithm_, std::nullopt, options.hot_buffer))),
      layout_(model::kv_layout_of(options.config, options.dtype, algorithm_->metadata())) {
  model::DeviceEngine engine = require(model::open_device_engine(kernels::ElementType::kBF16));
  backend_ = engine.backend.get();
  stream_ = engine.stream.get();
  const std::int64_t before = cuda::free_device_bytes();
  engine.weights = model::make_dummy_weights(options_.config, *engine.backend, 1);
  engine.stream->synchronize();
  std::printf("weights: %.1f GB on the device\n", 1e-9 * static_cast<double>(before - cuda::free_device_bytes()));
  for (const model::LayerWeights& layer : engine.weights->layers) {
    if (const auto* const experts = std::get_if<model::ExpertsWeights>(&layer.feed_forward))
      expert_bytes_ += static_cast<double>(experts->experts->bytes());
  }
  dense_bytes_ = static_cast<double>(engine.weights->matrix_bytes()) - expert_bytes_;
  // Nobody asks for most rows of the embedding.
  if (engine.weights->lm_head != nullptr) dense_bytes_ -= static_cast<double>(engine.weights->embedding->bytes());

  metadata_pages_ = options_.max_batch * pages_for_tokens(options_.max_tokens) * layout_.metadata_layers;
  const std::int64_t left = cuda::free_device_bytes() - kReserve - metadata_pages_ * layout_.metadata.page_bytes();
  row_pages_ = std::min<std::int64_t>(left / layout_.rows.page_bytes(), (std::int64_t{1} << 31) / kPageTokens - 1);
  host_pages_ = options_.host_bytes / (kPageTokens * layout_.rows.token_bytes());
  auto device = require(storage::DevicePool::create(
      layout_, {.rows = static_cast<std::int32_t>(row_pages_), .metadata = static_cast<std::int32_t>(metadata_pages_)},
      cuda::device_pool_memory));
  auto host = require(storage::HostPool::create(layout_, static_cast<std::int32_t>(host_pages_),
                                                cuda::mapped_pool_memory(4 * options_.host_bytes)));
  row_pool_ = device.base();
  metadata_pool_ = device.metadata_base();
  std::printf("pools: rows %.1f GB, metadata %.1f GB, host %.1f GB\n",
              1e-9 * static_cast<double>(row_pages_ * layout_.rows.page_bytes()),
              1e-9 * static_cast<double>(metadata_pages_ * layout_.metadata.page_bytes()),
              1e-9 * static_cast<double>(host_pages_ * kPageTokens * layout_.rows.token_bytes()));
  runner_ =
      std::make_unique<model::DeviceStepRunner>(std::move(engine), std::move(device), std::move(host), algorithm_,
                                                model::DeviceRunnerLimits{.max_batch = options_.max_batch,
                                                                          .prefill_chunk = kPageTokens,
                                                                          .max_tokens = options_.max_tokens,
                                                                          .largest_hot = hot_shape_,
                                                                          .max_selected = algorithm_->max_blocks()});
  probe_ = std::make_unique<StepProbe>(stream_->get());
  fill_pools();
}

// Rows and metadata of random keys; the first layer's basis serves them all.
void DecodeBed::fill_pools() {
  constexpr std::int64_t kPages = 1024;  // at once
  const KvGeometry& rows = layout_.rows;
  const MetadataGeometry& metadata = layout_.metadata;
  const std::int64_t width =
      std::max(rows.key_elements() + rows.value_elements(), std::int64_t{metadata.kv_heads} * metadata.dim);
  std::vector<std::int64_t> slots(kPages * kPageTokens);
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<std::int32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  const auto numbers = backend_->array<float>(kPages * kPageTokens * width);
  const auto all_slots = backend_->array_of(std::span<const std::int64_t>(slots));
  const auto all_pages = backend_->array_of(std::span<const std::int32_t>(pages));
  kernels::Array<float> basis;
  if (algorithm_->basis() != nullptr) basis = backend_->array_of(algorithm_->basis()->of(0));
  cuda::launch_random_fill({.numbers = kernels::random_rows(7, 1.0F, width),
                            .rows = kPages * kPageTokens,
                            .cols = width,
                            .out = numbers.data()},
                           stream_->get());
  for (std::int64_t page = 0; page < row_pages_; page += kPages) {
    cuda::launch_store_rows({.geometry = rows,
                             .k = numbers.data(),
                             .k_stride = width,
                             .v = numbers.data() + rows.key_elements(),
                             .v_stride = width,
                             .pool = row_pool_ + page * rows.page_bytes(),
                             .slots = all_slots.data(),
                             .rows = std::min(kPages, row_pages_ - page) * kPageTokens},
                            stream_->get());
  }
  for (std::int64_t page = 0; page < metadata_pages_; page += kPages) {
    cuda::launch_store_metadata({.geometry = metadata,
                                 .keys = numbers.data(),
                                 .stride = width,
                                 .basis = basis.data(),
                                 .target = {.pool = metadata_pool_ + page * metadata.page_bytes(),
                                            .pages = all_pages.data(),
                                            .positions = all_slots.data()},
                                 .rows = std::min(kPages, metadata_pages_ - page) * kPageTokens},
                                stream_->get());
  }
  stream_->synchronize();
}

DecodeBed::Pages DecodeBed::pages_of(const DecodeCase& one) const {
  const std::int64_t pages = pages_for_tokens(one.context);
  return {
      .rows = layout_.rows.layers * (one.mode == DecodeMode::kHot ? sparse::hot_pages_of(hot_shape_).total() : pages),
      .metadata = one.mode == DecodeMode::kDense ? 0 : layout_.metadata_layers * pages};
}

bool DecodeBed::fits(const DecodeCase& one) const {
  const Pages pages = pages_of(one);
  return one.batch * pages.rows <= row_pages_ && one.batch * pages.metadata <= metadata_pages_;
}

DecodeBytes DecodeBed::bytes(const DecodeCase& one) const {
  const Pages pages = pages_of(one);
  const double tables = 4.0 * static_cast<double>(pages.rows + pages.metadata + pages_for_tokens(one.context)) +
                        static_cast<double>(layout_.rows.layers) *
                            (sizeof(cuda::HotRow) + (one.mode == DecodeMode::kHot ? 6.0 * hot_shape_.hot_blocks : 0.0) +
                             (one.mode == DecodeMode::kDense ? 0.0 : 4.0 * static_cast<double>(options_.budget)));
  return {.rows = static_cast<double>(pages.rows * layout_.rows.page_bytes()),
          .metadata = static_cast<double>(pages.metadata * layout_.metadata.page_bytes()),
          .tables = tables};
}

// Experts that nobody asks for are not read; they are asked for evenly.
double DecodeBed::weight_bytes(std::int32_t batch) const {
  if (!options_.config.experts) return dense_bytes_;
  const double unused = 1.0 - static_cast<double>(options_.config.experts->per_token) / options_.config.experts->count;
  return dense_bytes_ + expert_bytes_ * (1.0 - std::pow(unused, batch));
}

// The sequences with the operations of their first step.
model::StepPlan DecodeBed::first_plan(const DecodeCase& one) {
  model::StepPlan plan;
  const std::int64_t pages = pages_for_tokens(one.context);
  const std::int32_t layers = layout_.rows.layers;
  std::int32_t row_page = 0, metadata_page = 0, host_page = 0;
  for (std::int32_t i = 0; i < one.batch; ++i) {
    auto state = std::make_shared<model::SequenceState>();
    sparse::SequenceKv& kv = state->kv;
    kv.id = SequenceId{steps_ * 1000 + static_cast<std::uint64_t>(i) + 1};
    kv.mode = sparse::KvMode::kResident;
    kv.keeps_metadata = one.mode != DecodeMode::kDense;
    kv.length = one.context - kGrowth;
    kv.host_complete = kv.length;
    for (std::int64_t page = 0; page < pages; ++page)
      kv.host_pages.emplace_back(host_page++ % static_cast<std::int32_t>(host_pages_));
    kv.metadata_pages.resize(static_cast<std::size_t>(layout_.metadata_layers));
    for (std::int64_t page = 0; kv.keeps_metadata && page < pages; ++page) {
      for (auto& table : kv.metadata_pages) table.emplace_back(metadata_page++);
    }
    kv.device_pages.resize(static_cast<std::size_t>(layers));
    state->sampler = model::Sampler({.temperature = 0}, {});
    state->last_token = i + 1;
    model::SequenceStep step{.state = state, .first_position = kv.length, .rows = 1, .sample = true};
    if (one.mode != DecodeMode::kDense) {
      step.selection = algorithm_;
      step.budget = algorithm_->max_blocks();
    }
    if (one.mode == DecodeMode::kHot) {
      sparse::KvOp enter{.kind = sparse::KvOp::Kind::kEnterHot, .shape = hot_shape_};
      for (std::int64_t page = 0; page < layers * sparse::hot_pages_of(hot_shape_).total(); ++page)
        enter.device_pages.emplace_back(row_page++);
      step.ops.push_back(std::move(enter));
    } else {
      for (std::int64_t page = 0; page < pages; ++page) {
        for (auto& table : kv.device_pages) table.emplace_back(row_page++);
      }
    }
    plan.sequences.push_back(std::move(step));
  }
  return plan;
}

model::StepResult DecodeBed::step(model::StepPlan& plan) {
  plan.step = ++steps_;
  model::StepResult result = runner_->run(plan);
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    HS_CHECK(result.sequences[i].error.empty(), "the logits are numbers");
    plan.sequences[i].first_position = plan.sequences[i].state->kv.length;
    plan.sequences[i].ops.clear();
  }
  return result;
}

DecodeTimes DecodeBed::run(const DecodeCase& one, double churn, int steps) {
  using Clock = std::chrono::steady_clock;
  HS_CHECK(steps + 2 * kWarmUp < kGrowth, "the sequences stay within the context");
  DecodeTimes times;
  runner_->set_selection_model(require(sparse::DeviceSelectionModel::create(
      sparse::ChurnModel{.share = churn}, layout_.rows.layers, algorithm_->block_tokens(), *backend_)));
  model::StepPlan plan = first_plan(one);
  probe_->take_parts(true);
  runner_->set_probe(probe_.get());
  for (int i = 0; i < kWarmUp; ++i) (void)step(plan);
  times.parts = probe_->parts();
  probe_->take_parts(false);
  runner_->set_probe(probe_.get());
  for (int i = 0; i < kWarmUp; ++i) (void)step(plan);
  std::vector<double> walls, device;
  double misses = 0, blocks = 0;
  Clock::time_point last = Clock::now();
  for (int i = 0; i < steps; ++i) {
    const model::StepResult result = step(plan);
    const Clock::time_point now = Clock::now();
    walls.push_back(std::chrono::duration<double, std::milli>(now - last).count());
    last = now;
    device.push_back(probe_->on_device());
    misses += static_cast<double>(result.stats.misses);
    blocks += static_cast<double>(result.stats.misses + result.stats.hits + result.stats.ring_hits);
    times.bus_bytes += static_cast<double>(result.stats.bytes_loaded) / steps;
  }
  times.step_ms = cuda::median_of(walls);
  times.device_ms = cuda::median_of(device);
  times.misses = blocks > 0 ? misses / blocks : 0;
  return times;
}

}  // namespace hotset
