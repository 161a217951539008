#include "actors/gpu_options.h"

#include <algorithm>

#include "core/concat.h"

namespace hotset::actors {
namespace {

// Options that only make sense where the answers are random anyway.
Result<void> check_measuring(const ServerConfig& config) {
  const bool dummy = config.load_format == "dummy";
  if (config.synthetic_prompts && !dummy)
    return invalid_argument("--fill-kv synthetic makes answers random: use --load-format dummy with it", "--fill-kv");
  if (config.selection_model.empty()) return {};
  if (!dummy) {
    return invalid_argument("--selection-model makes answers random: use --load-format dummy with it",
                            "--selection-model");
  }
  if (config.algorithm == "dense") {
    return invalid_argument("--selection-model: with --algorithm dense there are no selections", "--selection-model");
  }
  return {};
}

Result<void> check_weight_type(const ServerConfig& config, const GpuTakes& takes) {
  const auto refused = [](const char* what) -> Result<void> {
    return invalid_argument(concat("--weight-dtype ", what), "--weight-dtype");
  };
  const bool f32 = takes.compute == kernels::ElementType::kF32;
  if (config.weight_type == WeightTypeChoice::kBF16 && f32)
    return refused("bf16: with --compute-dtype f32 all weights are f32");
  if (config.weight_type != WeightTypeChoice::kFp8 || takes.fp8_weights) return {};
  if (f32) return refused("fp8: with --compute-dtype f32 all weights are f32");
  return refused("fp8 needs a GPU of compute capability 9.0 (Hopper): use auto");
}

}  // namespace

Result<void> check_gpu_options(const ServerConfig& config, const GpuTakes& takes) {
  if (config.verify_rate > 0)
    return invalid_argument("--verify-rate compares on the CPU: use --device cpu with it", "--verify-rate");
  if (auto measuring = check_measuring(config); !measuring) return measuring.error();
  if (config.max_batch > takes.batch) {
    return invalid_argument(concat("--max-batch ", config.max_batch, ": a GPU step has at most ", takes.batch),
                            "--max-batch");
  }
  if (config.kv_dtype == KvDTypeChoice::kFp8 && !takes.fp8_rows)
    return invalid_argument("--kv-dtype fp8 needs a GPU of compute capability 9.0 (Hopper): use bf16", "--kv-dtype");
  return check_weight_type(config, takes);
}

Result<void> check_fp8_matrices(const ServerConfig& config, std::size_t fp8_matrices) {
  if (config.weight_type != WeightTypeChoice::kFp8 || fp8_matrices > 0) return {};
  return invalid_argument(
      "--weight-dtype fp8: the model has no FP8 weights that this GPU multiplies by, and none are made: use auto",
      "--weight-dtype");
}

Result<std::int64_t> gpu_pool_bytes(const ServerConfig& config, const GpuMemory& memory) {
  std::int64_t usable = memory.free / 10 * 9;
  if (config.gpu_memory_bytes > 0) {
    usable = config.gpu_memory_bytes - memory.loaded;
    if (memory.loaded > 0) usable = std::min(usable, memory.free);  // code takes a little beside the weights
    if (usable > memory.free) {
      return Error{ErrorCode::kOverloaded,
                   concat("--gpu-memory ", gib(config.gpu_memory_bytes), ": the GPU has ", gib(memory.free), " free"),
                   "--gpu-memory"};
    }
  }
  const std::int64_t pools = usable - memory.weights - memory.workspace;
  if (pools > 0) return pools;
  return Error{
      ErrorCode::kOverloaded,
      concat("the model does not fit the GPU: ", gib(usable + memory.loaded), " may be used, the weights take ",
             gib(memory.loaded + memory.weights), ", the workspace ", gib(memory.workspace),
             "; a smaller --max-batch, --prefill-chunk or --max-context takes less workspace, and --device "
             "cpu runs it on the processor"),
      "--gpu-memory"};
}

std::int64_t host_pool_bytes(std::int64_t usable, std::int64_t pinned_elsewhere, std::optional<std::int64_t> pinnable) {
  const std::int64_t pools = std::max<std::int64_t>(usable - pinned_elsewhere, 0);
  return std::min(pools, pinnable.value_or(pools));
}

std::string gib(std::int64_t bytes) { return concat(bytes >> 30, ".", (bytes >> 20) % 1024 * 10 / 1024, " GiB"); }

}  // namespace hotset::actors
