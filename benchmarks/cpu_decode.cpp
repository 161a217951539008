// Tokens per second of the CPU data plane on a real checkpoint, without server: prompt of 512 tokens, decode of 128
// tokens from an empty and from a 512-token context, and four sequences decoded together. benchmarks/cpu_decode.py puts
// llama.cpp's figures beside these, in one run.
//
// Usage: cpu_decode MODEL THREADS[,THREADS...] [ROUNDS]. One line per measurement: threads, case, tokens/s of every
// round.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/kv_layout.h"
#include "model/step_runner.h"

namespace hotset {
namespace {

constexpr std::int64_t kPrefillChunk = 256;  // the server's default
constexpr std::int64_t kDecodeTokens = 128;
constexpr std::int32_t kPoolPages = 64;  // host pages: 4,096 tokens in all

class Bench {
 public:
  Bench(model::Checkpoint& checkpoint, int threads) {
    auto backend = kernels::make_cpu_backend(threads);
    auto weights = model::load_weights(checkpoint, *backend);
    if (!weights.ok()) throw std::runtime_error(weights.error().message);
    vocabulary_ = weights.value()->config.vocabulary;
    const KvGeometry geometry = model::kv_geometry_of(weights.value()->config, KvDType::kF32);
    layers_ = geometry.layers;
    auto device =
        storage::DevicePool::create(KvLayout::uniform(geometry), {.rows = kPoolPages * layers_, .metadata = 0});
    auto host = storage::HostPool::create(KvLayout::uniform(geometry), kPoolPages);
    if (!device.ok() || !host.ok()) throw std::runtime_error("the pools do not fit the memory");
    runner_ = std::make_unique<model::StepRunner>(
        std::move(weights).value(), std::move(backend), std::move(device).value(), std::move(host).value(), nullptr,
        model::StepRunnerLimits{.max_batch = 16, .prefill_chunk = kPrefillChunk});
  }

  double prompt_rate(std::int64_t tokens) {
    start(1, tokens + 1);
    return static_cast<double>(tokens) / seconds([&] { prefill(tokens); });
  }

  double decode_rate(std::size_t sequences, std::int64_t context) {
    start(sequences, std::max<std::int64_t>(context, 1) + kDecodeTokens);
    prefill(std::max<std::int64_t>(context, 1));
    return static_cast<double>(sequences * kDecodeTokens) / seconds([&] {
             for (std::int64_t i = 0; i < kDecodeTokens; ++i) decode();
           });
  }

 private:
  template <class Work>
  static double seconds(Work&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // Every sequence gets all the pages of its length at once: the benchmark measures steps, not planning.
  void start(std::size_t sequences, std::int64_t length) {
    states_.clear();
    std::int32_t next = 0;
    for (std::size_t i = 0; i < sequences; ++i) {
      auto state = std::make_shared<model::SequenceState>();
      state->kv.id = SequenceId{i + 1};
      state->sampler = model::Sampler({.temperature = 0}, {});
      const auto pages = static_cast<std::int32_t>(pages_for_tokens(length));
      sparse::KvOp host{.kind = sparse::KvOp::Kind::kAddHostPages};
      sparse::KvOp device{.kind = sparse::KvOp::Kind::kEnterResident};
      for (std::int32_t page = 0; page < pages; ++page) host.host_pages.push_back(HostPage{next + page});
      for (std::int32_t page = 0; page < pages * layers_; ++page)
        device.device_pages.push_back(PageId{next * layers_ + page});
      next += pages;
      states_.push_back(std::move(state));
      first_ops_.push_back({std::move(host), std::move(device)});
    }
    if (next > kPoolPages) throw std::runtime_error("the benchmark's pools are too small");
  }

  void prefill(std::int64_t tokens) {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      for (std::int64_t first = 0; first < tokens; first += kPrefillChunk) {
        const std::int64_t end = std::min(tokens, first + kPrefillChunk);
        model::SequenceStep step{.state = states_[i],
                                 .first_position = first,
                                 .rows = static_cast<std::int32_t>(end - first),
                                 .prefill = true,
                                 .sample = end == tokens};
        for (std::int64_t t = first; t < end; ++t) {
          step.tokens.push_back(
              static_cast<std::int32_t>(3 + (t * 7919 + static_cast<std::int64_t>(i) * 31) % (vocabulary_ - 3)));
        }
        if (first == 0) step.ops = std::move(first_ops_[i]);
        (void)runner_->run({.step = ++step_, .sequences = {std::move(step)}});
      }
    }
    first_ops_.clear();
  }

  void decode() {
    model::StepPlan plan{.step = ++step_};
    for (const auto& state : states_) {
      plan.sequences.push_back({.state = state, .first_position = state->kv.length, .rows = 1, .sample = true});
    }
    (void)runner_->run(plan);
  }

  std::int64_t vocabulary_ = 0;
  std::int32_t layers_ = 0;
  std::unique_ptr<model::StepRunner> runner_;
  std::vector<std::shared_ptr<model::SequenceState>> states_;
  std::vector<std::vector<sparse::KvOp>> first_ops_;
  std::uint64_t step_ = 0;
};

int run(const char* path, std::string_view threads_list, int rounds) {
  auto checkpoint = model::open_checkpoint(path);
  if (!checkpoint.ok()) {
    std::fprintf(stderr, "cpu_decode: %s\n", checkpoint.error().message.c_str());
    return 1;
  }
  while (!threads_list.empty()) {
    int threads = 0;
    const auto parsed = std::from_chars(threads_list.data(), threads_list.data() + threads_list.size(), threads);
    if (parsed.ec != std::errc{} || threads < 1) {
      std::fprintf(stderr, "cpu_decode: THREADS is a list of numbers above 0\n");
      return 1;
    }
    threads_list.remove_prefix(
        std::min(threads_list.size(), static_cast<std::size_t>(parsed.ptr - threads_list.data()) + 1));
    Bench bench(*checkpoint.value(), threads);
    const auto report = [&](const char* name, auto&& measure) {
      measure();  // warm up
      std::printf("%d %s", threads, name);
      for (int i = 0; i < rounds; ++i) std::printf(" %.1f", measure());
      std::printf("\n");
      std::fflush(stdout);
    };
    report("pp512", [&] { return bench.prompt_rate(512); });
    report("tg128", [&] { return bench.decode_rate(1, 0); });
    report("tg128@512", [&] { return bench.decode_rate(1, 512); });
    report("4x128", [&] { return bench.decode_rate(4, 0); });
  }
  return 0;
}

}  // namespace
}  // namespace hotset

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: cpu_decode MODEL THREADS[,THREADS...] [ROUNDS]\n");
    return 1;
  }
  try {
    return hotset::run(argv[1], argv[2], argc > 3 ? std::max(1, std::atoi(argv[3])) : 5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpu_decode: %s\n", error.what());
    return 1;
  }
}
