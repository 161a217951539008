// What sparse selection costs on real text, beside dense attention: the loss of a text's second half, the share of the
// true attention mass that the selections hold, and a needle test; prints Markdown tables. Method and goals:
// docs/results, the newest page on fidelity.
//
// Usage: fidelity --model FILE --text FILE [--needle] [--trace FILE] ... (--help). The basis of low-rank index keys is
// the one that a server would use: beside the model, in the cache folder, or made from the built-in text and kept
// there.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "actors/text_sources.h"
#include "benchmarks/fidelity_engine.h"
#include "benchmarks/fidelity_needle.h"
#include "benchmarks/fidelity_text.h"
#include "core/concat.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/index_basis_source.h"
#include "model/kv_layout.h"
#include "model/mapped_file.h"
#include "sparse/low_rank.h"
#include "sparse/quest.h"
#include "sparse/selection_trace.h"

namespace hotset::fidelity {
namespace {

constexpr std::int64_t kBlock = 16;  // the server's defaults
constexpr std::int64_t kWindow = 64;
constexpr std::int64_t kSink = 4;
constexpr std::int32_t kTraceRing = 128;
constexpr std::uint64_t kMaxTextBytes = 64 << 20;

struct Options {
  std::string model, text, trace, cache_dir;
  std::int64_t tokens = 8192;
  std::vector<std::string> algorithms{"lowrank", "quest", "streaming"};
  std::vector<std::string> budgets{"1/16", "1/8", "1/4"};
  std::vector<std::int64_t> ranks{16, 32};
  std::string combine = "max";
  std::int64_t mass_every = 64;
  std::int64_t trace_rows = 1536;
  bool needle = false;
  bool no_text = false;
  int threads = 2;
};

template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}

double parse_share(const std::string& text) {
  const auto slash = text.find('/');
  if (slash == text.npos) throw std::runtime_error("--budgets are fractions such as 1/8");
  const double share = std::stod(text.substr(0, slash)) / std::stod(text.substr(slash + 1));
  if (!(share > 0 && share <= 1)) throw std::runtime_error("--budgets lie above 0 and up to 1");
  return share;
}

kernels::HeadCombine parse_combine(const std::string& name) {
  if (name == "max") return kernels::HeadCombine::kMax;
  return name == "mean" ? kernels::HeadCombine::kMean : kernels::HeadCombine::kSoftmax;
}

// The rows of the table, each at every budget.
class ConfigurationList {
 public:
  ConfigurationList(const Options& options, const KvGeometry& rows) : options_(options), rows_(rows) {}

  void add_low_rank(std::shared_ptr<const sparse::IndexBasis> basis) {
    const std::string name = concat("lowrank, rank ", basis->rank);
    add_scored(name, take(sparse::make_low_rank(
                         {.sink = kSink, .window = kWindow, .budget = options_.tokens, .basis = std::move(basis)})));
  }
  void add_quest() {
    add_scored(concat("quest, block ", kBlock, ", ", options_.combine),
               take(sparse::make_quest({.block_tokens = kBlock,
                                        .window = kWindow,
                                        .budget = options_.tokens,
                                        .combine = parse_combine(options_.combine),
                                        .kv_heads = rows_.kv_heads,
                                        .key_dim = rows_.key_dim})));
  }
  void add_streaming() {
    for (const std::string& budget : options_.budgets) {
      const double share = parse_share(budget);
      auto algorithm = take(sparse::make_streaming(kBlock, tokens_of(share)));
      const std::int64_t blocks = algorithm->max_blocks();
      list_.push_back({"streaming, window = budget", std::move(algorithm), share, blocks});
    }
  }
  [[nodiscard]] std::vector<Configuration> take_list() { return std::move(list_); }

 private:
  [[nodiscard]] std::int64_t tokens_of(double share) const {
    return std::llround(share * static_cast<double>(options_.tokens));
  }
  void add_scored(const std::string& name, const Algorithm& algorithm) {
    for (const std::string& budget : options_.budgets) {
      const double share = parse_share(budget);
      const std::int64_t blocks = tokens_of(share) / algorithm->block_tokens();
      if (blocks < algorithm->forced_blocks())
        throw std::runtime_error(concat("a budget of ", budget, " is less than what is always attended"));
      list_.push_back({name, algorithm, share, blocks});
    }
  }

