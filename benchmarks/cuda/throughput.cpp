// How many tokens a second an engine makes when more sequences come than its KV budget holds: those beyond it wait
// (resident-only), or all run, hot where there is no room (hierarchical). Through the control plane's own classes, with
// dummy weights, synthetic prompts and a model of churn. Also prompts computed with and without write-through, and what
// a request takes of the GPU.
//   throughput [llama|deepseek] [churn] [steps] [GiB of the host pool]   the sweep
//   throughput prompts                                                   Llama-3.1-8B
//   throughput bytes                                                     needs no GPU
// --context N before them: tokens of a sequence (default 32768).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/cuda/step_probe.h"
#include "benchmarks/engine_load.h"
#include "benchmarks/target_models.h"
#include "core/check.h"
#include "kernels/cuda/mapped_pool.h"
#include "model/device_engine.h"
#include "model/dummy_weights.h"
#include "model/kv_layout.h"
#include "storage/host_memory.h"
#include "storage/kv_pools.h"

namespace hotset {
namespace {

namespace cuda = kernels::cuda;

constexpr double kBusBytes = 50e9;      // a second
constexpr double kOperations = 989e12;  // a second, of dense bf16 products
constexpr std::int64_t kContext = 32768, kLeastContext = 8192, kMostContext = 131072;
constexpr std::int64_t kNewTokens = 640;  // more than a sequence makes in all its steps here
constexpr std::int64_t kResidentSequences = 8;
constexpr std::int64_t kMostSequences = 96;
constexpr std::int64_t kBudget = 2048, kHotBuffer = 4096;
constexpr std::int64_t kChunk = 4096;
constexpr std::int64_t kSettling = 12;  // steps: the second one of a shape is captured, buffers fill

template <class T>
T require(Result<T> result) {
  HS_CHECK(result.ok(), result.ok() ? "" : result.error().message.c_str());
  return std::move(result).value();
}

struct BenchOptions {
  model::ModelConfig config;
  KvDType dtype = KvDType::kFp8;
  double churn = 0;
  std::int64_t steps = 48;
  std::int64_t host_bytes = 0;
  std::int64_t context = kContext;
  std::int64_t resident_sequences = kResidentSequences;  // that the device pool holds
};

// Of a sequence that is generating, by the planner's own arithmetic.
struct RequestBytes {
  double rows = 0, metadata = 0, tables = 0;
  [[nodiscard]] double sum() const { return rows + metadata + tables; }
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options);

  void sweep();
  void prefill();

 private:
  struct Point {
    std::int64_t running = 0, waiting = 0;
    actors::KvCounters pools;
    LoadTimes times;
    [[nodiscard]] double tokens_per_second() const { return static_cast<double>(times.tokens) / times.seconds; }
    [[nodiscard]] double step_ms() const { return 1e3 * times.seconds / static_cast<double>(times.steps); }
    [[nodiscard]] double idle() const { return 100 * times.idle_seconds / times.seconds; }
  };
  [[nodiscard]] LoadConfig load_config(KvModeChoice mode, std::int64_t chunk) const;
  [[nodiscard]] std::int64_t most_sequences() const;
  Point measure(EngineLoad& load, std::int64_t concurrency) const;
  void print_parts(EngineLoad& load);

