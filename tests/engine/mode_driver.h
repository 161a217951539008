// Drives the data plane with modes that a test chooses: every sequence can be moved between resident, hot and parked
// before any step. Pages are handed out at random, so that a page that one sequence gives up soon serves another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/kv_layout.h"
#include "model/step_runner.h"
#include "model/weights.h"
#include "tests/engine/engine_request.h"
#include "tests/engine/next_rows.h"
#include "tests/engine/test_algorithms.h"

namespace hotset::testing {

struct ModeDriverOptions {
  std::filesystem::path checkpoint;
  std::string algorithm = "dense";   // whose metadata is kept
  std::vector<std::string> further;  // algorithms without metadata that requests may name: "streaming", "dense"
  std::filesystem::path basis_file;
  AlgorithmSizes sizes;
  KvDType dtype = KvDType::kF32;
  std::int64_t threshold = 0;  // dsa: the model's index_topk instead
  std::int64_t hot_ring = 16;
  std::vector<std::int64_t> hot_buffers{64};  // tokens, at least a selection: each time one of them
  std::int64_t prefill_chunk = 32;
  std::int64_t pool_tokens = 4096;  // of each tier
  std::int64_t device_tokens = 0;   // of the device tier, when it is smaller
  std::int64_t max_batch = 32;
  bool ahead = false;  // every step is planned and begun before the one before it is finished
  int threads = 1;
  MakeRunner make_runner = nullptr;  // null: the CPU's
};

struct ModeRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t new_tokens = 0;
  std::size_t algorithm = 0;  // 0: the driver's; i: the i-th further one
  model::SamplingParams sampling{.temperature = 0, .logprobs = 0};
};

struct ModeAnswer {
  std::vector<std::int32_t> tokens;
  std::vector<float> logprobs;

  bool operator==(const ModeAnswer&) const = default;
};

template <class Id>
class RandomPages {
 public:
  explicit RandomPages(std::int64_t count) {
    for (std::int32_t page = 0; page < count; ++page) free_.push_back(Id{page});
  }
  template <class Random>
  std::vector<Id> take(std::int64_t count, Random& random) {
    std::vector<Id> out;
    for (std::int64_t i = 0; i < count; ++i) {
      HS_CHECK(!free_.empty(), "the test's pools are large enough");
      std::swap(free_[random() % free_.size()], free_.back());
      out.push_back(free_.back());
      free_.pop_back();
    }
    return out;
  }
  void give(std::vector<Id>& pages) {
    free_.insert(free_.end(), pages.begin(), pages.end());
    pages.clear();
  }

 private:
  std::vector<Id> free_;
};

class ModeDriver {
 public:
  struct Sequence {
    ModeRequest request;
    std::shared_ptr<model::SequenceState> state;
    sparse::KvMode mode = sparse::KvMode::kParked;
    std::int64_t position = 0;
    std::int32_t drawn = 0;  // tokens that were planned
    ModeAnswer answer;
    std::vector<PageId> device_pages;
    std::vector<MetadataPageId> metadata_pages;
    std::vector<HostPage> host_pages;
    std::string error;  // it failed, alone

    [[nodiscard]] bool prefilling() const { return position < static_cast<std::int64_t>(request.prompt.size()); }
    [[nodiscard]] bool done() const { return !error.empty() || (!prefilling() && drawn == request.new_tokens); }
    // Its last result is there.
    [[nodiscard]] bool finished() const {
      return !error.empty() || answer.tokens.size() == static_cast<std::size_t>(request.new_tokens);
    }
    [[nodiscard]] std::int64_t final_tokens() const {
      return static_cast<std::int64_t>(request.prompt.size()) + request.new_tokens;
    }
  };