  const Options& options_;
  KvGeometry rows_;
  std::vector<Configuration> list_;
};

struct Setup {
  std::shared_ptr<const model::Tokenizer> tokenizer;
  std::vector<std::int32_t> tokens;  // of the text, as many as asked for
  std::unique_ptr<Engine> engine;
};

std::vector<std::int32_t> read_tokens(const model::Tokenizer& tokenizer, const Options& options) {
  const std::string text = take(model::read_text_file(options.text, kMaxTextBytes));
  auto tokens = take(tokenizer.encode(text, {.parse_special = false}));
  if (static_cast<std::int64_t>(tokens.size()) < options.tokens)
    throw std::runtime_error(concat("the text has ", tokens.size(), " tokens, ", options.tokens, " are asked for"));
  tokens.resize(static_cast<std::size_t>(options.tokens));
  return tokens;
}

Setup set_up(const Options& options) {
  Setup setup;
  const auto checkpoint = take(model::open_checkpoint(options.model));
  setup.tokenizer = take(actors::load_tokenizer(checkpoint->tokenizer_source()));
  setup.tokens = read_tokens(*setup.tokenizer, options);
  auto backend = kernels::make_cpu_backend(options.threads);
  auto weights = take(model::load_weights(*checkpoint, *backend));
  if (weights->config.latent) throw std::runtime_error("the model's rows are latent: the benchmark is for GQA models");
  if (options.tokens > weights->config.max_positions) throw std::runtime_error("the model's context is shorter");
  ConfigurationList list(options, model::kv_geometry_of(weights->config, KvDType::kF32));
  for (const std::string& algorithm : options.algorithms) {
    if (algorithm == "quest") list.add_quest();
    if (algorithm == "streaming") list.add_streaming();
    if (algorithm != "lowrank") continue;
    for (const std::int64_t rank : options.ranks) {
      const auto calibrate_model = [&](std::span<const std::int32_t> tokens, std::int64_t wanted,
                                       const model::CalibrationProgress& progress) {
        return model::calibrate(*weights, *backend, tokens, wanted, progress);
      };
      auto found = take(model::find_or_calibrate(
          *checkpoint, calibrate_model,
          {.model = options.model, .rank = rank, .cache_dir = options.cache_dir, .tokenizer = setup.tokenizer.get()}));
      list.add_low_rank(found.value().basis);  // there is a tokenizer
    }
  }
  std::vector<Configuration> configurations = list.take_list();
  const auto rows = static_cast<std::int64_t>(configurations.size());
  // Text: the whole of it, and each configuration's second half. Needle: the filler, the haystack, and the tails.
  const std::int64_t half = options.tokens - half_of(options.tokens) + kPageTokens;
  const EngineLimits limits{.tokens = options.tokens,
                            .pool_tokens = 2 * options.tokens + (rows + 1) * std::max(half, kNeedleTail),
                            .batch = rows + 1,
                            .mass_every = options.mass_every};
  setup.engine = std::make_unique<Engine>(std::move(weights), std::move(backend), std::move(configurations), limits);
  return setup;
}

// One line per algorithm, one column per budget.
template <class Cell>
void print_table(std::span<const Configuration> configurations, const Options& options, const std::string& dense,
                 Cell&& cell) {
  std::string rule = "|---|";
  std::printf("\n| |");
  for (const std::string& budget : options.budgets) {
    std::printf(" %s |", budget.c_str());
    rule += "---|";
  }
  std::printf("\n%s\n| dense | %s |", rule.c_str(), dense.c_str());
  for (std::size_t i = 1; i < options.budgets.size(); ++i) std::printf(" |");
  for (std::size_t i = 0; i < configurations.size(); ++i) {
    if (i % options.budgets.size() == 0) std::printf("\n| %s |", configurations[i].name.c_str());
    std::printf(" %s |", cell(i).c_str());
  }
  std::printf("\n");
}

template <class... Parts>
std::string format(const char* pattern, Parts... parts) {
  char text[128];
  std::snprintf(text, sizeof text, pattern, parts...);
  return text;
}

// The writer of --trace, null without; sets what is recorded.
std::unique_ptr<sparse::TraceWriter> start_trace(const Engine& engine, const Options& options, Recording& recording) {
  if (options.trace.empty()) return nullptr;
  const auto configurations = engine.configurations();
  const auto traced = std::ranges::find_if(configurations, [](const Configuration& configuration) {
    return configuration.algorithm->name() == "lowrank" && configuration.share == 0.125;
  });
  if (traced == configurations.end()) throw std::runtime_error("--trace records lowrank at 1/8: ask for both");
  auto writer = take(
      sparse::TraceWriter::create(options.trace, {.model = std::filesystem::path(options.model).filename().string(),
                                                  .algorithm = concat(traced->name, ", ", traced->budget, " tokens"),
                                                  .layers = engine.layers(),
                                                  .hot_ring = kTraceRing}));
  recording = {.observer = writer.get(),
               .configuration = static_cast<std::size_t>(traced - configurations.begin()),
               .rows = options.trace_rows};
  return writer;
}

void run_text(Setup& setup, const Options& options) {
  Recording recording;
  const auto writer = start_trace(*setup.engine, options, recording);
  const TextResult result = measure_text(*setup.engine, setup.tokens, recording);
  std::printf("\nLoss: NLL of %lld tokens (difference from dense, its standard error; share of the attention mass)\n",
              static_cast<long long>(result.scored));
  print_table(setup.engine->configurations(), options, format("%.4f", result.dense_nll), [&](std::size_t i) {
    const TextLoss& loss = result.losses[i];
    return format("%.4f (%+.2f ± %.2f %%; %.3f)", loss.nll, 100 * loss.difference, 100 * loss.error, loss.mass);
  });
}

void run_needle(Setup& setup, const Options& options) {
  const NeedleResult result = measure_needle(*setup.engine, *setup.tokenizer, setup.tokens, options.tokens);
  std::printf(
      "\nNeedle: questions answered of %d; NLL of the facts' tokens (difference from dense, its standard error)\n",
      result.questions);
  print_table(setup.engine->configurations(), options, format("%d; %.3f", result.dense.answered, result.dense.nll),
              [&](std::size_t i) {
                const NeedleScore& score = result.scores[i];
                return format("%d; %.3f (%+.3f ± %.3f)", score.answered, score.nll, score.difference, score.error);
              });
}

int run(const Options& options) {
  if (options.tokens < 4 * kNeedleTail) throw std::runtime_error(concat("--tokens is at least ", 4 * kNeedleTail));
  Setup setup = set_up(options);
  std::printf("%s, %s: %lld tokens; sink %lld, window %lld, block %lld\n",
              std::filesystem::path(options.model).filename().c_str(),
              std::filesystem::path(options.text).filename().c_str(), static_cast<long long>(options.tokens),
              static_cast<long long>(kSink), static_cast<long long>(kWindow), static_cast<long long>(kBlock));
  if (!options.no_text) run_text(setup, options);
  std::fflush(stdout);
  if (options.needle) run_needle(setup, options);
  return 0;
}

}  // namespace
}  // namespace hotset::fidelity

