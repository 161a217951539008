// One launch: a row is shared by the blocks of a team. They read its logits once (with penalties, once more), meet to
// find the best one, find the filters' cuts (sampling/cuts.cuh), add up the weights of what is kept, and the block with
// the random place draws.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/sampling/block_team.cuh"
#include "kernels/cuda/sampling/cuts.cuh"
#include "kernels/cuda/sampling/row_keys.cuh"
#include "kernels/cuda/sampling/weights.cuh"

namespace hotset::kernels::cuda {
namespace {

using namespace sampling;

constexpr float kBinsOfUnit = 64.0F;       // of logits, or of logits over the temperature: 45 doublings of weight fit
constexpr std::int32_t kFewTokens = 4096;  // of a block: with fewer, more blocks only wait for each other

static_assert(kMostSampledVocabulary == std::int64_t{1} << kIdBits);

struct alignas(16) Shared {  // the keys that are kept lie behind it
  SamplingRow settings;
  TeamShared team;
  CutShared cuts;
};

// What all threads of all blocks of a row know.
struct RowContext {
  const SamplingParams& params;
  const SamplingRow& settings;
  std::int64_t row;
  Team& team;
  uint4* kept;
  std::int32_t vocabulary;

  // Of all blocks of the row.
  [[nodiscard]] __device__ std::int32_t thread() const {
    return team.rank() * kThreads + static_cast<std::int32_t>(threadIdx.x);
  }
  [[nodiscard]] __device__ std::int32_t threads() const { return team.size() * kThreads; }
};

constexpr Weight kBad = 1;  // bits
constexpr Weight kFinite = 2;

struct BestAndFlags {
  __device__ Pair operator()(const Pair& x, const Pair& y) const { return {max(x.a, y.a), x.b | y.b}; }
};

// a: the best token's order; b: kBad when a logit is NaN or plus infinity, kFinite when one is finite.
template <bool kKept>
__device__ Pair load_row(RowKeys<kKept>& row, Team& team) {
  float best = -INFINITY;
  std::int32_t best_id = 0;  // token 0 has at least this value: right where all have it
  bool bad = false;
  row.load([&](std::int32_t id, float x) {  // ascending ids
    if (x > best) {
      best = x;
      best_id = id;
    }
    bad |= isnan(x);
  });
  const Weight flags = (bad || best == INFINITY ? kBad : 0) | (best > -INFINITY ? kFinite : 0);
  return team.fold(Pair{order_of(order_key(best), best_id), flags}, BestAndFlags{});
}

__device__ float penalised(float x, std::uint32_t count, const SamplingRow& settings) {
  if (count == 0) return x;
  if (settings.repetition_penalty != 1.0F) {
    x = x > 0 ? __fdiv_rn(x, settings.repetition_penalty) : __fmul_rn(x, settings.repetition_penalty);
  }
  const std::uint32_t in_output = count & ~kPromptToken;
  if (in_output == 0) return x;
  const float frequency = __fmul_rn(settings.frequency_penalty, static_cast<float>(in_output));
  return __fsub_rn(x, __fadd_rn(settings.presence_penalty, frequency));
}

// Whether counts change the row's logits.
__device__ bool has_penalties(const SamplingParams& params, const SamplingRow& settings) {
  return params.counts != nullptr && settings.slot >= 0 &&
         (settings.repetition_penalty != 1.0F || settings.presence_penalty != 0.0F ||
          settings.frequency_penalty != 0.0F);
}

// Writes the logits after penalties and bias to the workspace. Returns flags of this thread's share of the raw ones.
__device__ Weight adjust(const RowContext& context, const float* logits, float* adjusted) {
  const SamplingParams& params = context.params;
  const SamplingRow& settings = context.settings;
  const std::uint32_t* const counts =
      has_penalties(params, settings) ? params.counts + std::int64_t{settings.slot} * params.vocabulary : nullptr;
  Weight flags = 0;
  for (std::int32_t id = context.thread(); id < context.vocabulary; id += context.threads()) {
    const float x = logits[id];
    flags |= (isnan(x) || x == INFINITY ? kBad : 0) | (x > -INFINITY ? kFinite : 0);
    adjusted[id] = counts != nullptr ? penalised(x, counts[id], settings) : x;
  }
  context.team.sync();
  for (std::int32_t i = context.thread(); i < settings.bias_count; i += context.threads()) {
    const std::int32_t id = params.bias_ids[settings.bias_begin + i];
    if (id < 0 || id >= context.vocabulary) continue;
    adjusted[id] = __fadd_rn(adjusted[id], params.bias_values[settings.bias_begin + i]);
  }
  context.team.sync();
  return flags;
}

struct Filters {
  Cut top_k;  // keeps everything: no key is 0
  Weight least = 0;
  Cut nucleus;

