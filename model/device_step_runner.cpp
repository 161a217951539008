#include "model/device_step_runner.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

constexpr std::int64_t kPromptStep = 64;  // rows of a prompt's chunk are padded to a multiple: few shapes of products
constexpr std::size_t kMostGraphs = 96;
constexpr const char* kNotNumbers = "the model's output holds values that are not numbers";

std::int64_t padded(std::int64_t rows) { return round_up(rows, kPromptStep); }

// Rows of a step whose results are on their way: generated tokens, and prompts that end.
std::int64_t most_results(const DeviceRunnerLimits& limits) { return 4 * limits.max_batch + 64; }

sparse::DeviceKvLimits kv_limits(const DeviceRunnerLimits& limits) {
  return {.max_batch = DecodeBatch::bucket(limits.max_batch),
          .max_tokens = limits.max_tokens,
          .max_selected = limits.max_selected,
          .largest_hot = limits.largest_hot};
}

}  // namespace

DeviceStepRunner::DeviceStepRunner(DeviceEngine engine, storage::DevicePool device, storage::HostPool host,
                                   std::shared_ptr<const sparse::SelectionAlgorithm> keeper,
                                   const DeviceRunnerLimits& limits)
    : engine_(std::move(engine)),
      device_(std::move(device)),
      host_(std::move(host)),
      keeper_(std::move(keeper)),
      limits_(limits),
      kv_(device_, host_, *engine_.backend, *engine_.stream, kv_limits(limits)),
      transformer_(*engine_.weights, *engine_.backend, keeper_.get(),
                   std::max<std::int64_t>(DecodeBatch::bucket(limits.max_batch), padded(limits.prefill_chunk)),
                   DecodeBatch::bucket(limits.max_batch)),
      attention_(transformer_.attention_shape(), *engine_.weights, *engine_.backend, *engine_.stream, engine_.device,
                 kv_, keeper_.get(),
                 {.max_prompt_rows = padded(limits.prefill_chunk), .max_tokens = limits.max_tokens}),
      sampler_(*engine_.backend, *engine_.stream, engine_.weights->config.vocabulary, most_results(limits),
               2 * limits.max_batch + 8),
      batch_(*engine_.backend, static_cast<std::int32_t>(limits.max_batch),
             static_cast<std::int32_t>(limits.least_rows)),
      prompt_tokens_(engine_.backend->array<std::int32_t>(padded(limits.prefill_chunk))),
      prompt_positions_(engine_.backend->array<std::int64_t>(padded(limits.prefill_chunk))),
      prompt_metadata_(engine_.backend->array<std::int64_t>(padded(limits.prefill_chunk))),
      host_totals_(cuda::allocate_pinned(kv_.limits().max_batch * static_cast<std::int64_t>(sizeof(cuda::SwapTotals)))),
      host_logits_(cuda::allocate_pinned(DecodeBatch::bucket(limits.max_batch) * engine_.weights->config.vocabulary *
                                         static_cast<std::int64_t>(sizeof(float)))),
      graphs_(kMostGraphs) {
  any_sequence_.keeps_metadata = keeper_ != nullptr;
}

// Nothing may be on its way into memory that goes away.
DeviceStepRunner::~DeviceStepRunner() {
  try {
    kv_.synchronize();
  } catch (const std::exception& broken) {
    log_error("the GPU failed before its engine ended: ", broken.what());
  }
}

void DeviceStepRunner::set_probe(DecodeProbe* probe) {
  graphs_.clear();
  probe_ = probe;
  attention_.set_probe(probe);
}

