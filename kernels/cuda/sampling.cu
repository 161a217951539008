// A token is an order key (selection/order_key.cuh) and an id; the better of two has the higher key, then the lower id.
// Filters are cuts in this order. A cut is found by radix select over the key's 11, 11 and 10 bits (counts for top-k,
// integer weights for top-p), then, where only some of the equal keys are in, over 9 and 9 bits of the id.
#include "core/check.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/selection/order_key.cuh"

namespace hotset::kernels::cuda {
namespace {

using Weight = unsigned long long;  // what atomicAdd takes

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kCopies = 2;  // of the histogram: logits crowd into few bins
constexpr int kIdBits = 18;
constexpr unsigned kAll = 0xffffffffU;
constexpr double kWeightOne = 17592186044416.0;  // 2^44

static_assert(kMostSampledVocabulary == std::int64_t{1} << kIdBits);

struct Shared {
  Weight histogram[kCopies][kBins];  // copy 0 becomes their sum
  Weight warp_sums[kWarps];
  double warp_doubles[kWarps];
  std::uint32_t digit;
  Weight left;
  std::uint32_t candidate_keys[kMostAlternatives];
  std::int32_t candidate_ids[kMostAlternatives];
  std::uint32_t candidates;
  std::int32_t token;
  std::int32_t begin, end;
  Weight target;
};

// Kept: keys above `key`, and those at it with ids up to last_id. Key 0 belongs to no logit.
struct Cut {
  std::uint32_t key = 0;
  std::int32_t last_id = -1;

  __device__ bool keeps(std::uint32_t other, std::int32_t id) const {
    return other > key || (other == key && id <= last_id);
  }
};

__device__ __forceinline__ float value_of_key(std::uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0U ? 0x80000000U : 0xffffffffU));
}

// Of a token, against the best one: in [0, 1].
__device__ __forceinline__ double weight_of(float value, float largest, float temperature) {
  if (value >= largest) return 1.0;
  return exp((static_cast<double>(value) - static_cast<double>(largest)) / static_cast<double>(temperature));
}

__device__ __forceinline__ Weight integer_weight(double weight) {
  return weight > 0 ? static_cast<Weight>(__double2ull_rn(weight * kWeightOne)) : Weight{0};
}