  BenchOptions options_;
  std::shared_ptr<const sparse::SelectionAlgorithm> algorithm_;
  sparse::HotBufferShape hot_shape_;
  KvLayout layout_;
  actors::KvPlannerConfig pools_;
  kernels::DenseBackend* backend_ = nullptr;
  const cuda::DeviceStream* stream_ = nullptr;
  std::unique_ptr<model::DeviceStepRunner> runner_;
};

Bench::Bench(const BenchOptions& options)
    : options_(options),
      algorithm_(target_algorithm(options.config, options.dtype, kBudget)),
      hot_shape_(require(sparse::hot_buffer_shape_for(*algorithm_, std::nullopt, kHotBuffer))),
      layout_(model::kv_layout_of(options.config, options.dtype, algorithm_->metadata())) {
  model::DeviceEngine engine = require(model::open_device_engine(kernels::ElementType::kBF16));
  backend_ = engine.backend.get();
  stream_ = engine.stream.get();
  engine.weights = model::make_dummy_weights(options_.config, *engine.backend, 1);
  const std::int64_t usable = require(storage::usable_memory()).bytes;
  const std::int64_t page_bytes = kPageTokens * layout_.rows.token_bytes() + layout_.metadata_page_bytes();
  const std::int64_t pages = pages_for_tokens(options_.context + 1) + 1;
  pools_.layout = layout_;
  pools_.host_pages = static_cast<std::int32_t>(std::min(options.host_bytes, usable / 10 * 9) / page_bytes);
  pools_.device_pages = static_cast<std::int32_t>(options_.resident_sequences * pages * layout_.rows.layers);
  pools_.metadata_pages = static_cast<std::int32_t>(most_sequences() * pages * layout_.metadata_layers);
  auto device = require(storage::DevicePool::create(
      layout_, {.rows = pools_.device_pages, .metadata = pools_.metadata_pages}, cuda::device_pool_memory));
  const auto start = std::chrono::steady_clock::now();
  auto host = require(storage::HostPool::create(layout_, pools_.host_pages, cuda::mapped_pool_memory(usable)));
  const std::chrono::duration<double> pinning = std::chrono::steady_clock::now() - start;
  runner_ =
      std::make_unique<model::DeviceStepRunner>(std::move(engine), std::move(device), std::move(host), algorithm_,
                                                model::DeviceRunnerLimits{.max_batch = most_sequences(),
                                                                          .prefill_chunk = kChunk,
                                                                          .max_tokens = options_.context + 2,
                                                                          .largest_hot = hot_shape_,
                                                                          .max_selected = algorithm_->max_blocks()});
  runner_->set_selection_model(require(sparse::DeviceSelectionModel::create(
      sparse::ChurnModel{.share = options.churn}, layout_.rows.layers, algorithm_->block_tokens(), *backend_)));
  stream_->synchronize();
  std::printf(
      "%s: device pool %lld tokens (%.1f GB), metadata %.1f GB, host pool %.1f GB (pinned in %.1f s); %.1f GB of the "
      "GPU are free\n",
      options_.config.name.c_str(), static_cast<long long>(options_.resident_sequences * pages * kPageTokens),
      1e-9 * static_cast<double>(pools_.device_pages * layout_.rows.page_bytes()),
      1e-9 * static_cast<double>(pools_.metadata_pages * layout_.metadata.page_bytes()),
      1e-9 * static_cast<double>(pools_.host_pages * page_bytes), pinning.count(),
      1e-9 * static_cast<double>(cuda::free_device_bytes()));
  std::fflush(stdout);
}

// That the host pool holds.
std::int64_t Bench::most_sequences() const {
  return std::clamp<std::int64_t>(pools_.host_pages / pages_for_tokens(options_.context + 1), 1, kMostSequences);
}

LoadConfig Bench::load_config(KvModeChoice mode, std::int64_t chunk) const {
  LoadConfig config;
  config.scheduler = {.max_batch = most_sequences(), .prefill_chunk = chunk, .max_queue = kMostSequences};
  config.pools = pools_;
  config.pools.mode = mode;
  const bool latent = options_.config.latent.has_value();
  config.policy = std::make_shared<const actors::SequencePolicy>(actors::SequencePolicy{
      .selection = {.algorithm = algorithm_, .threshold = latent ? options_.config.indexer->top_k : 4096},
      .hot_shape = hot_shape_,
      .keeps_metadata = true});
  config.vocabulary = options_.config.vocabulary;
  return config;
}

Bench::Point Bench::measure(EngineLoad& load, std::int64_t concurrency) const {
  const std::int64_t more = concurrency - load.running() - load.waiting();
  if (more > 0) load.submit(more, options_.context - kNewTokens, kNewTokens);
  load.settle(kSettling);
  Point point;
  point.times = load.run(options_.steps);
  HS_CHECK(point.times.prompt_tokens == 0, "prompts are done before steps are measured");
  point.running = load.running();
  point.waiting = load.waiting();
  point.pools = load.pools();
  return point;
}

void print_sweep_header(const BenchOptions& options) {
  std::printf(
      "\nDecode throughput, %s: context %lld, FP8 rows, device pool of %lld resident sequences, budget %lld, hot "
      "buffer "
      "%lld,\nchurn %.3f; %lld steps a point\n",
      options.config.name.c_str(), static_cast<long long>(options.context),
      static_cast<long long>(options.resident_sequences), static_cast<long long>(kBudget),
      static_cast<long long>(kHotBuffer), options.churn, static_cast<long long>(options.steps));
  std::printf(
      "ceiling: tokens/s if only the bus took time (50 GB/s); plan: the control plane's own time, beside the device; "
      "idle: of the\ntime, from the end of a step's work on the device until the host was ready to launch the next "
      "one's\n\n");
  std::printf("%9s | %-36s | %-44s | %-26s | ratio\n", "", "resident-only", "hierarchical", "its bus");
  std::printf("%9s | %4s %5s %8s %9s %6s | %4s %4s %8s %9s %6s %8s | %6s %9s %9s | %6s %6s\n", "sequences", "run",
              "wait", "step ms", "tokens/s", "idle %", "run", "hot", "step ms", "tokens/s", "idle %", "plan us",
              "miss %", "MB/step", "ceiling", "run", "tok/s");
}

void Bench::sweep() {
  print_sweep_header(options_);
  std::vector<std::int64_t> points;
  for (std::int64_t n = 1; n < most_sequences(); n *= 2) points.push_back(n);
  points.push_back(most_sequences());
  runner_->set_synthetic_prompts(true);
  std::map<std::int64_t, Point> resident;
  {
    EngineLoad load(load_config(KvModeChoice::kResident, options_.context), *runner_);
    for (const std::int64_t n : points)
      // Beyond the first one that waits, more of them wait.
      resident[n] =
          !resident.empty() && resident.rbegin()->second.waiting > 0 ? resident.rbegin()->second : measure(load, n);
  }
  EngineLoad load(load_config(KvModeChoice::kAuto, options_.context), *runner_);
  double first_ratio = 0, last_ratio = 0;
  for (const std::int64_t n : points) {
    const Point& alone = resident.at(n);
    const Point tiered = measure(load, n);
    const LoadTimes& times = tiered.times;
    const double per_token = static_cast<double>(times.bytes_loaded) / static_cast<double>(times.tokens);
    last_ratio = tiered.tokens_per_second() / alone.tokens_per_second();
    if (n == points.front()) first_ratio = last_ratio;
    std::printf(
        "%9lld | %4lld %5lld %8.3f %9.1f %6.2f | %4lld %4d %8.3f %9.1f %6.2f %8.1f | %6.2f %9.2f %9.0f | %6.2f %6.2f\n",
        static_cast<long long>(n), static_cast<long long>(alone.running), static_cast<long long>(n - alone.running),
        alone.step_ms(), alone.tokens_per_second(), alone.idle(), static_cast<long long>(tiered.running),
        tiered.pools.hot, tiered.step_ms(), tiered.tokens_per_second(), tiered.idle(),
        1e6 * times.plan_seconds / static_cast<double>(times.steps),
        times.selected > 0 ? 100 * static_cast<double>(times.misses) / static_cast<double>(times.selected) : 0.0,
        1e-6 * static_cast<double>(times.bytes_loaded) / static_cast<double>(times.steps),
        per_token > 0 ? kBusBytes / per_token : 0.0,
        static_cast<double>(tiered.running) / static_cast<double>(alone.running), last_ratio);
    std::fflush(stdout);
  }
  std::printf("\nratio at 1 sequence: %.3f (must 0.98); with a full host: %.2f (must 1.8, aim 4)\n", first_ratio,
              last_ratio);
  print_parts(load);
}

// Where a step of the full load goes.
void Bench::print_parts(EngineLoad& load) {
  using enum model::DecodeProbe::Part;
  load.wait();
  StepProbe probe(stream_->get());
  probe.take_parts(true);
  runner_->set_probe(&probe);
  (void)load.run(4);
  load.wait();
  auto parts = probe.parts();
  std::printf(
      "a step of it, ms (events between the parts): inputs %.3f, projections %.3f, MLP or experts %.3f, logits %.3f, "
      "store %.3f, scores %.3f, top-k %.3f, (churn %.3f), diff+IO %.3f, lists %.3f, attend %.3f, sample %.3f\n",
      parts[kInputs], parts[kProjected] + parts[kOutput], parts[kFed], parts[kLogits], parts[kStored], parts[kScored],
      parts[kSelected], parts[kReplaced], parts[kSwapped], parts[kListed], parts[kAttended], parts[kSampled]);
  std::fflush(stdout);
  runner_->set_probe(nullptr);
}

// What a prompt takes of a dense model of grouped attention: products with the weights of its layers, and attention to
// the tokens before. Logits are those of one row.
struct PromptOperations {
  double weights = 0, attention = 0;
};

PromptOperations prompt_operations(const model::ModelConfig& config, std::int64_t tokens) {
  HS_CHECK(!config.latent && !config.experts, "the model has grouped attention and an MLP");
  const double hidden = config.hidden, q_width = static_cast<double>(config.heads) * config.head_dim;
  const double kv_width = static_cast<double>(config.kv_heads) * config.head_dim, layers = config.layers;
  const auto rows = static_cast<double>(tokens);
  const double numbers = hidden * (2 * q_width + 2 * kv_width) + 3 * hidden * static_cast<double>(config.intermediate);
  return {.weights = 2 * rows * layers * numbers, .attention = 2 * 2 * q_width * (rows * rows / 2) * layers};
}

// Prompts of the context's length, one after the other, in turn with and without finished pages going to the host.
void Bench::prefill() {
  constexpr int kTurns = 2;
  runner_->set_synthetic_prompts(false);
  const auto seconds = [&](std::int64_t tokens, bool write_through) {
    LoadConfig config = load_config(KvModeChoice::kResident, kChunk);
    config.write_through = write_through;
    EngineLoad load(config, *runner_);
    load.submit(1, tokens, 1);
    return load.run_to_end().seconds;
  };
  const std::int64_t tokens = options_.context - 1;
  (void)seconds(options_.context / 4, true);  // kernels are loaded, algorithms chosen
  double with = std::numeric_limits<double>::max(), without = with;
  for (int turn = 0; turn < kTurns; ++turn) {
    with = std::min(with, seconds(tokens, true));
    without = std::min(without, seconds(tokens, false));
  }
  std::printf(
      "\nPrompt of %lld tokens, %s, %s rows, chunks of %lld: %.3f s, %.0f tokens/s (must 12,000, aim 20,000); without "
      "write-through %.3f s: ratio %.3f (must 0.95)\n",
      static_cast<long long>(tokens), options_.config.name.c_str(), options_.dtype == KvDType::kFp8 ? "FP8" : "bf16",
      static_cast<long long>(kChunk), with, static_cast<double>(tokens) / with, without, without / with);
  const PromptOperations operations = prompt_operations(options_.config, tokens);
  const double weights = operations.weights / kOperations, attention = operations.attention / kOperations;
  std::printf(
      "floor at %.0f TFLOP/s: products with weights %.3f s + causal attention %.3f s = %.3f s; measured %.2f times "
      "that\n",
      1e-12 * kOperations, weights, attention, weights + attention, with / (weights + attention));
  std::fflush(stdout);
}

struct Request {
  KvDType dtype;
  bool hot;
  std::int32_t index_rank = 0;  // as target_algorithm()
};

RequestBytes request_bytes(const model::ModelConfig& config, const Request& request, std::int64_t tokens) {
  const auto& [dtype, hot, index_rank] = request;
  const auto algorithm = target_algorithm(config, dtype, kBudget, index_rank);
  actors::KvPlannerConfig pools;
  pools.layout = model::kv_layout_of(config, dtype, algorithm->metadata());
  const auto shape = require(sparse::hot_buffer_shape_for(*algorithm, std::nullopt, kHotBuffer));
  const actors::KvDemand demand{.prompt_tokens = tokens,
                                .max_new_tokens = 1,
                                .sparse = true,
                                .keeps_metadata = true,
                                .threshold = kBudget,
                                .hot_shape = shape};
  const actors::KvNeeds needs(pools);
  const actors::DevicePages pages = hot ? needs.hot(demand, tokens) : needs.resident(demand, tokens);
  const auto layers = static_cast<double>(pools.layout.rows.layers);
  constexpr double kWord = 4, kSlotState = 4 + 2;
  return {.rows = static_cast<double>(pages.rows * pools.layout.rows.page_bytes()),
          .metadata = static_cast<double>(pages.metadata * pools.layout.metadata.page_bytes()),
          .tables = kWord * static_cast<double>(pages.rows + pages.metadata + pages_for_tokens(tokens)) +
                    layers * (sizeof(cuda::HotRow) + kWord * kBudget + (hot ? kSlotState * shape.hot_blocks : 0.0))};
}

void print_request_bytes() {
  constexpr std::int64_t kTokens = 131072;
  std::printf("GPU memory of a request of %lld tokens, MB: budget %lld, hot buffer %lld\n\n",
              static_cast<long long>(kTokens), static_cast<long long>(kBudget), static_cast<long long>(kHotBuffer));
  std::printf("%-26s %-5s %-10s %8s | %9s %9s %7s %9s | %s\n", "", "rows", "", "keys", "rows+ring", "metadata",
              "tables", "all", "targets");
  const auto print = [&](const model::ModelConfig& config, const Request& request, const char* targets) {
    const RequestBytes bytes = request_bytes(config, request, kTokens);
    const std::string keys = config.indexer ? "DSA" : request.index_rank == 16 ? "rank 16" : "rank 32";
    std::printf("%-26s %-5s %-10s %8s | %9.1f %9.1f %7.2f %9.1f | %s\n", config.name.c_str(),
                request.dtype == KvDType::kFp8 ? "FP8" : "bf16", request.hot ? "hot" : "resident", keys.c_str(),
                1e-6 * bytes.rows, 1e-6 * bytes.metadata, 1e-6 * bytes.tables, 1e-6 * bytes.sum(), targets);
  };
  const model::ModelConfig llama = llama_8b(), deepseek = deepseek_v32();
  print(llama, {.dtype = KvDType::kFp8, .hot = true}, "must: all <= 900");
  print(llama, {.dtype = KvDType::kFp8, .hot = true, .index_rank = 16}, "aim: all <= 640");
  print(llama, {.dtype = KvDType::kFp8, .hot = false}, "");
  print(llama, {.dtype = KvDType::kBF16, .hot = false}, "");
  print(deepseek, {.dtype = KvDType::kFp8, .hot = true}, "must: rows+ring <= 200; aim: all <= 1250");
  print(deepseek, {.dtype = KvDType::kFp8, .hot = false}, "");
  std::printf("\n");
}

// One prompt at a time.
void run_prompts(std::int64_t context) {
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    const std::int64_t host_bytes = std::int64_t{context > kContext ? 24 : 8} << 30;
    Bench({.config = llama_8b(), .dtype = dtype, .host_bytes = host_bytes, .context = context, .resident_sequences = 2})
        .prefill();
  }
}

