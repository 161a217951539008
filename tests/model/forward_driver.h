// Runs requests through the step runner without a control plane: every sequence has pages of its own for all its rows.
// Selection is the model's own (DSA) where it has an indexer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/step_runner.h"
#include "model/transformer.h"
#include "sparse/dsa.h"

namespace hotset::model {

struct ForwardOptions {
  std::filesystem::path checkpoint;
  KvDType dtype = KvDType::kF32;
  bool hot = false;  // hot from the first generated token that selects; a prompt that selects is prefilled on the host
  std::int64_t hot_tokens = 32;
  std::int64_t hot_ring = 1;
  std::int64_t prefill_chunk = 64;
  int threads = 1;
};

struct ForwardRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t new_tokens = 0;
};

struct ForwardAnswer {
  std::vector<float> prompt_logprobs;  // [prompt - 1]
  std::vector<std::int32_t> tokens;
  std::vector<float> logprobs;                                      // of tokens
  std::map<std::int32_t, std::vector<std::int32_t>> selected_last;  // [layer]: of the prompt's last token
};

class ForwardDriver {
 public:
  explicit ForwardDriver(const ForwardOptions& options) : ForwardDriver(options, open(options.checkpoint)) {}
  ForwardDriver(const ForwardOptions& options, std::unique_ptr<Checkpoint> checkpoint) : options_(options) {
    backend_ = kernels::make_cpu_backend(options.threads);
    auto loaded = load_weights(*checkpoint, *backend_);
    HS_CHECK(loaded.ok(), loaded.ok() ? "" : loaded.error().message.c_str());
    weights_ = std::move(loaded).value();
    const ModelConfig& config = weights_->config;
    if (config.indexer) {
      auto made =
          sparse::make_dsa({.top_k = config.indexer->top_k, .dim = config.indexer->dim, .dtype = options.dtype});
      HS_CHECK(made.ok(), "the indexer is valid");
      selection_ = made.value();
      dense_until_ = config.indexer->top_k;
    }
    layout_ = kv_layout_of(config, options.dtype, selection_ ? selection_->metadata() : MetadataGeometry{});
    auto shape = sparse::make_hot_buffer_shape(options.hot_tokens, 1, options.hot_ring);
    HS_CHECK(shape.ok(), "the hot buffer is valid");
    shape_ = shape.value();
  }

  [[nodiscard]] const StepStats& stats() const { return stats_; }

  // Once.
  std::vector<ForwardAnswer> run(const std::vector<ForwardRequest>& requests) {
    make_runner(requests);
    for (const ForwardRequest& request : requests) add(request);
    std::uint64_t step = 0;
    for (std::size_t done = 0; done < active_.size();) {
      StepPlan plan{.step = ++step};
      std::vector<Active*> owners;
      for (Active& one : active_) {
        if (one.finished) continue;
        plan.sequences.push_back(plan_rows(one));
        owners.push_back(&one);
      }
      const StepResult result = runner_->run(plan);
      stats_.misses += result.stats.misses;
      stats_.hits += result.stats.hits;
      stats_.hot_sequences += result.stats.hot_sequences;
      for (std::size_t i = 0; i < owners.size(); ++i) done += take(*owners[i], result.sequences[i]) ? 1 : 0;
    }
    std::vector<ForwardAnswer> answers;
    for (Active& one : active_) answers.push_back(std::move(one.answer));
    return answers;
  }

 private:
  struct Active {
    const ForwardRequest* request = nullptr;
    std::shared_ptr<SequenceState> state;
    ForwardAnswer answer;
    std::int64_t position = 0;
    sparse::KvMode mode = sparse::KvMode::kParked;  // planned
    bool finished = false;
  };

  class LastSelections final : public sparse::SelectionObserver {
   public:
    explicit LastSelections(std::vector<Active>& active) : active_(active) {}
    void observe(const sparse::SelectionRecord& record) override {
      Active& one = active_[static_cast<std::size_t>(record.sequence.value())];
      if (!record.prefill || record.position + 1 != static_cast<std::int64_t>(one.request->prompt.size())) return;
      auto& out = one.answer.selected_last[record.layer.value()];
      out.assign(record.blocks.begin(), record.blocks.end());
      for (std::int64_t i = 0; record.everything && i <= record.position; ++i) {
        out.push_back(static_cast<std::int32_t>(i));
      }
    }