__device__ __forceinline__ Weight warp_total(Weight value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

__device__ __forceinline__ Weight warp_prefix(Weight value) {  // inclusive
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int step = 1; step < 32; step *= 2) {
    const Weight other = __shfl_up_sync(kAll, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// The following are called by all threads of the block with the same arguments; all get the result.

// Largest of 64-bit numbers.
__device__ Weight block_max(Shared& shared, Weight value) {
  for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(kAll, value, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared.warp_sums[threadIdx.x % 32];
  for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(kAll, value, step));
  return value;
}

__device__ Weight block_sum(Shared& shared, Weight value) {
  value = warp_total(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_total(shared.warp_sums[threadIdx.x % 32]);
}

__device__ double block_sum(Shared& shared, double value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warp_doubles[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared.warp_doubles[threadIdx.x % 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

// Adds up digits with weights over all ids, then finds the highest digit at which the sum, from the highest down,
// reaches `wanted` (1 ... the total). shared.digit and shared.left (what is wanted in its bin) are the answer.
// visit(id, add) calls add(digit, weight) at most once.
template <class Visit>
__device__ void find_digit(Shared& shared, std::int32_t vocabulary, Weight wanted, const Visit& visit) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // the last search has been read
  for (int i = thread; i < kCopies * kBins; i += kThreads) shared.histogram[i / kBins][i % kBins] = 0;
  __syncthreads();
  Weight* const histogram = shared.histogram[thread / 32 % kCopies];
  const auto add = [&](std::uint32_t digit, Weight weight) {
    if (weight != 0) atomicAdd(histogram + digit, weight);
  };
  for (std::int32_t id = thread; id < vocabulary; id += kThreads) visit(id, add);
  __syncthreads();
  const int pair = kBins / 2 - 1 - thread;  // thread 0 has the two highest bins
  const Weight low = shared.histogram[0][2 * pair] + shared.histogram[1][2 * pair];
  const Weight high = shared.histogram[0][2 * pair + 1] + shared.histogram[1][2 * pair + 1];
  const Weight mine = low + high;
  const Weight sum = warp_prefix(mine);
  if (thread % 32 == 31) shared.warp_sums[thread / 32] = sum;
  __syncthreads();
  const int warp = thread / 32;
  const Weight before_warp = warp_total(thread % 32 < warp ? shared.warp_sums[thread % 32] : 0);
  const Weight before = before_warp + sum - mine;
  if (before < wanted && wanted <= before + mine) {
    const bool in_high = wanted <= before + high;
    shared.digit = static_cast<std::uint32_t>(2 * pair) + (in_high ? 1U : 0U);
    shared.left = in_high ? wanted - before : wanted - before - high;
  }
  __syncthreads();
}

// The shortest beginning of the order that weighs `wanted` (1 ... the total of all candidates). key_of(id): 0 when the
// id is no candidate. weight_of_key(key): of one token.
template <class KeyOf, class WeightOfKey>
__device__ Cut find_cut(Shared& shared, std::int32_t vocabulary, Weight wanted, const KeyOf& key_of,
                        const WeightOfKey& weight_of_key) {
  static_assert(kBins == 1 << 11);
  find_digit(shared, vocabulary, wanted, [&](std::int32_t id, const auto& add) {
    const std::uint32_t key = key_of(id);
    if (key != 0) add(key >> 21, weight_of_key(key));
  });
  std::uint32_t prefix = shared.digit;
  Weight left = shared.left;
  find_digit(shared, vocabulary, left, [&](std::int32_t id, const auto& add) {
    const std::uint32_t key = key_of(id);
    if (key != 0 && key >> 21 == prefix) add(key >> 10 & 0x7ffU, weight_of_key(key));
  });
  prefix = prefix << 11 | shared.digit;
  left = shared.left;
  find_digit(shared, vocabulary, left, [&](std::int32_t id, const auto& add) {
    const std::uint32_t key = key_of(id);
    if (key != 0 && key >> 10 == prefix) add(key & 0x3ffU, weight_of_key(key));
  });
  const std::uint32_t threshold = prefix << 10 | shared.digit;
  const Weight one = weight_of_key(threshold);
  left = (shared.left + one - 1) / one;  // so many of the equal ones, lowest ids first
  // Digits of ids count from the other end.
  find_digit(shared, vocabulary, left, [&](std::int32_t id, const auto& add) {
    if (key_of(id) == threshold) add(0x1ffU - (static_cast<std::uint32_t>(id) >> 9), 1);
  });
  const std::uint32_t high = 0x1ffU - shared.digit;
  left = shared.left;
  find_digit(shared, vocabulary, left, [&](std::int32_t id, const auto& add) {
    if (key_of(id) == threshold && static_cast<std::uint32_t>(id) >> 9 == high) {
      add(0x1ffU - (static_cast<std::uint32_t>(id) & 0x1ffU), 1);
    }
  });
  const std::uint32_t low = 0x1ffU - shared.digit;
  return {threshold, static_cast<std::int32_t>(high << 9 | low)};
}

// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). The first 64 bits.
__device__ Weight philox(std::uint64_t seed, std::uint64_t position) {
  uint4 counter = {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0};
  uint2 key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53U, counter.x);
    const std::uint32_t low0 = 0xD2511F53U * counter.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57U, counter.z);
    const std::uint32_t low1 = 0xCD9E8D57U * counter.z;
    counter = {high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0};
    key.x += 0x9E3779B9U;
    key.y += 0xBB67AE85U;
  }
  return Weight{counter.y} << 32 | counter.x;
}

// The token at random / 2^64 of the total weight, in the order of ids. weight_at(id): 0 for what is not kept; the total
// is not 0. Each round the warps share out the range and the one with the target becomes the next range.
template <class WeightAt>
__device__ std::int32_t draw(Shared& shared, std::int32_t vocabulary, Weight random, const WeightAt& weight_at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::int32_t begin = 0;
  std::int32_t end = vocabulary;
  Weight target = 0;
  bool known = false;  // the target is known once the first round has the total
  do {
    const std::int32_t share = ((end - begin + kWarps - 1) / kWarps + 31) / 32 * 32;
    const std::int32_t my_begin = min(begin + warp * share, end);
    const std::int32_t my_end = min(my_begin + share, end);
    Weight sum = 0;
    for (std::int32_t id = my_begin + lane; id < my_end; id += 32) sum += weight_at(id);
    sum = warp_total(sum);
    __syncthreads();
    if (lane == 0) shared.warp_sums[warp] = sum;
    __syncthreads();
    const Weight mine = shared.warp_sums[lane];
    const Weight until = warp_prefix(mine);
    if (!known) target = __umul64hi(random, __shfl_sync(kAll, until, 31));
    known = true;
    const unsigned found = __ballot_sync(kAll, until > target);
    const int owner = __ffs(static_cast<int>(found)) - 1;
    target -= __shfl_sync(kAll, until - mine, owner);
    begin = min(begin + owner * share, end);
    end = min(begin + share, end);
  } while (end - begin > 32);
  const Weight mine = begin + lane < end ? weight_at(begin + lane) : 0;
  const unsigned found = __ballot_sync(kAll, warp_prefix(mine) > target);
  return begin + __ffs(static_cast<int>(found)) - 1;  // every warp finds the same
}

struct Best {
  float value;
  std::int32_t id;
};

template <class ValueAt>
__device__ Best find_best(Shared& shared, std::int32_t vocabulary, const ValueAt& value_at) {
  Weight best = 0;
  for (std::int32_t id = static_cast<std::int32_t>(threadIdx.x); id < vocabulary; id += kThreads) {
    best = max(best, Weight{order_key(value_at(id))} << 32 | (0xffffffffU - static_cast<std::uint32_t>(id)));
  }
  best = block_max(shared, best);
  const auto id = static_cast<std::int32_t>(0xffffffffU - static_cast<std::uint32_t>(best));
  return {value_of_key(static_cast<std::uint32_t>(best >> 32)), id};
}

__device__ bool logits_usable(const float* logits, std::int32_t vocabulary) {
  int bad = 0;
  int finite = 0;
  for (std::int32_t id = static_cast<std::int32_t>(threadIdx.x); id < vocabulary; id += kThreads) {
    const float x = logits[id];
    bad |= isnan(x) || x == INFINITY ? 1 : 0;
    finite |= x > -INFINITY ? 1 : 0;
  }
  bad = __syncthreads_or(bad);
  finite = __syncthreads_or(finite);
  return bad == 0 && finite != 0;
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

// Logits after penalties and bias: the raw ones where there are none.
__device__ const float* adjusted_logits(const SamplingParams& params, const SamplingRow& settings, const float* logits,
                                        std::int32_t vocabulary) {
  const bool has_counts =
      params.counts != nullptr && settings.slot >= 0 &&
      (settings.repetition_penalty != 1.0F || settings.presence_penalty != 0.0F || settings.frequency_penalty != 0.0F);
  if (!has_counts && settings.bias_count <= 0) return logits;
  float* const adjusted = static_cast<float*>(params.workspace) + std::int64_t{blockIdx.x} * params.vocabulary;
  const std::uint32_t* const counts =
      has_counts ? params.counts + std::int64_t{settings.slot} * params.vocabulary : nullptr;
  for (std::int32_t id = static_cast<std::int32_t>(threadIdx.x); id < vocabulary; id += kThreads) {
    adjusted[id] = has_counts ? penalised(logits[id], counts[id], settings) : logits[id];
  }
  __syncthreads();
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < settings.bias_count; i += kThreads) {
    const std::int32_t id = params.bias_ids[settings.bias_begin + i];
    if (id < 0 || id >= vocabulary) continue;
    adjusted[id] = __fadd_rn(adjusted[id], params.bias_values[settings.bias_begin + i]);
  }
  __syncthreads();
  return adjusted;
}

// The token of a row with a temperature, and what was kept.
__device__ std::int32_t filter_and_draw(Shared& shared, const SamplingParams& params, const SamplingRow& settings,
                                        const float* logits, std::int32_t vocabulary, const Best& best) {
  const float temperature = settings.temperature;
  const auto weight_of_key = [&](std::uint32_t key) {
    return integer_weight(weight_of(value_of_key(key), best.value, temperature));
  };
  Cut cut;  // keeps everything: no key is 0
  if (settings.top_k > 0 && settings.top_k < vocabulary) {
    cut = find_cut(
        shared, vocabulary, static_cast<Weight>(settings.top_k), [&](std::int32_t id) { return order_key(logits[id]); },
        [](std::uint32_t) { return Weight{1}; });
  }
  // The best token stays whatever min_p: something is always left to draw.
  const double least = settings.min_p > 0.0F ? static_cast<double>(fminf(settings.min_p, 1.0F)) : -1.0;
  const auto candidate = [&](std::int32_t id) {
    const std::uint32_t key = order_key(logits[id]);
    if (!cut.keeps(key, id)) return 0U;
    if (least > 0 && weight_of(value_of_key(key), best.value, temperature) < least) return 0U;
    return key;
  };
  Cut nucleus;
  if (settings.top_p < 1.0F) {
    Weight total = 0;
    for (std::int32_t id = static_cast<std::int32_t>(threadIdx.x); id < vocabulary; id += kThreads) {
      const std::uint32_t key = candidate(id);
      if (key != 0) total += weight_of_key(key);
    }
    total = block_sum(shared, total);
    const double wanted = ceil(static_cast<double>(settings.top_p) * static_cast<double>(total));
    nucleus =
        find_cut(shared, vocabulary, min(max(static_cast<Weight>(wanted), Weight{1}), total), candidate, weight_of_key);
  }
  const auto kept_key = [&](std::int32_t id) {
    const std::uint32_t key = candidate(id);
    return key != 0 && nucleus.keeps(key, id) ? key : 0U;
  };
  if (params.kept != nullptr) {
    std::uint8_t* const kept = params.kept + std::int64_t{blockIdx.x} * params.vocabulary;
    for (std::int32_t id = static_cast<std::int32_t>(threadIdx.x); id < vocabulary; id += kThreads) {
      kept[id] = kept_key(id) != 0 ? 1 : 0;
    }
  }
  const Weight random = philox(settings.seed, static_cast<std::uint64_t>(settings.position));
  return draw(shared, vocabulary, random, [&](std::int32_t id) {
    const std::uint32_t key = kept_key(id);
    return key != 0 ? weight_of_key(key) : Weight{0};
  });
}

// The best `count` raw logits, best first, with their log-probabilities.
__device__ void write_alternatives(Shared& shared, const SamplingParams& params, const float* logits,
                                   std::int32_t vocabulary, std::int32_t count, double log_total) {
  const int thread = static_cast<int>(threadIdx.x);
  std::int32_t* const ids = params.top_ids + std::int64_t{blockIdx.x} * kMostAlternatives;
  float* const values = params.top_logprobs + std::int64_t{blockIdx.x} * kMostAlternatives;
  count = min(min(count, kMostAlternatives), vocabulary);
  if (thread >= count && thread < kMostAlternatives) {
    ids[thread] = -1;
    values[thread] = 0.0F;
  }
  if (count <= 0) return;
  const Cut cut = find_cut(
      shared, vocabulary, static_cast<Weight>(count), [&](std::int32_t id) { return order_key(logits[id]); },
      [](std::uint32_t) { return Weight{1}; });
  if (thread == 0) shared.candidates = 0;
  __syncthreads();
  for (std::int32_t id = thread; id < vocabulary; id += kThreads) {
    const std::uint32_t key = order_key(logits[id]);
    if (!cut.keeps(key, id)) continue;
    const std::uint32_t place = atomicAdd(&shared.candidates, 1U);  // any order: ranks follow
    shared.candidate_keys[place] = key;
    shared.candidate_ids[place] = id;
  }
  __syncthreads();
  if (thread < count) {
    const std::uint32_t key = shared.candidate_keys[thread];
    const std::int32_t id = shared.candidate_ids[thread];
    int rank = 0;
    for (int i = 0; i < count; ++i) {
      const std::uint32_t other = shared.candidate_keys[i];
      rank += other > key || (other == key && shared.candidate_ids[i] < id) ? 1 : 0;
    }
    ids[rank] = id;
    values[rank] = static_cast<float>(static_cast<double>(logits[id]) - log_total);
  }
}

__device__ void write_logprobs(Shared& shared, const SamplingParams& params, const SamplingRow& settings,
                               const float* logits, std::int32_t vocabulary, std::int32_t token, float largest) {
  double sum = 0;
  for (std::int32_t id = static_cast<std::int32_t>(threadIdx.x); id < vocabulary; id += kThreads) {
    sum += exp(static_cast<double>(logits[id]) - static_cast<double>(largest));
  }
  const double log_total = static_cast<double>(largest) + log(block_sum(shared, sum));
  if (threadIdx.x == 0 && params.logprobs != nullptr) {
    params.logprobs[blockIdx.x] = static_cast<float>(static_cast<double>(logits[token]) - log_total);
  }
  if (params.top_ids != nullptr && params.top_logprobs != nullptr) {
    write_alternatives(shared, params, logits, vocabulary, settings.alternatives, log_total);
  }
}

__global__ void __launch_bounds__(kThreads, 1) sampling_kernel(const SamplingParams params) {
  __shared__ Shared shared;
  const std::int64_t row = blockIdx.x;
  const SamplingRow settings = params.settings[row];
  if (settings.active == 0) {
    if (threadIdx.x == 0) params.tokens[row] = -1;
    return;
  }
  const auto vocabulary = static_cast<std::int32_t>(params.vocabulary);
  const float* const logits = params.logits + row * params.stride;
  const bool usable = logits_usable(logits, vocabulary);
  if (threadIdx.x == 0) params.usable[row] = usable ? 1 : 0;
  if (!usable) {
    if (threadIdx.x == 0) params.tokens[row] = -1;
    return;
  }
  const float* const adjusted = adjusted_logits(params, settings, logits, vocabulary);
  const auto adjusted_at = [&](std::int32_t id) { return adjusted[id]; };
  const Best best = find_best(shared, vocabulary, adjusted_at);
  const std::int32_t token =
      settings.temperature <= 0.0F ? best.id : filter_and_draw(shared, params, settings, adjusted, vocabulary, best);
  if (settings.alternatives >= 0) {
    float largest = best.value;
    if (adjusted != logits) {
      largest = find_best(shared, vocabulary, [&](std::int32_t id) { return logits[id]; }).value;
    }
    write_logprobs(shared, params, settings, logits, vocabulary, token, largest);
  }
  if (threadIdx.x == 0) {
    params.tokens[row] = token;
    if (params.counts != nullptr && settings.slot >= 0) {
      ++params.counts[std::int64_t{settings.slot} * params.vocabulary + token];
    }
  }
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

}  // namespace

std::size_t sampling_workspace_bytes(std::int64_t rows, std::int64_t vocabulary) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocabulary) * sizeof(float);
}

void launch_sampling(const SamplingParams& given, Stream stream) {
  SamplingParams params = given;
  if (params.rows <= 0) return;
  if (params.stride == 0) params.stride = params.vocabulary;
  HS_CHECK(params.vocabulary >= 1 && params.vocabulary <= kMostSampledVocabulary, "no such vocabulary");
  sampling_kernel<<<static_cast<unsigned>(params.rows), kThreads, 0, stream>>>(params);
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
