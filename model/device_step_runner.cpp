#include "model/device_step_runner.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

static_assert(StepExecutor::kMostBegun == sparse::kStepsUnderWay, "the cache knows how far steps run ahead");

constexpr std::int64_t kPromptStep = 64;  // rows of a prompt's chunk are padded to a multiple: few shapes of products
constexpr std::size_t kMostGraphs = 96;
constexpr const char* kNotNumbers = "the model's output holds values that are not numbers";

std::int64_t padded(std::int64_t rows) { return round_up(rows, kPromptStep); }

constexpr std::int64_t kScoredRows = 16;  // of a prompt whose log-probabilities are wanted: on the host at a time

// Rows of a step whose results are on their way: generated tokens, and prompts that end.
std::int64_t most_results(const DeviceRunnerLimits& limits) { return 4 * limits.max_batch + 64; }

sparse::DeviceKvLimits kv_limits(const DeviceRunnerLimits& limits) {
  return {.max_batch = DecodeBatch::bucket(limits.max_batch),
          .max_tokens = limits.max_tokens,
          .max_selected = limits.max_selected,
          .largest_hot = limits.largest_hot};
}

}  // namespace

class DeviceStepRunner::Reached final : public PendingStep {
 public:
  // A new step: nothing of it has been queued.
  void clear() { working_ = false; }
  // The next launch gives the device work. Of a step the first call counts.
  void begin(const cuda::DeviceStream& stream) {
    if (!std::exchange(working_, true)) begun_.record(stream);
  }
  void end(const cuda::DeviceStream& stream) {
    begin(stream);
    done_.record(stream);
  }
  void synchronize() const { done_.synchronize(); }
  // Looks now and then: a wait that sleeps until the driver wakes it costs 0.2 ms more, one that spins a processor.
  void wait() const override {
    constexpr std::chrono::microseconds kPause{50};
    while (!done_.reached()) std::this_thread::sleep_for(kPause);
  }
  // From the first work of the step, but for its tables and numbers, to the last.
  [[nodiscard]] std::int64_t run_ns() const { return nanoseconds(done_.milliseconds_since(begun_)); }
  // Time in which the device had nothing to do between the two. begun_ is recorded when the host is ready to launch, so
  // a host that is late shows; the launch call itself does not.
  [[nodiscard]] std::int64_t idle_ns_since(const Reached& earlier) const {
    return nanoseconds(begun_.milliseconds_since(earlier.done_));
  }

 private:
  static std::int64_t nanoseconds(double milliseconds) { return static_cast<std::int64_t>(milliseconds * 1e6); }

  bool working_ = false;
  cuda::DeviceEvent begun_{/*timing=*/true};
  cuda::DeviceEvent done_{/*timing=*/true};
};

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
      host_totals_(cuda::allocate_pinned(static_cast<std::int64_t>(kMostBegun * sizeof(cuda::SwapTotals)) *
                                         kv_.limits().max_batch)),
      host_logits_(cuda::allocate_pinned(kScoredRows * engine_.weights->config.vocabulary *
                                         static_cast<std::int64_t>(sizeof(float)))),
      graphs_(kMostGraphs) {
  any_sequence_.keeps_metadata = keeper_ != nullptr;
  for (auto& reached : reached_) reached = std::make_shared<Reached>();
}

// Nothing may be on its way into memory that goes away.
DeviceStepRunner::~DeviceStepRunner() {
  try {
    kv_.synchronize();
  } catch (const std::exception& broken) {
    log_error("the GPU failed before its engine ended: ", broken.what());
  }
}

void DeviceStepRunner::observe(std::shared_ptr<sparse::SelectionObserver> observer) {
  report_.reset();
  if (observer != nullptr) report_ = std::make_unique<DeviceSelectionReport>(std::move(observer), *engine_.stream);
  attention_.set_report(report_.get());
}

void DeviceStepRunner::set_probe(DecodeProbe* probe) {
  graphs_.clear();
  probe_ = probe;
  attention_.set_probe(probe);
}

void DeviceStepRunner::set_selection_model(std::unique_ptr<const sparse::DeviceSelectionModel> model) {
  graphs_.clear();
  selection_model_ = std::move(model);
  attention_.set_selection_model(selection_model_.get());
}

