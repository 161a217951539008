// What bfloat16 costs on real text, on the GPU: the loss of a text in float32 and in bfloat16, dense and with low-rank
// index keys. The first half of the tokens is a prompt, which scores itself; every later one is a decode step of its
// own, whose input is the text's token, as when a server generates.
//
// Usage: text_loss MODEL TOKENS BASIS   (TOKENS: a text file of token ids; BASIS: a file of model/index_basis_file.h)
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/concat.h"
#include "kernels/cuda/mapped_pool.h"
#include "model/checkpoint.h"
#include "model/device_engine.h"
#include "model/index_basis_file.h"
#include "model/kv_layout.h"
#include "model/weights.h"
#include "sparse/low_rank.h"
#include "storage/kv_pools.h"

namespace hotset {
namespace {

constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kPrompt = kTokens / 2;
constexpr std::int64_t kBudget = 512;
constexpr std::int64_t kLogitsRows = 64;  // of the prompt that are scored at once
constexpr double kMust = 0.005;           // of the loss in float32
constexpr float kForced = 1e6F;  // added to the logit of the text's token; log-probabilities are those without it

template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}

std::vector<std::int32_t> read_tokens(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = 0; static_cast<std::int64_t>(tokens.size()) < kTokens && file >> token;)
    tokens.push_back(token);
  if (static_cast<std::int64_t>(tokens.size()) < kTokens)
    throw std::runtime_error(concat(path, " holds ", tokens.size(), " tokens, ", kTokens, " are needed"));
  return tokens;
}

// One sequence, all of whose pages are on the device.
std::shared_ptr<model::SequenceState> resident_sequence(const KvLayout& layout) {
  auto state = std::make_shared<model::SequenceState>();
  sparse::SequenceKv& kv = state->kv;
  kv.id = SequenceId{1};
  kv.mode = sparse::KvMode::kResident;
  kv.keeps_metadata = true;
  kv.device_pages.resize(static_cast<std::size_t>(layout.rows.layers));
  kv.metadata_pages.resize(static_cast<std::size_t>(layout.metadata_layers));
  std::int32_t row_page = 0, metadata_page = 0;
  for (std::int32_t page = 0; page < pages_for_tokens(kTokens); ++page) {
    kv.host_pages.emplace_back(page);
    for (auto& table : kv.device_pages) table.emplace_back(row_page++);
    for (auto& table : kv.metadata_pages) table.emplace_back(metadata_page++);
  }
  return state;
}

// On standard error: what is done, and the seconds since the start.
class Progress {
 public:
  void tell(const char* what, std::int64_t tokens) const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    std::fprintf(stderr, "%s: %lld tokens after %.1f s\n", what, static_cast<long long>(tokens), passed.count());
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct Loss {
  double prompt = 0;     // sums of -log p
  double generated = 0;  // likewise, of the second half
  [[nodiscard]] double mean() const { return (prompt + generated) / static_cast<double>(kTokens - 1); }
};

class Engine {
 public:
  Engine(const std::string& path, kernels::ElementType compute, const std::string& basis_path) {
    const auto checkpoint = take(model::open_checkpoint(path));
    const KvDType dtype = compute == kernels::ElementType::kF32 ? KvDType::kF32 : KvDType::kBF16;
    const KvGeometry rows = model::kv_geometry_of(checkpoint->config(), dtype);
    auto basis = std::make_shared<const sparse::IndexBasis>(take(model::read_index_basis(basis_path, rows)));
    low_rank_ = take(sparse::make_low_rank({.budget = kBudget, .basis = std::move(basis)}));
    layout_ = model::kv_layout_of(checkpoint->config(), dtype, low_rank_->metadata());
    model::DeviceEngine engine = take(model::open_device_engine(compute));
    engine.weights = take(model::load_weights(*checkpoint, *engine.backend));
    const auto pages = static_cast<std::int32_t>(pages_for_tokens(kTokens));
    auto device = take(storage::DevicePool::create(
        layout_, {.rows = pages * layout_.rows.layers, .metadata = pages * layout_.metadata_layers},
        kernels::cuda::device_pool_memory));
    auto host =
        take(storage::HostPool::create(layout_, pages, kernels::cuda::mapped_pool_memory(std::int64_t{8} << 30)));
    runner_ = std::make_unique<model::DeviceStepRunner>(
        std::move(engine), std::move(device), std::move(host), low_rank_,
        model::DeviceRunnerLimits{
            .max_batch = kLogitsRows, .prefill_chunk = kPrompt, .max_tokens = kTokens, .max_selected = kBudget});
  }

