// Decode steps of the whole engine with dummy weights, beside the time that their bytes take.
//   decode_step [llama|deepseek] [churn] [steps]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "benchmarks/cuda/decode_bed.h"
#include "benchmarks/target_models.h"
#include "core/check.h"

namespace hotset {
namespace {

constexpr double kDeviceBytes = 4.2e12;  // a second: what reads reach on an H200
constexpr double kBusBytes = 50e9;
constexpr std::int64_t kHostBytes = std::int64_t{16} << 30;

const char* name(DecodeMode mode) {
  return mode == DecodeMode::kDense ? "dense" : mode == DecodeMode::kResident ? "resident" : "hot";
}

struct Floors {
  double weights, cache, bus;  // ms
  [[nodiscard]] double sum() const { return weights + cache + bus; }
};

Floors floors_of(const DecodeBed& bed, const DecodeCase& one, std::int64_t budget, const DecodeTimes& times) {
  const KvLayout& layout = bed.layout();
  const auto length = static_cast<double>(one.context);
  const double attended = one.mode == DecodeMode::kDense ? length : static_cast<double>(budget);
  double bytes = one.batch * attended * static_cast<double>(layout.rows.token_bytes());
  if (one.mode != DecodeMode::kDense)
    bytes += one.batch * length * static_cast<double>(layout.metadata_page_bytes()) / kPageTokens;
  return {.weights = 1e3 * bed.weight_bytes(one.batch) / kDeviceBytes,
          .cache = 1e3 * bytes / kDeviceBytes,
          .bus = 1e3 * times.bus_bytes / kBusBytes};
}

void print_header(const model::ModelConfig& config, double churn) {
  std::printf("\n%s: milliseconds of a step; %.0f %% of a selection changes; floors at 4.2 TB/s and 50 GB/s\n",
              config.name.c_str(), 100 * churn);
  std::printf(
      "idle: share of the step in which the device waits for the host, one step at a time; parts: of one step with "
      "events in its\ngraph (about 1 us each, and nothing overlaps across them): projections before and behind "
      "attention; MLP or experts with their\nrouter; logits; new rows and metadata; index scores; top-k; diff and page "
      "I/O, a pair of kernels that overlap; lists of slots\n\n");
  std::printf(
      "%7s %-8s %5s | %8s %8s %6s | %8s %8s %7s %7s %7s %7s %7s %7s %7s %7s %7s | %8s %7s %7s %8s %6s | %6s | %8s %7s "
      "%7s\n",
      "context", "mode", "batch", "step", "device", "idle%", "project", "MLP/exp", "logits", "store", "scores", "top-k",
      "(churn)", "diff+IO", "lists", "attend", "sample", "weights", "cache", "bus", "floors", "ratio", "miss%",
      "MB rows", "meta", "tables");
}

void print_case(const DecodeBed& bed, const DecodeCase& one, const DecodeTimes& times, std::int64_t budget) {
  using enum model::DecodeProbe::Part;
  const auto part = [&](model::DecodeProbe::Part which) {
    const auto found = times.parts.find(which);
    return found == times.parts.end() ? 0.0 : found->second;
  };
  const Floors floors = floors_of(bed, one, budget, times);
  const DecodeBytes bytes = bed.bytes(one);
  std::printf(
      "%7lld %-8s %5d | %8.3f %8.3f %6.1f | %8.3f %8.3f %7.3f %7.3f %7.3f %7.3f %7.3f %7.3f %7.3f %7.3f %7.3f | %8.3f "
      "%7.3f %7.3f %8.3f %6.2f | %6.2f | %8.1f %7.1f %7.2f\n",
      static_cast<long long>(one.context), name(one.mode), one.batch, times.step_ms, times.device_ms,
      100 * (1 - times.device_ms / times.step_ms), part(kProjected) + part(kOutput), part(kFed), part(kLogits),
      part(kStored), part(kScored), part(kSelected), part(kReplaced), part(kSwapped), part(kListed), part(kAttended),
      part(kSampled), floors.weights, floors.cache, floors.bus, floors.sum(), times.step_ms / floors.sum(),
      100 * times.misses, 1e-6 * bytes.rows, 1e-6 * bytes.metadata, 1e-6 * bytes.tables);
  std::fflush(stdout);
}

void run(const model::ModelConfig& config, double churn, int steps) {
  const bool latent = config.latent.has_value();
  HS_CHECK(model::check_model_config(config).ok(), "the config is a sound one");
  const DecodeBedOptions options{.config = config,
                                 .dtype = latent ? KvDType::kFp8 : KvDType::kBF16,
                                 .max_batch = 32,
                                 .max_tokens = 131072,
                                 .host_bytes = kHostBytes};
  DecodeBed bed(options);
  print_header(config, churn);
  for (const std::int64_t context : {32768, 131072}) {
    for (const DecodeMode mode : {DecodeMode::kDense, DecodeMode::kResident, DecodeMode::kHot}) {
      if (latent && mode == DecodeMode::kDense) continue;  // the model always selects
      for (const std::int32_t batch : {1, 4, 8, 16, 32}) {
        const DecodeCase one{.context = context, .batch = batch, .mode = mode};
        const bool largest = !bed.fits({.context = context, .batch = 2 * batch, .mode = mode});
        if (!bed.fits(one) || (batch != 1 && batch != 8 && batch != 32 && !largest)) continue;
        print_case(bed, one, bed.run(one, churn, steps), options.budget);
      }
    }
  }
}

}  // namespace
}  // namespace hotset

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "llama";
  constexpr const char* kKnown[] = {"llama", "deepseek"};
  if (std::ranges::find(kKnown, model) == std::end(kKnown)) {
    std::fprintf(stderr, "decode_step: there is no %s (README.md says what there is)\n", model.c_str());
    return 2;
  }
  const double churn = argc > 2 ? std::atof(argv[2]) : 0.1;
  const int steps = argc > 3 ? std::atoi(argv[3]) : 40;
  if (!hotset::kernels::cuda::gpu_available()) {
    std::printf("no GPU here\n");
    return 0;
  }
  hotset::run(model == "deepseek" ? hotset::deepseek_v32() : hotset::llama_8b(), churn, std::clamp(steps, 1, 300));
}