StepResult DeviceStepRunner::run(const StepPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  StepResult result;
  result.step = plan.step;
  kv_.begin_step();
  sampler_.begin_step();
  drawn_.clear();
  decoding_.clear();
  swapped_ = false;
  for (const SequenceTransition& transition : plan.transitions) {
    if (transition.state->failed) continue;  // its rows were skipped, so the control plane's books of it are wrong
    for (const sparse::KvOp& op : transition.ops) {
      kv_.apply(transition.state->kv, op, transition.state->step_traffic);
    }
    result.stats.bytes_loaded += transition.state->step_traffic.bytes_loaded;
    result.stats.bytes_offloaded += transition.state->step_traffic.bytes_offloaded;
    transition.state->traffic += std::exchange(transition.state->step_traffic, {});
  }
  for (const SequenceStep& step : plan.sequences) {
    result.sequences.push_back({.id = step.state->kv.id});
    if (step.state->failed) continue;
    for (const sparse::KvOp& op : step.ops) kv_.apply(step.state->kv, op, step.state->step_traffic);
  }
  decode(plan, result);
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& step = plan.sequences[i];
    if (step.prefill && !step.state->failed) prefill(step, plan.step, i, result);
  }
  kv_.end_step();
  sampler_.fetch();
  engine_.stream->synchronize();
  kv_.step_is_done();
  take_drawn(result);
  collect_traffic(plan, result);
  result.stats.run_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void DeviceStepRunner::decode(const StepPlan& plan, StepResult& result) {
  std::vector<const SequenceStep*> steps;
  std::vector<std::size_t> indices;
  std::vector<sparse::SequenceKv*> sequences;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& step = plan.sequences[i];
    if (step.prefill || step.state->failed) continue;
    HS_CHECK(step.first_position == step.state->kv.length && step.rows == 1, "a sequence's rows are planned in order");
    steps.push_back(&step);
    indices.push_back(i);
    sequences.push_back(&step.state->kv);
  }
  if (steps.empty()) return;
  tell_probe(DecodeProbe::Part::kBegin);
  const std::vector<std::int32_t> rows = kv_.place(sequences);
  std::vector<DecodeRow> decode_rows(steps.size());
  std::vector<DeviceSampler::Row> sampled(steps.size());
  decoding_.resize(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SequenceStep& step = *steps[i];
    SequenceState& state = *step.state;
    const auto row = static_cast<std::size_t>(rows[i]);
    const bool hot = state.kv.mode == sparse::KvMode::kHot;
    HS_CHECK(!step.tokens.empty() || state.last_token >= 0, "the previous step has sampled");
    decode_rows[row] = {.token = step.tokens.empty() ? state.last_token : step.tokens.front(),
                        .position = step.first_position,
                        .selection = step.selection.get(),
                        .budget = step.budget,
                        .hot = hot,
                        .keeps_metadata = state.kv.keeps_metadata};
    state.kv.device->has_selection = step.selection != nullptr;
    sampled[row] = {.state = &state, .position = step.first_position + 1};
    decoding_[row] = &state;
    ++result.stats.decode_rows;
    if (hot) ++result.stats.hot_sequences;
  }
  const DecodeShape shape = batch_.fill(decode_rows, limits_.max_tokens, kv_.block(), *engine_.stream);
  swapped_ = shape.hot;
  if (shape.hot) attention_.clear_swap_totals();
  tell_probe(DecodeProbe::Part::kInputs);
  forward_decode(shape, plan.step);
  if (shape.hot) {
    engine_.stream->copy(attention_.swap_totals(), host_totals_->data(),
                         shape.rows * static_cast<std::int64_t>(sizeof(cuda::SwapTotals)));
  }
  const std::int64_t first = sampler_.sample(sampled, transformer_.logits_data(), shape.rows, kv_.block());
  tell_probe(DecodeProbe::Part::kSampled);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i]->sample) {
      drawn_.push_back({.result = indices[i], .state = steps[i]->state.get(), .number = first + rows[i]});
    } else if (steps[i]->prompt_logprobs >= 0) {
      HS_CHECK(false, "the log-probability of a given token is a prompt's");
    }
    kv_.commit_rows(steps[i]->state->kv, 1, steps[i]->state->step_traffic);
  }
}

// Slices and launches depend on the shape alone: what differs between rows is read on the device.
void DeviceStepRunner::forward_decode(const DecodeShape& shape, std::uint64_t step) {
  slices_.clear();
  for (std::int32_t row = 0; row < shape.rows; ++row) {
    slices_.push_back({.kv = &any_sequence_,
                       .first_row = row,
                       .rows = 1,
                       .selection = shape.longest_scored > 0 ? keeper_.get() : nullptr});
  }
  attention_.begin_decode(batch_, shape);
  const auto launch = [&] {
    transformer_.forward(step, {.tokens = batch_.tokens(), .positions = batch_.positions(), .count = shape.rows},
                         slices_, attention_);
    (void)transformer_.logits(0, shape.rows);
    tell_probe(DecodeProbe::Part::kLogits);
  };
  if (!limits_.graphs) return launch();
  graphs_.run(shape, *engine_.stream, std::ref(launch));
}

