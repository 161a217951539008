// Drives the data plane with modes that a test chooses: every sequence can be moved between resident, hot and parked
// before any step. Pages are handed out at random, so that a page that one sequence gives up soon serves another.
#pragma once

#include <algorithm>
#include <cstdint>
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
#include "tests/engine/next_rows.h"
#include "tests/engine/test_algorithms.h"

namespace hotset::testing {

struct ModeDriverOptions {
  std::filesystem::path checkpoint;
  std::string algorithm = "dense";
  std::filesystem::path basis_file;
  AlgorithmSizes sizes;
  KvDType dtype = KvDType::kF32;
  std::int64_t threshold = 0;  // dsa: the model's index_topk instead
  std::int64_t hot_ring = 16;
  std::int64_t hot_buffer = 64;  // tokens
  std::int64_t prefill_chunk = 32;
  std::int64_t pool_tokens = 4096;  // of each tier
  int threads = 1;
};

struct ModeRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t new_tokens = 0;
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
    ModeAnswer answer;
    std::vector<PageId> device_pages;
    std::vector<MetadataPageId> metadata_pages;
    std::vector<HostPage> host_pages;
    std::string error;  // it failed, alone

    [[nodiscard]] bool prefilling() const { return position < static_cast<std::int64_t>(request.prompt.size()); }
    [[nodiscard]] bool done() const {
      return !error.empty() || (!prefilling() && answer.tokens.size() == static_cast<std::size_t>(request.new_tokens));
    }
  };

  ModeDriver(const ModeDriverOptions& options, std::uint64_t seed) : options_(options), random_(seed) {
    auto checkpoint = require(model::open_checkpoint(options.checkpoint));
    auto backend = kernels::make_cpu_backend(options.threads);
    auto weights = require(model::load_weights(*checkpoint, *backend));
    const model::ModelConfig& config = weights->config;
    algorithm_ = make_algorithm(options.algorithm, config, options.dtype, options.sizes, options.basis_file);
    if (options.algorithm == "dsa") options_.threshold = config.indexer->top_k;
    layout_ = model::kv_layout_of(config, options.dtype, algorithm_ ? algorithm_->metadata() : MetadataGeometry{});
    if (algorithm_) {
      shape_ = require(sparse::hot_buffer_shape_for(*algorithm_, options.hot_ring, options.hot_buffer));
    }
    const std::int64_t pages = options.pool_tokens / kPageTokens;
    device_ = RandomPages<PageId>(pages * layout_.rows.layers);
    metadata_ = RandomPages<MetadataPageId>(pages * layout_.metadata_layers);
    host_ = RandomPages<HostPage>(pages);
    auto device = require(storage::DevicePool::create(
        layout_, {.rows = static_cast<std::int32_t>(pages * layout_.rows.layers),
                  .metadata = static_cast<std::int32_t>(std::max<std::int64_t>(1, pages * layout_.metadata_layers))}));
    auto host = require(storage::HostPool::create(layout_, static_cast<std::int32_t>(pages)));
    device_base_ = device.base();
    device_bytes_ = device.pages().rows * layout_.rows.page_bytes();
    runner_ = std::make_unique<model::StepRunner>(
        std::move(weights), std::move(backend), std::move(device), std::move(host), algorithm_,
        model::StepRunnerLimits{.max_batch = 32, .prefill_chunk = 32 * options.prefill_chunk});
  }

  void add(ModeRequest request) {
    Sequence sequence{.request = std::move(request), .state = std::make_shared<model::SequenceState>()};
    sequence.state->kv.id = SequenceId{++last_id_};
    sequence.state->kv.keeps_metadata = layout_.metadata_layers > 0;
    sequence.state->sampler = model::Sampler({.temperature = 0, .logprobs = 0}, sequence.request.prompt);
    sequences_.push_back(std::move(sequence));
  }
  [[nodiscard]] std::vector<Sequence>& sequences() { return sequences_; }
  [[nodiscard]] model::StepRunner& runner() { return *runner_; }
  [[nodiscard]] const KvLayout& layout() const { return layout_; }
  [[nodiscard]] const model::StepStats& stats() const { return stats_; }
  [[nodiscard]] std::byte* device_base() const { return device_base_; }
  [[nodiscard]] std::int64_t device_bytes() const { return device_bytes_; }
  [[nodiscard]] const model::VerifyOutcome& verified() const { return verified_; }

  [[nodiscard]] bool may_be_hot(const Sequence& sequence) const {
    return algorithm_ != nullptr && !sequence.prefilling() && sequence.position + 1 > options_.threshold;
  }

  // The sequence is in `mode` in the next step. kHot: may_be_hot().
  void move(Sequence& sequence, sparse::KvMode mode) {
    if (sequence.mode == mode) return;
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
      sparse::KvOp op{.kind = sparse::KvOp::Kind::kEnterHot, .shape = shape_};
      if (sequence.mode == sparse::KvMode::kParked) {
        op.metadata_pages = take_metadata(sequence, pages * layout_.metadata_layers);
      }
      device_.give(sequence.device_pages);  // from resident: the new pages may be among the old ones
      op.device_pages = take_device(sequence, sparse::hot_pages_of(shape_).total() * layout_.rows.layers);
      ops.push_back(std::move(op));
    }
    sequence.mode = mode;
    push(sequence, std::move(ops));
  }

  // One step of every sequence that is not done and not `held` (a parked one that has its prompt behind it is held).
  void step() {
    model::StepPlan plan{.step = ++step_, .transitions = std::exchange(transitions_, {})};
    std::vector<Sequence*> owners;
    for (Sequence& sequence : sequences_) {
      if (sequence.done() || (!sequence.prefilling() && sequence.mode == sparse::KvMode::kParked)) continue;
      plan.sequences.push_back(rows_of(sequence));
      owners.push_back(&sequence);
    }
    const model::StepResult result = runner_->run(plan);
    stats_.hits += result.stats.hits;
    stats_.misses += result.stats.misses;
    stats_.hot_sequences += result.stats.hot_sequences;
    verified_.checked += result.verified.checked;
    verified_.failed += result.verified.failed;
    for (const auto& failure : result.verified.failures) verified_.failures.push_back(failure);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const model::SequenceResult& one = result.sequences[i];
      owners[i]->error = one.error;
      if (!one.sampled) continue;
      owners[i]->answer.tokens.push_back(one.token.token);
      owners[i]->answer.logprobs.push_back(one.token.logprob);
    }
  }

  [[nodiscard]] bool done() const {
    return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& one) { return one.done(); });
  }
  [[nodiscard]] std::vector<ModeAnswer> answers() const {
    std::vector<ModeAnswer> out;
    for (const Sequence& sequence : sequences_) out.push_back(sequence.answer);
    return out;
  }
  // Gives all pages back, so that the next requests get dirty ones.
  void clear() {
    for (Sequence& sequence : sequences_) {
      device_.give(sequence.device_pages);
      metadata_.give(sequence.metadata_pages);
      host_.give(sequence.host_pages);
    }
    sequences_.clear();
    transitions_.clear();
  }

 private:
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
    if (algorithm_ && (step.prefill ? algorithm_->selects_prompt() : sequence.position + 1 > options_.threshold)) {
      step.selection = algorithm_;
      step.budget = algorithm_->max_blocks();
      step.dense_until = options_.threshold;
    }
    grow(sequence, sequence.position + step.rows, step.ops);
    sequence.position += step.rows;
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

  ModeDriverOptions options_;
  std::mt19937_64 random_;
  Algorithm algorithm_;
  KvLayout layout_;
  sparse::HotBufferShape shape_;
  RandomPages<PageId> device_{0};
  RandomPages<MetadataPageId> metadata_{0};
  RandomPages<HostPage> host_{0};
  std::unique_ptr<model::StepRunner> runner_;
  std::byte* device_base_ = nullptr;
  std::int64_t device_bytes_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<model::SequenceTransition> transitions_;
  std::uint64_t last_id_ = 0, step_ = 0;
  model::StepStats stats_;
  model::VerifyOutcome verified_;
};

}  // namespace hotset::testing