void DeviceStepRunner::set_synthetic_prompts(bool synthetic) {
  synthetic_prompts_.reset();
  if (!synthetic) return;
  synthetic_prompts_ =
      std::make_unique<SyntheticPrompts>(kv_.layout(), transformer_.attention_shape().heads,
                                         padded(limits_.prefill_chunk), *engine_.backend, *engine_.stream);
}

cuda::SwapTotals* DeviceStepRunner::host_totals(std::uint64_t number) const {
  return static_cast<cuda::SwapTotals*>(host_totals_->data()) +
         static_cast<std::int64_t>(number % kMostBegun) * kv_.limits().max_batch;
}

StepResult DeviceStepRunner::run(const StepPlan& plan) {
  (void)begin(plan);
  return finish();
}

std::shared_ptr<const PendingStep> DeviceStepRunner::begin(const StepPlan& plan) {
  HS_CHECK(begun_.size() < kMostBegun, "two steps are under way at most");
  BegunStep& begun = begun_.emplace_back();
  begun.number = ++number_;
  begun.result.step = plan.step;
  const std::shared_ptr<Reached>& reached = reached_[begun.number % reached_.size()];
  reached->clear();
  kv_.begin_step();
  sampler_.begin_step();
  for (const SequenceTransition& transition : plan.transitions) {
    if (transition.state->failed) continue;  // its rows were skipped, so the control plane's books of it are wrong
    apply(transition.ops, *transition.state);
    begun.result.stats.bytes_loaded += transition.state->step_traffic.bytes_loaded;
    begun.result.stats.bytes_offloaded += transition.state->step_traffic.bytes_offloaded;
    transition.state->traffic += std::exchange(transition.state->step_traffic, {});
  }
  for (const SequenceStep& step : plan.sequences) {
    begun.result.sequences.push_back({.id = step.state->kv.id});
    begun.states.push_back(step.state);
    if (step.state->failed) continue;
    apply(step.ops, *step.state);
  }
  decode(plan, begun);
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& step = plan.sequences[i];
    if (step.prefill && !step.state->failed) prefill(step, i, begun);
  }
  kv_.end_step();
  sampler_.fetch();
  reached->end(*engine_.stream);
  measure(begun);
  return reached;
}

void DeviceStepRunner::device_works() { reached_[number_ % reached_.size()]->begin(*engine_.stream); }

void DeviceStepRunner::apply(std::span<const sparse::KvOp> ops, SequenceState& state) {
  using Kind = sparse::KvOp::Kind;
  for (const sparse::KvOp& op : ops) {
    if (op.kind == Kind::kEnterResident || op.kind == Kind::kEnterHot || op.kind == Kind::kPark) device_works();
    kv_.apply(state.kv, op, state.step_traffic);
  }
}

StepResult DeviceStepRunner::finish() {
  BegunStep begun = std::move(begun_.front());
  begun_.pop_front();
  const Reached& reached = *reached_[begun.number % reached_.size()];
  reached.synchronize();
  take_drawn(begun);
  take_traffic(begun);
  StepStats& stats = begun.result.stats;
  if (begun.number > 1) stats.idle_ns = reached.idle_ns_since(*reached_[(begun.number - 1) % reached_.size()]);
  stats.run_ns = reached.run_ns();
  return std::move(begun.result);
}