void DeviceStepRunner::prefill(const SequenceStep& step, std::uint64_t number, std::size_t index, StepResult& result) {
  SequenceState& state = *step.state;
  HS_CHECK(step.first_position == state.kv.length, "a sequence's rows are planned in order");
  HS_CHECK(static_cast<std::int64_t>(step.tokens.size()) == step.rows, "one token per row");
  const std::int64_t count = padded(step.rows);
  const auto rows = static_cast<std::size_t>(step.rows);
  const std::span<std::int32_t> tokens = kv_.block().take<std::int32_t>(count);
  const std::span<std::int64_t> positions = kv_.block().take<std::int64_t>(count);
  const std::span<std::int64_t> kept = kv_.block().take<std::int64_t>(count);
  std::fill(tokens.begin(), tokens.end(), -1);
  std::fill(positions.begin(), positions.end(), -1);
  std::fill(kept.begin(), kept.end(), -1);
  std::copy(step.tokens.begin(), step.tokens.end(), tokens.begin());
  for (std::size_t row = 0; row < rows; ++row) {
    positions[row] = step.first_position + static_cast<std::int64_t>(row);
    if (state.kv.keeps_metadata) kept[row] = positions[row];
  }
  engine_.stream->copy(tokens.data(), prompt_tokens_.data(), count * 4);
  engine_.stream->copy(positions.data(), prompt_positions_.data(), count * 8);
  engine_.stream->copy(kept.data(), prompt_metadata_.data(), count * 8);
  if (state.kv.mode == sparse::KvMode::kParked) {
    // Its host pages may have been those of an ended sequence, whose last pages are still on their way there.
    kv_.wait_for_offloads();
  } else {
    kv_.place_prompt(state.kv);
  }
  slices_.assign(1, {.kv = &state.kv,
                     .rows = step.rows,
                     .first_position = step.first_position,
                     .prefill = true,
                     .selection = step.selection.get(),
                     .budget = step.budget,
                     .dense_until = step.dense_until,
                     .traffic = &state.step_traffic});
  attention_.begin_prompt(slices_.front(), prompt_positions_.data(), prompt_metadata_.data());
  transformer_.forward(number, {.tokens = prompt_tokens_.data(), .positions = prompt_positions_.data(), .count = count},
                       slices_, attention_);
  result.stats.prefill_rows += step.rows;
  sampler_.see_prompt(state, step.tokens, step.sample, kv_.block());
  if (step.prompt_logprobs >= 0) score_prompt(step, result.sequences[index]);
  if (step.sample && !state.failed) {
    const DeviceSampler::Row row{.state = &state, .position = step.first_position + step.rows};
    const float* const logits = transformer_.logits(step.rows - 1, 1);
    drawn_.push_back(
        {.result = index, .state = &state, .number = sampler_.sample(std::span(&row, 1), logits, 1, kv_.block())});
  }
  kv_.commit_rows(state.kv, step.rows, state.step_traffic);
}

// The prompt's own log-probabilities, on the host.
void DeviceStepRunner::score_prompt(const SequenceStep& step, SequenceResult& result) {
  const std::int64_t vocabulary = engine_.weights->config.vocabulary;
  const std::int64_t batch = transformer_.max_logits_rows();
  auto* const logits = static_cast<float*>(host_logits_->data());
  for (std::int64_t first = 0; first < step.rows; first += batch) {
    const std::int64_t count = std::min<std::int64_t>(batch, step.rows - first);
    engine_.stream->copy(transformer_.logits(first, count), logits,
                         count * vocabulary * static_cast<std::int64_t>(sizeof(float)));
    engine_.stream->synchronize();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = first + i;
      const std::int32_t target =
          row + 1 < step.rows ? step.tokens[static_cast<std::size_t>(row) + 1] : step.next_token;
      if (target < 0) continue;
      const std::span<const float> values(logits + i * vocabulary, static_cast<std::size_t>(vocabulary));
      if (!logits_usable(values)) {
        step.state->failed = true;
        result.error = kNotNumbers;
        return;
      }
      result.prompt_logprobs.push_back(score_token(values, target, step.prompt_logprobs));
    }
  }
}

void DeviceStepRunner::take_drawn(StepResult& result) {
  for (const Drawn& drawn : drawn_) {
    SequenceResult& sequence = result.sequences[drawn.result];
    sequence.sampled = sampler_.result(drawn.number, sequence.token);
    if (sequence.sampled) {
      drawn.state->last_token = sequence.token.token;
    } else {
      drawn.state->failed = true;
      sequence.error = kNotNumbers;
    }
  }
}

void DeviceStepRunner::collect_traffic(const StepPlan& plan, StepResult& result) {
  const auto* const totals = static_cast<const cuda::SwapTotals*>(host_totals_->data());
  for (std::size_t row = 0; swapped_ && row < decoding_.size(); ++row) {
    SequenceState& state = *decoding_[row];
    if (state.kv.mode != sparse::KvMode::kHot) continue;
    HS_CHECK(totals[row].unplaced == 0, "a selection fits its hot buffer");
    state.step_traffic.hits += totals[row].hits;
    state.step_traffic.ring_hits += totals[row].ring_hits;
    state.step_traffic.misses += totals[row].misses;
    state.step_traffic.bytes_loaded += std::int64_t{totals[row].misses - totals[row].ring_misses} *
                                       state.kv.hot_shape.block_tokens * kv_.geometry().row_bytes();
  }
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    SequenceState& state = *plan.sequences[i].state;
    const sparse::TierTraffic moved = std::exchange(state.step_traffic, {});
    state.traffic += moved;
    result.stats.hits += moved.hits;
    result.stats.ring_hits += moved.ring_hits;
    result.stats.misses += moved.misses;
    result.stats.bytes_loaded += moved.bytes_loaded;
    result.stats.bytes_offloaded += moved.bytes_offloaded;
    sparse::measure(state.kv, kv_.layout(), state.traffic, state.usage);
    result.sequences[i].usage = state.usage;
  }
}

}  // namespace hotset::model