  ModeDriver(const ModeDriverOptions& options, std::uint64_t seed)
      : ModeDriver(options, seed, require(model::open_checkpoint(options.checkpoint))) {}
  ModeDriver(const ModeDriverOptions& options, std::uint64_t seed, std::unique_ptr<model::Checkpoint> checkpoint)
      : options_(options), random_(seed) {
    const model::ModelConfig& config = checkpoint->config();
    if (options.algorithm == "dsa") options_.threshold = config.indexer->top_k;
    add_choice(options.algorithm, config);
    for (const std::string& name : options.further) add_choice(name, config);
    const Algorithm& keeper = choices_.front().algorithm;
    layout_ = model::kv_layout_of(config, options.dtype, keeper ? keeper->metadata() : MetadataGeometry{});
    const std::int64_t pages = options.pool_tokens / kPageTokens;
    const std::int64_t device_pages = options.device_tokens > 0 ? options.device_tokens / kPageTokens : pages;
    device_ = RandomPages<PageId>(device_pages * layout_.rows.layers);
    metadata_ = RandomPages<MetadataPageId>(pages * layout_.metadata_layers);
    host_ = RandomPages<HostPage>(pages);
    free_rows_ = device_pages * layout_.rows.layers;
    const EngineRequest request{.checkpoint = *checkpoint,
                                .layout = layout_,
                                .device_pages = {.rows = static_cast<std::int32_t>(device_pages * layout_.rows.layers),
                                                 .metadata = static_cast<std::int32_t>(
                                                     std::max<std::int64_t>(1, pages * layout_.metadata_layers))},
                                .host_pages = static_cast<std::int32_t>(pages),
                                .keeper = layout_.metadata_layers > 0 ? keeper : nullptr,
                                .hot_shape = largest_shape(),
                                .max_selected = most_selected(),
                                .max_batch = options.max_batch,
                                .prefill_chunk = options.prefill_chunk,
                                .threads = options.threads};
    if (options.make_runner) {
      runner_ = options.make_runner(request);
    } else {
      make_cpu_runner(request);
    }
  }

  void add(ModeRequest request) {
    Sequence sequence{.request = std::move(request), .state = std::make_shared<model::SequenceState>()};
    sequence.state->kv.id = SequenceId{++last_id_};
    sequence.state->kv.keeps_metadata = layout_.metadata_layers > 0;
    sequence.state->sampler = model::Sampler(sequence.request.sampling, sequence.request.prompt);
    sequences_.push_back(std::move(sequence));
  }
  [[nodiscard]] std::vector<Sequence>& sequences() { return sequences_; }
  [[nodiscard]] model::StepRunner& cpu_runner() { return *cpu_runner_; }
  [[nodiscard]] model::StepExecutor& runner() { return *runner_; }
  [[nodiscard]] const KvLayout& layout() const { return layout_; }
  [[nodiscard]] const model::StepStats& stats() const { return stats_; }
  [[nodiscard]] std::byte* device_base() const { return device_base_; }  // of the CPU
  [[nodiscard]] const model::VerifyOutcome& verified() const { return verified_; }

  [[nodiscard]] bool may_be_hot(const Sequence& sequence) const {
    return algorithm_of(sequence) != nullptr && !sequence.prefilling() && sequence.position + 1 > options_.threshold;
  }
  // To its end, beside those that are in the pool.
  [[nodiscard]] bool fits(const Sequence& sequence, sparse::KvMode mode) const {
    return pages_of(sequence, mode) - pages_of(sequence, sequence.mode) <= free_rows_;
  }

  // The sequence is in `mode` in the next step. kHot: may_be_hot(). It fits().
  void move(Sequence& sequence, sparse::KvMode mode) {
    if (sequence.mode == mode) return;
    free_rows_ += pages_of(sequence, sequence.mode) - pages_of(sequence, mode);
    HS_CHECK(free_rows_ >= 0, "the sequence fits");
    std::vector<sparse::KvOp> ops;
    if (sequence.mode != sparse::KvMode::kParked && !(mode == sparse::KvMode::kHot && random_() % 2 == 0)) {
      park(sequence, ops);
      if (mode == sparse::KvMode::kParked) return push(sequence, std::move(ops));
    }
    const std::int64_t pages = pages_for_tokens(sequence.position);
    if (mode == sparse::KvMode::kResident) {
      sparse::KvOp op{.kind = sparse::KvOp::Kind::kEnterResident};
      op.device_pages = take_device(sequence, pages * layout_.rows.layers);
      op.metadata_pages = take_metadata(sequence, pages * layout_.metadata_layers);
      ops.push_back(std::move(op));
    } else {
      const std::vector<sparse::HotBufferShape>& shapes = choices_[sequence.request.algorithm].shapes;
      const sparse::HotBufferShape& shape = shapes[random_() % shapes.size()];
      sparse::KvOp op{.kind = sparse::KvOp::Kind::kEnterHot, .shape = shape};
      if (sequence.mode == sparse::KvMode::kParked) {
        op.metadata_pages = take_metadata(sequence, pages * layout_.metadata_layers);
      }
      device_.give(sequence.device_pages);  // from resident: the new pages may be among the old ones
      op.device_pages = take_device(sequence, sparse::hot_pages_of(shape).total() * layout_.rows.layers);
      ops.push_back(std::move(op));
    }
    sequence.mode = mode;
    push(sequence, std::move(ops));
  }