void DeviceStepRunner::decode(const StepPlan& plan, BegunStep& begun) {
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
  std::vector<DeviceSelectionReport::Row> selecting;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SequenceStep& step = *steps[i];
    SequenceState& state = *step.state;
    const auto row = static_cast<std::size_t>(rows[i]);
    const bool hot = state.kv.mode == sparse::KvMode::kHot;
    const bool on_device = step.tokens.empty() && state.last_drawn >= 0;
    HS_CHECK(on_device || !step.tokens.empty() || state.last_token >= 0, "the previous step has sampled");
    decode_rows[row] = {.token = step.tokens.empty() ? state.last_token : step.tokens.front(),
                        .drawn = on_device ? sampler_.index_of(state.last_drawn) : -1,
                        .position = step.first_position,
                        .selection = step.selection.get(),
                        .budget = step.budget,
                        .hot = hot,
                        .keeps_metadata = state.kv.keeps_metadata};
    state.kv.device->has_selection = step.selection != nullptr;
    sampled[row] = {.state = &state, .position = step.first_position + 1};
    if (step.selection != nullptr) {
      selecting.push_back({.sequence = state.kv.id,
                           .position = step.first_position,
                           .block_tokens = step.selection->block_tokens(),
                           .row = rows[i]});
    }
    ++begun.result.stats.decode_rows;
    if (!hot) continue;
    ++begun.result.stats.hot_sequences;
    begun.hot.push_back({.result = indices[i],
                         .row = rows[i],
                         .block_bytes = state.kv.hot_shape.block_tokens * kv_.geometry().row_bytes()});
  }
  const DecodeShape shape =
      batch_.fill(decode_rows, sampler_.tokens(), limits_.max_tokens, kv_.block(), *engine_.stream);
  if (shape.hot) attention_.clear_swap_totals();
  tell_probe(DecodeProbe::Part::kInputs);
  forward_decode(shape, plan.step);
  if (shape.hot) {
    engine_.stream->copy(attention_.swap_totals(), host_totals(begun.number),
                         shape.rows * static_cast<std::int64_t>(sizeof(cuda::SwapTotals)));
  }
  const std::int64_t first = sampler_.sample(sampled, transformer_.logits_data(), shape.rows, kv_.block());
  tell_probe(DecodeProbe::Part::kSampled);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i]->sample) {
      will_draw(indices[i], first + rows[i], begun);
    } else if (steps[i]->prompt_logprobs >= 0) {
      HS_CHECK(false, "the log-probability of a given token is a prompt's");
    }
    kv_.commit_rows(steps[i]->state->kv, 1, steps[i]->state->step_traffic);
  }
  if (report_ != nullptr) report_->tell(plan.step, selecting, shape.rows, kv_);
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
                         slices_, attention_, probe_);
    (void)transformer_.logits(0, shape.rows);
    tell_probe(DecodeProbe::Part::kLogits);
  };
  const auto starts = [&] { device_works(); };
  if (limits_.graphs) return graphs_.run(shape, *engine_.stream, std::ref(launch), starts);
  starts();
  launch();
}

void DeviceStepRunner::prefill(const SequenceStep& step, std::size_t index, BegunStep& begun) {
  SequenceState& state = *step.state;
  HS_CHECK(step.first_position == state.kv.length, "a sequence's rows are planned in order");
  HS_CHECK(static_cast<std::int64_t>(step.tokens.size()) == step.rows, "one token per row");
  begun.result.stats.prefill_rows += step.rows;
  if (synthetic_prompts_ != nullptr) device_works();
  const std::int64_t filled = synthetic_prompts_ == nullptr ? 0 : fill_prompt(step);
  const std::int64_t rows = step.rows - filled;
  sampler_.see_prompt(state, step.tokens, step.sample, kv_.block());
  if (rows == 0) return;
  const std::int64_t count = begin_prompt_rows(step, filled, rows);
  device_works();
  transformer_.forward(begun.result.step,
                       {.tokens = prompt_tokens_.data(), .positions = prompt_positions_.data(), .count = count},
                       slices_, attention_);
  if (step.prompt_logprobs >= 0) score_prompt(step, begun.result.sequences[index]);
  if (step.sample && !state.failed) {
    const DeviceSampler::Row row{.state = &state, .position = step.first_position + step.rows};
    const float* const logits = transformer_.logits(rows - 1, 1);
    will_draw(index, sampler_.sample(std::span(&row, 1), logits, 1, kv_.block()), begun);
  }
  kv_.commit_rows(state.kv, rows, state.step_traffic);
}

// Rows [first, first + rows) of the step's; returns how many they are padded to.
std::int64_t DeviceStepRunner::begin_prompt_rows(const SequenceStep& step, std::int64_t first, std::int64_t rows) {
  SequenceState& state = *step.state;
  const std::int64_t count = padded(rows);
  const std::int64_t first_position = step.first_position + first;
  const std::span<std::int32_t> tokens = kv_.block().take<std::int32_t>(count);
  const std::span<std::int64_t> positions = kv_.block().take<std::int64_t>(count);
  const std::span<std::int64_t> kept = kv_.block().take<std::int64_t>(count);
  std::fill(tokens.begin(), tokens.end(), -1);
  std::fill(positions.begin(), positions.end(), -1);
  std::fill(kept.begin(), kept.end(), -1);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    tokens[at] = step.tokens[static_cast<std::size_t>(first + row)];
    positions[at] = first_position + row;
    if (state.kv.keeps_metadata) kept[at] = positions[at];
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
                     .rows = rows,
                     .first_position = first_position,
                     .prefill = true,
                     .selection = step.selection.get(),
                     .budget = step.budget,
                     .dense_until = step.dense_until,
                     .traffic = &state.step_traffic});
  attention_.begin_prompt(slices_.front(), prompt_positions_.data(), prompt_metadata_.data());
  return count;
}