void run_sweep(BenchOptions options) {
  HS_CHECK(model::check_model_config(options.config).ok(), "the config is a sound one");
  Bench(options).sweep();
}

}  // namespace
}  // namespace hotset

int main(int argc, char** argv) {
  std::int64_t context = hotset::kContext;
  if (argc > 2 && std::string(argv[1]) == "--context") {
    context = std::atoll(argv[2]);
    if (context < hotset::kLeastContext || context > hotset::kMostContext) {
      std::fprintf(stderr, "throughput: --context is %lld to %lld\n", static_cast<long long>(hotset::kLeastContext),
                   static_cast<long long>(hotset::kMostContext));
      return 2;
    }
    argc -= 2;
    argv += 2;
  }
  const std::string model = argc > 1 ? argv[1] : "llama";
  constexpr const char* kKnown[] = {"llama", "deepseek", "prompts", "bytes"};
  if (std::ranges::find(kKnown, model) == std::end(kKnown)) {
    std::fprintf(stderr, "throughput: there is no %s (README.md says what there is)\n", model.c_str());
    return 2;
  }
  const double churn = argc > 2 ? std::atof(argv[2]) : 0.06;
  const std::int64_t steps = argc > 3 ? std::atoll(argv[3]) : 48;
  const std::int64_t host = argc > 4 ? std::atoll(argv[4]) : 96;
  if (model == "bytes") {
    hotset::print_request_bytes();
  } else if (!hotset::kernels::cuda::gpu_available()) {
    std::printf("no GPU here\n");
  } else if (model == "prompts") {
    hotset::run_prompts(context);
  } else {
    hotset::run_sweep({.config = model == "deepseek" ? hotset::deepseek_v32() : hotset::llama_8b(),
                       .churn = std::clamp(churn, 0.0, 1.0),
                       .steps = std::clamp<std::int64_t>(steps, 1, 56),
                       .host_bytes = host << 30,
                       .context = context});
  }
}