int main(int argc, char** argv) {
  using hotset::fidelity::Options;
  Options options;
  CLI::App app("What sparse selection costs on a text, beside dense attention");
  app.add_option("--model", options.model, "checkpoint: a GGUF file or a folder")->required();
  app.add_option("--text", options.text, "UTF-8 text; its first tokens are used")->required();
  app.add_option("--tokens", options.tokens, "of the text")->capture_default_str();
  app.add_option("--algorithms", options.algorithms)
      ->delimiter(',')
      ->check(CLI::IsMember({"lowrank", "quest", "streaming"}))
      ->capture_default_str();
  app.add_option("--budgets", options.budgets, "shares of --tokens, forced tokens included")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--ranks", options.ranks, "of low-rank index keys")->delimiter(',')->capture_default_str();
  app.add_option("--combine", options.combine, "Quest's heads")->check(CLI::IsMember({"max", "mean", "softmax"}));
  app.add_option("--mass-every", options.mass_every, "measure the attention mass of every n-th row")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--cache-dir", options.cache_dir, "where bases are kept, as the server's option");
  app.add_flag("--needle", options.needle, "the needle test, with the text as filler");
  app.add_flag("--no-text", options.no_text, "leave the text's loss out");
  app.add_option("--trace", options.trace, "records the selections of lowrank (first rank) at 1/8");
  app.add_option("--trace-rows", options.trace_rows, "rows to record, from the second half's first on")
      ->capture_default_str();
  app.add_option("--threads", options.threads)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return hotset::fidelity::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fidelity: %s\n", error.what());
    return 1;
  }
}