// Random rows for the step's, in chunks, but for what has to be computed; returns how many.
std::int64_t DeviceStepRunner::fill_prompt(const SequenceStep& step) {
  if (step.prompt_logprobs >= 0) return 0;
  const std::int64_t rows = step.rows - (step.sample ? 1 : 0);
  for (std::int64_t first = 0; first < rows; first += limits_.prefill_chunk) {
    const std::int64_t count = std::min(limits_.prefill_chunk, rows - first);
    (void)begin_prompt_rows(step, first, count);
    for (std::int32_t layer = 0; layer < kv_.layout().rows.layers; ++layer)
      attention_.keep_prompt(synthetic_prompts_->layer(LayerId{layer}));
    kv_.commit_rows(step.state->kv, count, step.state->step_traffic);
  }
  return rows;
}

// The prompt's own log-probabilities, on the host.
void DeviceStepRunner::score_prompt(const SequenceStep& step, SequenceResult& result) {
  const std::int64_t vocabulary = engine_.weights->config.vocabulary;
  const std::int64_t batch = std::min(kScoredRows, transformer_.max_logits_rows());
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

void DeviceStepRunner::will_draw(std::size_t index, std::int64_t number, BegunStep& begun) {
  begun.drawn.push_back({.result = index, .number = number});
  begun.states[index]->last_drawn = number;
}

// What the sequences hold at the end of the step; what moved, as far as the host knows.
void DeviceStepRunner::measure(BegunStep& begun) const {
  for (std::size_t i = 0; i < begun.states.size(); ++i) {
    SequenceState& state = *begun.states[i];
    begun.traffic.push_back(std::exchange(state.step_traffic, {}));
    sparse::measure(state.kv, kv_.layout(), state.traffic, state.usage);
    begun.result.sequences[i].usage = state.usage;
  }
}

void DeviceStepRunner::take_drawn(BegunStep& begun) const {
  for (const Drawn& drawn : begun.drawn) {
    SequenceResult& sequence = begun.result.sequences[drawn.result];
    SequenceState& state = *begun.states[drawn.result];
    sequence.sampled = sampler_.result(drawn.number, sequence.token) && !state.failed;
    if (sequence.sampled) {
      state.last_token = sequence.token.token;
    } else {
      state.failed = true;
      sequence.error = kNotNumbers;
    }
    if (state.last_drawn == drawn.number) state.last_drawn = -1;
  }
}

void DeviceStepRunner::take_traffic(BegunStep& begun) const {
  const cuda::SwapTotals* const totals = host_totals(begun.number);
  for (const HotRow& hot : begun.hot) {
    const cuda::SwapTotals& row = totals[hot.row];
    HS_CHECK(row.unplaced == 0, "a selection fits its hot buffer");
    sparse::TierTraffic& moved = begun.traffic[hot.result];
    moved.hits += row.hits;
    moved.ring_hits += row.ring_hits;
    moved.misses += row.misses;
    moved.bytes_loaded += std::int64_t{row.misses - row.ring_misses} * hot.block_bytes;
  }
  StepStats& stats = begun.result.stats;
  for (std::size_t i = 0; i < begun.states.size(); ++i) {
    const sparse::TierTraffic& moved = begun.traffic[i];
    begun.states[i]->traffic += moved;
    sparse::count_traffic(begun.states[i]->traffic, begun.result.sequences[i].usage);
    stats.hits += moved.hits;
    stats.ring_hits += moved.ring_hits;
    stats.misses += moved.misses;
    stats.bytes_loaded += moved.bytes_loaded;
    stats.bytes_offloaded += moved.bytes_offloaded;
  }
}

}  // namespace hotset::model