  // top-k and min-p
  [[nodiscard]] __device__ bool candidate(std::uint32_t key, std::int32_t id, const Weights& weights) const {
    return top_k.keeps(key, id) && (least == 0 || weights.of(value_of_key(key)) >= least);
  }
  [[nodiscard]] __device__ bool keeps(std::uint32_t key, std::int32_t id, const Weights& weights) const {
    return nucleus.keeps(key, id) && candidate(key, id, weights);
  }
};

template <bool kKept>
__device__ Filters find_filters(const RowContext& context, Cuts<kKept>& cuts, const RowKeys<kKept>& row, float largest,
                                const Weights& weights) {
  const SamplingRow& settings = context.settings;
  Filters filters;
  bool listed = false;
  Weight order = 0;
  if (settings.top_k > 0 && settings.top_k < context.vocabulary) {
    const auto best = cuts.best(row, static_cast<std::uint32_t>(settings.top_k), Bins{largest, kBinsOfUnit});
    filters.top_k = best.cut;
    listed = best.listed;
    order = best.order;
  }
  // The best token stays whatever min_p: something is always left to draw.
  if (settings.min_p > 0.0F) {
    filters.least = static_cast<Weight>(ceil(static_cast<double>(fminf(settings.min_p, 1.0F)) * kWeightOne));
  }
  if (settings.top_p >= 1.0F) return filters;
  const auto wanted_of = [&](Weight total) {
    const double wanted = ceil(static_cast<double>(settings.top_p) * static_cast<double>(total));
    return min(max(static_cast<Weight>(wanted), Weight{1}), total);
  };
  if (listed) {
    const bool candidate = order != 0 && filters.candidate(key_of_order(order), id_of_order(order), weights);
    const Weight weight = candidate ? weights.of(value_of_key(key_of_order(order))) : 0;
    const Weight total = context.team.fold_block(Pair{weight, 0}, AddPairs{}).a;
    filters.nucleus = cuts.cut_of_sorted(order, weight, wanted_of(total));
  } else {
    filters.nucleus = cuts.heaviest(
        row, [&](std::uint32_t key, std::int32_t id) { return filters.candidate(key, id, weights); },
        [&](std::uint32_t key) { return weights.of(value_of_key(key)); }, wanted_of,
        Bins{largest, kBinsOfUnit / settings.temperature});
  }
  return filters;
}

// The token of [begin, end) at `target` of its weight, in the order of ids; by all threads of one block. Each round the
// warps share out the range and the one with the target becomes the next range.
template <class WeightAt>
__device__ std::int32_t find_in_range(Weight* warp_sums, std::int32_t begin, std::int32_t end, Weight target,
                                      const WeightAt& weight_at) {
  const int lane = lane_id();
  while (end - begin > 32) {
    const std::int32_t share = ((end - begin + kWarps - 1) / kWarps + 31) / 32 * 32;
    const std::int32_t my_begin = min(begin + warp_id() * share, end);
    const std::int32_t my_end = min(my_begin + share, end);
    Weight sum = 0;
    for (std::int32_t id = my_begin + lane; id < my_end; id += 32) sum += weight_at(id);
    sum = warp_total(sum);
    __syncthreads();
    if (lane == 0) warp_sums[warp_id()] = sum;
    __syncthreads();
    const Weight mine = warp_sums[lane];
    const Weight until = warp_prefix(mine);
    const int owner = __ffs(static_cast<int>(__ballot_sync(kAll, until > target))) - 1;
    target -= __shfl_sync(kAll, until - mine, owner);
    begin = min(begin + owner * share, end);
    end = min(begin + share, end);
  }
  const Weight mine = begin + lane < end ? weight_at(begin + lane) : 0;
  const unsigned found = __ballot_sync(kAll, warp_prefix(mine) > target);
  return begin + __ffs(static_cast<int>(found)) - 1;  // every warp finds the same
}

// The token at random / 2^64 of the kept weight, in the order of ids, in the block that has it; -1 in the others.
template <bool kKept>
__device__ std::int32_t draw(const RowContext& context, CutShared& shared, const RowKeys<kKept>& row,
                             const Filters& filters, const Weights& weights) {
  Weight sum = 0;
  row.each([&](std::int32_t id, std::uint32_t key) {
    if (!filters.keeps(key, id, weights)) return;
    sum += weights.of(value_of_key(key));
  });
  sum = warp_total(sum);
  __syncthreads();
  if (lane_id() == 0) shared.warp_sums[warp_id()] = sum;
  __syncthreads();
  const Weight of_warp = shared.warp_sums[lane_id()];
  const Weight until_warp = warp_prefix(of_warp);
  const Weight mine = __shfl_sync(kAll, until_warp, 31);
  Team& team = context.team;
  const Weight of_block = team.tell(Pair{mine, 0}).a;
  const Weight until_block = warp_prefix(lane_id() < team.size() ? of_block : 0);
  const Weight random = philox(context.settings.seed, static_cast<std::uint64_t>(context.settings.position));
  Weight target = __umul64hi(random, __shfl_sync(kAll, until_block, 31));
  const Weight before = __shfl_sync(kAll, until_block, team.rank()) - mine;
  if (target < before || target >= before + mine) return -1;
  target -= before;
  const int owner = __ffs(static_cast<int>(__ballot_sync(kAll, until_warp > target))) - 1;
  target -= __shfl_sync(kAll, until_warp - of_warp, owner);
  if (warp_id() == owner && lane_id() == 0) {
    shared.orders[0] = static_cast<Weight>(row.first_id());
    shared.orders[1] = static_cast<Weight>(row.end_id());
  }
  __syncthreads();
  const auto begin = static_cast<std::int32_t>(shared.orders[0]);
  const auto end = static_cast<std::int32_t>(shared.orders[1]);
  return find_in_range(shared.warp_sums, begin, end, target, [&](std::int32_t id) {
    const float x = row.logits()[id];
    const std::uint32_t key = order_key(x);
    return filters.keeps(key, id, weights) ? weights.of(value_of_key(key)) : Weight{0};
  });
}

template <bool kKept>
__device__ void write_kept(const RowContext& context, const RowKeys<kKept>& row, const Filters& filters,
                           const Weights& weights) {
  if (context.params.kept == nullptr) return;
  std::uint8_t* const kept = context.params.kept + context.row * context.params.vocabulary;
  row.each([&](std::int32_t id, std::uint32_t key) { kept[id] = filters.keeps(key, id, weights) ? 1 : 0; });
}

// The best raw logits, best first, with their log-probabilities.
template <bool kKept>
__device__ void write_alternatives(const RowContext& context, Cuts<kKept>& cuts, const RowKeys<kKept>& row,
                                   float largest, double log_total) {
  const std::int32_t thread = context.thread();
  const std::int32_t count = min(min(context.settings.alternatives, kMostAlternatives), context.vocabulary);
  std::int32_t* const ids = context.params.top_ids + context.row * kMostAlternatives;
  float* const values = context.params.top_logprobs + context.row * kMostAlternatives;
  if (thread >= count && thread < kMostAlternatives) {
    ids[thread] = -1;
    values[thread] = 0.0F;
  }
  if (count <= 0) return;
  auto best = cuts.best(row, static_cast<std::uint32_t>(count), Bins{largest, kBinsOfUnit});
  if (!best.listed) {
    (void)cuts.list(row, [&](std::uint32_t key, std::int32_t id) { return best.cut.keeps(key, id); }, best.order);
  }
  if (thread < count) {  // the first block's
    ids[thread] = id_of_order(best.order);
    values[thread] = static_cast<float>(static_cast<double>(value_of_key(key_of_order(best.order))) - log_total);
  }
}

// `row`: the raw logits.
template <bool kKept>
__device__ void write_logprobs(const RowContext& context, Cuts<kKept>& cuts, const RowKeys<kKept>& row, float largest,
                               std::int32_t token) {
  const Weights weights(largest, 1.0F);
  Pair sum;
  row.each([&](std::int32_t, std::uint32_t key) { sum.a += weights.of(value_of_key(key)); });
  sum = context.team.fold(sum, AddPairs{});
  const double log_total = static_cast<double>(largest) + log(static_cast<double>(sum.a) / kWeightOne);
  if (context.thread() == 0 && context.params.logprobs != nullptr) {
    context.params.logprobs[context.row] = static_cast<float>(static_cast<double>(row.logits()[token]) - log_total);
  }
  if (context.params.top_ids != nullptr && context.params.top_logprobs != nullptr) {
    write_alternatives(context, cuts, row, largest, log_total);
  }
}

template <bool kKept>
__device__ __forceinline__ void sample_row(const RowContext& context, Shared& shared) {
  const SamplingParams& params = context.params;
  const SamplingRow& settings = context.settings;
  Team& team = context.team;
  const float* const logits = params.logits + context.row * params.stride;
  const bool adjusts = has_penalties(params, settings) || settings.bias_count > 0;
  float* const adjusted = static_cast<float*>(params.workspace) + context.row * params.vocabulary;
  Weight flags = adjusts ? adjust(context, logits, adjusted) : 0;
  RowKeys<kKept> row(adjusts ? adjusted : logits, context.vocabulary, team, context.kept);
  const Pair loaded = load_row(row, team);
  // Penalties and bias may make infinities, which are no fault of the row.
  if (adjusts) flags = team.fold(Pair{0, flags}, BestAndFlags{}).b;
  const bool usable = (adjusts ? flags : loaded.b) == kFinite;
  if (context.thread() == 0) params.usable[context.row] = usable ? 1 : 0;
  if (!usable) {
    if (context.thread() == 0) params.tokens[context.row] = -1;
    return;
  }
  float largest = value_of_key(key_of_order(loaded.a));
  Cuts<kKept> cuts(shared.cuts, team);
  std::int32_t token = id_of_order(loaded.a);
  bool mine = team.rank() == 0;  // this block knows the token
  if (settings.temperature > 0.0F) {
    const Weights weights(largest, settings.temperature);
    const Filters filters = find_filters(context, cuts, row, largest, weights);
    write_kept(context, row, filters, weights);
    token = draw(context, shared.cuts, row, filters, weights);
    mine = token >= 0;
  }
  if (mine && threadIdx.x == 0) {
    params.tokens[context.row] = token;
    if (params.counts != nullptr && settings.slot >= 0) {
      ++params.counts[std::int64_t{settings.slot} * params.vocabulary + token];
    }
  }
  if (settings.alternatives < 0) return;
  if (settings.temperature > 0.0F) {
    const Pair told = team.fold(Pair{static_cast<Weight>(token + 1), 0}, BestAndFlags{});
    token = static_cast<std::int32_t>(told.a) - 1;
  }
  if (adjusts) {
    row = RowKeys<kKept>(logits, context.vocabulary, team, context.kept);
    largest = value_of_key(key_of_order(load_row(row, team).a));
  }
  write_logprobs(context, cuts, row, largest, token);
}

template <bool kKept>
__global__ void __launch_bounds__(kThreads, 1) sampling_kernel(const SamplingParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Team team(shared.team);
  let_next_kernel_start();
  wait_for_kernels_before();
  const std::int64_t row = blockIdx.x / team.size();
  if (threadIdx.x == 0) shared.settings = params.settings[row];
  __syncthreads();
  if (shared.settings.active == 0) {
    if (team.rank() == 0 && threadIdx.x == 0) params.tokens[row] = -1;
    return;
  }
  const RowContext context{params,
                           shared.settings,
                           row,
                           team,
                           reinterpret_cast<uint4*>(memory + sizeof(Shared)),
                           static_cast<std::int32_t>(params.vocabulary)};
  sample_row<kKept>(context, shared);
  team.sync();  // no block leaves while another reads its shared memory
}

__global__ void clear_counts_kernel(const SamplingPromptParams params) {
  const std::int64_t id = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (id < params.vocabulary) params.counts[std::int64_t{params.slot} * params.vocabulary + id] = 0;
}

__global__ void mark_prompt_kernel(const SamplingPromptParams params) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= params.count) return;
  const std::int64_t token = params.prompt[i];
  if (token < 0 || token >= params.vocabulary) return;
  // Threads with the same token write the same number.
  params.counts[std::int64_t{params.slot} * params.vocabulary + token] = kPromptToken;
}