   private:
    std::vector<Active>& active_;
  };

  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path) {
    auto opened = open_checkpoint(path);
    HS_CHECK(opened.ok(), opened.ok() ? "" : opened.error().message.c_str());
    return std::move(opened).value();
  }

  static std::int64_t pages_of(const ForwardRequest& request) {
    return pages_for_tokens(static_cast<std::int64_t>(request.prompt.size()) + request.new_tokens);
  }

  void make_runner(const std::vector<ForwardRequest>& requests) {
    std::int64_t pages = 0;
    for (const ForwardRequest& request : requests) pages += pages_of(request);
    const auto count = static_cast<std::int64_t>(requests.size());
    const std::int64_t rows = layout_.rows.layers * (pages + count * sparse::hot_pages_of(shape_).total());
    const std::int64_t metadata = layout_.metadata_layers * pages;
    auto device = storage::DevicePool::create(
        layout_, {.rows = static_cast<std::int32_t>(rows), .metadata = static_cast<std::int32_t>(metadata)});
    auto host = storage::HostPool::create(layout_, static_cast<std::int32_t>(pages));
    HS_CHECK(device.ok() && host.ok(), "the pools fit the memory");
    runner_ = std::make_unique<StepRunner>(
        std::move(weights_), std::move(backend_), std::move(device).value(), std::move(host).value(), selection_,
        StepRunnerLimits{.max_batch = count, .prefill_chunk = count * options_.prefill_chunk});
    runner_->observe(std::make_shared<LastSelections>(active_));
  }

  void add(const ForwardRequest& request) {
    Active& one = active_.emplace_back();
    one.request = &request;
    one.state = std::make_shared<SequenceState>();
    one.state->kv.id = SequenceId{active_.size() - 1};
    one.state->kv.keeps_metadata = layout_.metadata_layers > 0;
    one.state->sampler = Sampler({.temperature = 0, .logprobs = 0}, request.prompt);
  }

  template <class Page>
  static std::vector<Page> take_pages(std::int64_t count, std::int32_t& next) {
    std::vector<Page> pages;
    for (std::int64_t i = 0; i < count; ++i) pages.push_back(Page{next++});
    return pages;
  }

  void enter(Active& one, sparse::KvMode mode, std::vector<sparse::KvOp>& ops) {
    if (one.mode == mode) return;
    const bool hot = mode == sparse::KvMode::kHot;
    sparse::KvOp op{.kind = hot ? sparse::KvOp::Kind::kEnterHot : sparse::KvOp::Kind::kEnterResident};
    const std::int64_t pages = hot ? sparse::hot_pages_of(shape_).total() : pages_of(*one.request);
    op.device_pages = take_pages<PageId>(pages * layout_.rows.layers, next_device_);
    if (one.mode == sparse::KvMode::kParked) {
      op.metadata_pages = take_pages<MetadataPageId>(pages_of(*one.request) * layout_.metadata_layers, next_metadata_);
    }
    op.shape = shape_;
    ops.push_back(std::move(op));
    one.mode = mode;
  }

  SequenceStep plan_rows(Active& one) {
    const auto& prompt = one.request->prompt;
    const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
    SequenceStep step{.state = one.state, .first_position = one.position};
    if (one.position == 0) {
      sparse::KvOp op{.kind = sparse::KvOp::Kind::kAddHostPages};
      op.host_pages = take_pages<HostPage>(pages_of(*one.request), next_host_);
      step.ops.push_back(std::move(op));
    }
    step.prefill = one.position < prompt_tokens;
    if (step.prefill) {
      const std::int64_t end =
          std::min((one.position / options_.prefill_chunk + 1) * options_.prefill_chunk, prompt_tokens);
      step.rows = static_cast<std::int32_t>(end - one.position);
      step.tokens.assign(prompt.begin() + one.position, prompt.begin() + end);
      step.sample = end == prompt_tokens && one.request->new_tokens > 0;
      step.prompt_logprobs = 0;
      step.next_token = end < prompt_tokens ? prompt[static_cast<std::size_t>(end)] : -1;
      step.selection = selection_;
    } else {
      step.rows = 1;
      step.sample = true;
      if (one.position + 1 > dense_until_) step.selection = selection_;
    }
    if (step.selection) {
      step.budget = selection_->max_blocks();
      step.dense_until = dense_until_;
    }
    const bool hot = options_.hot && prompt_tokens >= dense_until_;
    if (!step.prefill && options_.hot && step.selection) {
      enter(one, sparse::KvMode::kHot, step.ops);
    } else if (!hot) {
      enter(one, sparse::KvMode::kResident, step.ops);
    }
    one.position += step.rows;
    return step;
  }

  bool take(Active& one, const SequenceResult& result) {
    HS_CHECK(result.error.empty(), "the sequence runs");
    for (const auto& scored : result.prompt_logprobs) one.answer.prompt_logprobs.push_back(scored.logprob);
    if (result.sampled) {
      one.answer.tokens.push_back(result.token.token);
      one.answer.logprobs.push_back(result.token.logprob);
    }
    one.finished = one.position >= static_cast<std::int64_t>(one.request->prompt.size()) &&
                   static_cast<std::int32_t>(one.answer.tokens.size()) == one.request->new_tokens;
    return one.finished;
  }

  ForwardOptions options_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<ModelWeights> weights_;
  std::shared_ptr<const sparse::SelectionAlgorithm> selection_;
  std::int64_t dense_until_ = 0;
  KvLayout layout_;
  sparse::HotBufferShape shape_;
  std::unique_ptr<StepRunner> runner_;
  std::vector<Active> active_;
  std::int32_t next_device_ = 0, next_metadata_ = 0, next_host_ = 0;
  StepStats stats_;
};

}  // namespace hotset::model