  Loss run(const std::vector<std::int32_t>& tokens, bool sparse) {
    Loss loss;
    Progress progress;
    const auto state = resident_sequence(layout_);
    model::StepPlan prompt{.step = 1};
    prompt.sequences.push_back({.state = state,
                                .rows = static_cast<std::int32_t>(kPrompt),
                                .tokens = {tokens.begin(), tokens.begin() + kPrompt},
                                .prefill = true,
                                .prompt_logprobs = 0,
                                .next_token = tokens[kPrompt]});
    for (const model::SampledToken& scored : take_result(prompt).prompt_logprobs) loss.prompt -= scored.logprob;
    progress.tell("prompt", kPrompt);
    for (std::int64_t position = kPrompt; position + 1 < kTokens; ++position) {
      const std::int32_t next = tokens[static_cast<std::size_t>(position) + 1];
      state->sampler = model::Sampler({.temperature = 0, .logit_bias = {{next, kForced}}, .logprobs = 0}, {});
      model::StepPlan plan{.step = static_cast<std::uint64_t>(position)};
      plan.sequences.push_back({.state = state,
                                .first_position = position,
                                .rows = 1,
                                .tokens = {tokens[static_cast<std::size_t>(position)]},
                                .sample = true,
                                .selection = sparse ? low_rank_ : nullptr,
                                .budget = sparse ? kBudget : 0});
      const model::SequenceResult result = take_result(plan);
      if (result.token.token != next) throw std::runtime_error("the text's token was not taken");
      loss.generated -= result.token.logprob;
      if ((position + 1) % 512 == 0) progress.tell("decoded", position + 1);
    }
    return loss;
  }

 private:
  model::SequenceResult take_result(const model::StepPlan& plan) {
    model::StepResult result = runner_->run(plan);
    if (!result.sequences.front().error.empty()) throw std::runtime_error(result.sequences.front().error);
    return std::move(result.sequences.front());
  }

  KvLayout layout_;
  std::shared_ptr<const sparse::SelectionAlgorithm> low_rank_;
  std::unique_ptr<model::DeviceStepRunner> runner_;
};

int run(const std::string& model, const std::string& tokens_path, const std::string& basis) {
  const std::vector<std::int32_t> tokens = read_tokens(tokens_path);
  std::printf("loss of %lld tokens; low-rank: %lld of the tokens before, for the second half\n",
              static_cast<long long>(kTokens), static_cast<long long>(kBudget));
  std::fflush(stdout);
  std::printf("%-9s %-9s %9s %9s %9s %11s %9s\n", "selection", "numbers", "prompt", "decoded", "all", "difference",
              "must");
  Loss exact[2];
  bool good = true;
  for (const auto compute : {kernels::ElementType::kF32, kernels::ElementType::kBF16}) {
    Engine engine(model, compute, basis);
    const bool f32 = compute == kernels::ElementType::kF32;
    for (const bool sparse : {false, true}) {
      const Loss loss = engine.run(tokens, sparse);
      if (f32) exact[sparse] = loss;
      const double difference = loss.mean() / exact[sparse].mean() - 1;
      good = good && std::abs(difference) <= kMust;
      std::printf("%-9s %-9s %9.4f %9.4f %9.4f %+10.3f%% %8.1f%%\n", sparse ? "low-rank" : "dense",
                  f32 ? "f32" : "bf16", loss.prompt / static_cast<double>(kPrompt),
                  loss.generated / static_cast<double>(kTokens - 1 - kPrompt), loss.mean(), 100 * difference,
                  100 * kMust);
      std::fflush(stdout);
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace hotset

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: text_loss MODEL TOKENS BASIS\n");
    return 2;
  }
  try {
    return hotset::run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "text_loss: %s\n", error.what());
    return 1;
  }
}