unsigned blocks_of(std::int64_t count) { return static_cast<unsigned>((count + 255) / 256); }

// The most for which all rows run at once, fewer for short rows.
int blocks_for(const SamplingParams& params, const LaunchLimits& limits) {
  if (!limits.hopper) return 1;
  int blocks = kMostBlocks;
  if (params.blocks_per_row != 0) return std::min(params.blocks_per_row, blocks);
  // A cluster's blocks lie in one part of the device: large clusters do not fill it.
  while (blocks > 2 && params.rows * blocks > limits.multiprocessors * 5 / 8) blocks /= 2;
  while (blocks > 1 && params.rows * blocks > limits.multiprocessors) blocks /= 2;
  while (blocks > 1 && params.vocabulary <= std::int64_t{blocks / 2} * kFewTokens) blocks /= 2;
  return blocks;
}

}  // namespace

std::size_t sampling_workspace_bytes(std::int64_t rows, std::int64_t vocabulary) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocabulary) * sizeof(float);
}

void launch_sampling(const SamplingParams& given, Stream stream) {
  SamplingParams params = given;
  if (params.rows <= 0) return;
  if (params.stride == 0) params.stride = params.vocabulary;
  HS_CHECK(params.vocabulary >= 1 && params.vocabulary <= kMostSampledVocabulary, "no such vocabulary");
  const LaunchLimits& limits = launch_limits();
  static const bool allowed = [&] {
    for (const auto kernel : {sampling_kernel<true>, sampling_kernel<false>}) {
      HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes));
    }
    return true;
  }();
  HS_CHECK(allowed, "the kernels have all shared memory");
  const int blocks = blocks_for(params, limits);
  HS_CHECK(blocks == 1 || blocks == 2 || blocks == 4 || blocks == 8, "no such number of blocks");
  const std::size_t bytes =
      sizeof(Shared) + std::size_t{kStepBytes} * steps_of(static_cast<std::int32_t>(params.vocabulary), blocks);
  const bool kept = bytes <= static_cast<std::size_t>(limits.shared_bytes);
  launch_dependent(kept ? sampling_kernel<true> : sampling_kernel<false>,
                   dim3(static_cast<unsigned>(params.rows * blocks)), kThreads, kept ? bytes : sizeof(Shared), blocks,
                   stream, params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

void launch_sampling_prompt(const SamplingPromptParams& params, Stream stream) {
  if (params.vocabulary <= 0) return;
  clear_counts_kernel<<<blocks_of(params.vocabulary), 256, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
  if (params.count <= 0) return;
  mark_prompt_kernel<<<blocks_of(params.count), 256, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