  // One step of every sequence that is not done (a parked one that has its prompt behind it waits).
  void step() {
    model::StepPlan plan{.step = ++step_, .transitions = std::exchange(transitions_, {})};
    std::vector<std::size_t> owners;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& sequence = sequences_[i];
      if (sequence.done() || (!sequence.prefilling() && sequence.mode == sparse::KvMode::kParked)) continue;
      plan.sequences.push_back(rows_of(sequence));
      owners.push_back(i);
    }
    runner_->begin(plan);
    begun_.push_back(std::move(owners));
    if (!options_.ahead || begun_.size() == model::StepExecutor::kMostBegun) finish_step();
  }

  // Finishes what was begun.
  [[nodiscard]] bool done() {
    if (!std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& one) { return one.done(); }))
      return false;
    while (!begun_.empty()) finish_step();
    return true;
  }
  [[nodiscard]] std::vector<ModeAnswer> answers() const {
    std::vector<ModeAnswer> out;
    for (const Sequence& sequence : sequences_) out.push_back(sequence.answer);
    return out;
  }
  // Gives the sequence's pages back, its last result is there.
  void release(Sequence& sequence) {
    free_rows_ += pages_of(sequence, sequence.mode);
    sequence.mode = sparse::KvMode::kParked;
    device_.give(sequence.device_pages);
    metadata_.give(sequence.metadata_pages);
    host_.give(sequence.host_pages);
    sequence.state.reset();
  }
  // Gives all pages back, so that the next requests get dirty ones.
  void clear() {
    while (!begun_.empty()) finish_step();
    for (Sequence& sequence : sequences_) release(sequence);
    sequences_.clear();
    transitions_.clear();
  }

 private:
  struct Choice {
    Algorithm algorithm;
    std::vector<sparse::HotBufferShape> shapes;  // one for each buffer of the options
  };
  void add_choice(const std::string& name, const model::ModelConfig& config) {
    Choice choice{.algorithm = make_algorithm(name, config, options_.dtype, options_.sizes, options_.basis_file)};
    for (const std::int64_t buffer : options_.hot_buffers) {
      if (choice.algorithm == nullptr) break;
      choice.shapes.push_back(require(sparse::hot_buffer_shape_for(*choice.algorithm, options_.hot_ring, buffer)));
    }
    choices_.push_back(std::move(choice));
  }
  [[nodiscard]] const Algorithm& algorithm_of(const Sequence& sequence) const {
    return choices_[sequence.request.algorithm].algorithm;
  }
  [[nodiscard]] sparse::HotBufferShape largest_shape() const {
    sparse::HotBufferShape largest;
    for (const Choice& choice : choices_) {
      for (const sparse::HotBufferShape& shape : choice.shapes) {
        largest.hot_blocks = std::max(largest.hot_blocks, shape.hot_blocks);
        largest.block_tokens = std::max(largest.block_tokens, shape.block_tokens);
        largest.ring_recent = std::max(largest.ring_recent, shape.ring_recent);
        largest.ring_tokens = std::max(largest.ring_tokens, shape.ring_tokens);
      }
    }
    return largest;
  }
  [[nodiscard]] std::int64_t most_selected() const {
    std::int64_t most = 0;
    for (const Choice& choice : choices_) {
      if (choice.algorithm) most = std::max({most, choice.algorithm->max_blocks(), choice.algorithm->forced_blocks()});
    }
    return most;
  }
  void make_cpu_runner(const EngineRequest& request) {
    auto backend = kernels::make_cpu_backend(request.threads);
    auto weights = require(model::load_weights(request.checkpoint, *backend));
    auto device = require(storage::DevicePool::create(request.layout, request.device_pages));
    auto host = require(storage::HostPool::create(request.layout, request.host_pages));
    device_base_ = device.base();
    auto runner = std::make_unique<model::StepRunner>(
        std::move(weights), std::move(backend), std::move(device), std::move(host), request.keeper,
        model::StepRunnerLimits{.max_batch = request.max_batch,
                                .prefill_chunk = request.max_batch * request.prefill_chunk});
    cpu_runner_ = runner.get();
    runner_ = std::move(runner);
  }

  // At most, of all layers.
  [[nodiscard]] std::int64_t pages_of(const Sequence& sequence, sparse::KvMode mode) const {
    if (mode == sparse::KvMode::kParked) return 0;
    if (mode == sparse::KvMode::kResident) return pages_for_tokens(sequence.final_tokens()) * layout_.rows.layers;
    std::int64_t most = 0;
    for (const sparse::HotBufferShape& shape : choices_[sequence.request.algorithm].shapes)
      most = std::max(most, sparse::hot_pages_of(shape).total());
    return most * layout_.rows.layers;
  }
  std::vector<PageId> take_device(Sequence& sequence, std::int64_t count) {
    auto pages = device_.take(count, random_);
    sequence.device_pages.insert(sequence.device_pages.end(), pages.begin(), pages.end());
    return pages;
  }
  std::vector<MetadataPageId> take_metadata(Sequence& sequence, std::int64_t count) {
    auto pages = metadata_.take(count, random_);
    sequence.metadata_pages.insert(sequence.metadata_pages.end(), pages.begin(), pages.end());
    return pages;
  }
  void park(Sequence& sequence, std::vector<sparse::KvOp>& ops) {
    ops.push_back({.kind = sparse::KvOp::Kind::kPark});
    device_.give(sequence.device_pages);
    metadata_.give(sequence.metadata_pages);
    sequence.mode = sparse::KvMode::kParked;
  }
  void push(Sequence& sequence, std::vector<sparse::KvOp> ops) {
    transitions_.push_back({.state = sequence.state, .ops = std::move(ops)});
  }

  model::SequenceStep rows_of(Sequence& sequence) {
    model::SequenceStep step =
        next_rows(sequence.state, sequence.request.prompt, sequence.position, options_.prefill_chunk);
    const Algorithm& algorithm = algorithm_of(sequence);
    if (algorithm && (step.prefill ? algorithm->selects_prompt() : sequence.position + 1 > options_.threshold)) {
      step.selection = algorithm;
      step.budget = algorithm->max_blocks();
      step.dense_until = options_.threshold;
    }
    grow(sequence, sequence.position + step.rows, step.ops);
    sequence.position += step.rows;
    if (step.sample) ++sequence.drawn;
    return step;
  }
  void grow(Sequence& sequence, std::int64_t end, std::vector<sparse::KvOp>& ops) {
    const auto missing = [&](std::size_t have, std::int64_t layers) {
      return pages_for_tokens(end) * layers - static_cast<std::int64_t>(have);
    };
    if (const std::int64_t count = missing(sequence.host_pages.size(), 1); count > 0) {
      sparse::KvOp op{.kind = sparse::KvOp::Kind::kAddHostPages, .host_pages = host_.take(count, random_)};
      sequence.host_pages.insert(sequence.host_pages.end(), op.host_pages.begin(), op.host_pages.end());
      ops.push_back(std::move(op));
    }
    if (sequence.mode == sparse::KvMode::kParked) return;
    if (const std::int64_t count = missing(sequence.device_pages.size(), layout_.rows.layers);
        sequence.mode == sparse::KvMode::kResident && count > 0) {
      ops.push_back({.kind = sparse::KvOp::Kind::kAddDevicePages, .device_pages = take_device(sequence, count)});
    }
    if (const std::int64_t count = missing(sequence.metadata_pages.size(), layout_.metadata_layers); count > 0) {
      ops.push_back({.kind = sparse::KvOp::Kind::kAddMetadataPages, .metadata_pages = take_metadata(sequence, count)});
    }
  }
  void finish_step() {
    const model::StepResult result = runner_->finish();
    stats_.hits += result.stats.hits;
    stats_.misses += result.stats.misses;
    stats_.hot_sequences += result.stats.hot_sequences;
    verified_.checked += result.verified.checked;
    verified_.failed += result.verified.failed;
    for (const auto& failure : result.verified.failures) verified_.failures.push_back(failure);
    for (std::size_t i = 0; i < begun_.front().size(); ++i) {
      Sequence& owner = sequences_[begun_.front()[i]];
      const model::SequenceResult& one = result.sequences[i];
      if (!one.error.empty()) owner.error = one.error;
      if (!one.sampled) continue;
      owner.answer.tokens.push_back(one.token.token);
      owner.answer.logprobs.push_back(one.token.logprob);
    }
    begun_.pop_front();
  }

  ModeDriverOptions options_;
  std::mt19937_64 random_;
  std::vector<Choice> choices_;
  KvLayout layout_;
  RandomPages<PageId> device_{0};
  RandomPages<MetadataPageId> metadata_{0};
  RandomPages<HostPage> host_{0};
  std::int64_t free_rows_ = 0;  // pages of the device pool that no sequence needs to its end
  std::unique_ptr<model::StepExecutor> runner_;
  model::StepRunner* cpu_runner_ = nullptr;
  std::byte* device_base_ = nullptr;
  std::vector<Sequence> sequences_;
  std::vector<model::SequenceTransition> transitions_;
  std::deque<std::vector<std::size_t>> begun_;  // whose rows a step holds, oldest step first
  std::uint64_t last_id_ = 0, step_ = 0;
  model::StepStats stats_;
  model::VerifyOutcome verified_;
};

}  // namespace hotset::testing
