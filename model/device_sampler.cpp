#include "model/device_sampler.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/sampling.h"

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F;
}

}  // namespace

DeviceSampler::DeviceSampler(kernels::DenseBackend& backend, const cuda::DeviceStream& stream, std::int64_t vocabulary,
                             std::int64_t max_rows, std::int64_t max_sequences)
    : stream_(stream),
      vocabulary_(vocabulary),
      max_rows_(max_rows),
      result_bytes_(round_up(max_rows * (4 + 4 + cuda::kMostAlternatives * 8 + 1), 16)),
      alternatives_(static_cast<std::size_t>(2 * max_rows)),
      counts_(backend.array<std::uint32_t>(max_sequences * vocabulary)),
      slots_(std::make_shared<Slots>()),
      device_results_(backend.allocate(result_bytes_)),
      host_results_(cuda::allocate_pinned(2 * result_bytes_)) {
  slots_->free.resize(static_cast<std::size_t>(max_sequences));
  std::iota(slots_->free.rbegin(), slots_->free.rend(), 0);
}

DeviceSampler::Results DeviceSampler::results_at(void* memory) const {
  Results out;
  out.tokens = static_cast<std::int32_t*>(memory);
  out.logprobs = reinterpret_cast<float*>(out.tokens + max_rows_);
  out.top_ids = reinterpret_cast<std::int32_t*>(out.logprobs + max_rows_);
  out.top_logprobs = reinterpret_cast<float*>(out.top_ids + max_rows_ * cuda::kMostAlternatives);
  out.usable = reinterpret_cast<std::uint8_t*>(out.top_logprobs + max_rows_ * cuda::kMostAlternatives);
  return out;
}

std::byte* DeviceSampler::host_half(std::int64_t half) const {
  return static_cast<std::byte*>(host_results_->data()) + half * result_bytes_;
}

void DeviceSampler::begin_step() {
  half_ = 1 - half_;
  used_ = 0;
}

void DeviceSampler::see_prompt(SequenceState& state, std::span<const std::int32_t> tokens, bool complete,
                               cuda::PinnedBlock& block) {
  if (!has_penalties(state.sampler.params())) return;
  if (state.sampling == nullptr) {
    const std::scoped_lock lock(slots_->mutex);
    HS_CHECK(!slots_->free.empty(), "no more sequences have penalties than run");
    const auto give_back = [slots = slots_](std::int32_t* slot) {
      const std::scoped_lock again(slots->mutex);
      slots->free.push_back(*slot);
      delete slot;
    };
    state.sampling = std::make_shared<DeviceSampling>();
    state.sampling->slot = {new std::int32_t(slots_->free.back()), give_back};
    slots_->free.pop_back();
  }
  std::vector<std::int32_t>& prompt = state.sampling->prompt;
  prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  if (!complete) return;
  cuda::launch_sampling_prompt({.counts = counts_.data(),
                                .vocabulary = vocabulary_,
                                .slot = *state.sampling->slot,
                                .prompt = block.keep(std::span<const std::int32_t>(prompt)),
                                .count = static_cast<std::int64_t>(prompt.size())},
                               stream_.get());
  prompt.clear();
}

std::int64_t DeviceSampler::sample(std::span<const Row> rows, const float* logits, std::int64_t padded_rows,
                                   cuda::PinnedBlock& block) {
  const std::int64_t first = used_;
  HS_CHECK(first + padded_rows <= max_rows_, "the results have room");
  used_ += padded_rows;
  const std::span<cuda::SamplingRow> settings = block.take<cuda::SamplingRow>(padded_rows);
  std::vector<std::int32_t> bias_ids;
  std::vector<float> bias_values;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    settings[i] = {.active = 0};
    if (i >= rows.size()) continue;
    const SamplingParams& params = rows[i].state->sampler.params();
    const DeviceSampling* const kept = rows[i].state->sampling.get();
    settings[i] = {.seed = params.seed,
                   .position = rows[i].position,
                   .temperature = params.temperature,
                   .top_p = params.top_p,
                   .min_p = params.min_p,
                   .top_k = params.top_k,
                   .repetition_penalty = params.repetition_penalty,
                   .presence_penalty = params.presence_penalty,
                   .frequency_penalty = params.frequency_penalty,
                   .bias_begin = static_cast<std::int32_t>(bias_ids.size()),
                   .bias_count = static_cast<std::int32_t>(params.logit_bias.size()),
                   .slot = kept == nullptr ? -1 : *kept->slot,
                   .alternatives = params.logprobs,
                   .active = 1};
    for (const auto& [id, value] : params.logit_bias) {
      bias_ids.push_back(id);
      bias_values.push_back(value);
    }
    alternatives_[static_cast<std::size_t>(half_ * max_rows_ + first) + i] = params.logprobs;
  }
  // Behind the settings of other calls of the step, which may not have been read yet.
  constexpr auto kSettingsBytes = static_cast<std::int64_t>(sizeof(cuda::SamplingRow));
  auto* const device_settings = static_cast<cuda::SamplingRow*>(settings_.reserve(max_rows_ * kSettingsBytes)) + first;
  stream_.copy(settings.data(), device_settings, padded_rows * kSettingsBytes);
  const Results out = results_at(device_results_->data());
  const auto workspace = static_cast<std::int64_t>(cuda::sampling_workspace_bytes(padded_rows, vocabulary_));
  cuda::launch_sampling({.logits = logits,
                         .rows = padded_rows,
                         .vocabulary = vocabulary_,
                         .settings = device_settings,
                         .counts = counts_.data(),
                         .bias_ids = bias_ids.empty() ? nullptr : block.keep(std::span<const std::int32_t>(bias_ids)),
                         .bias_values = bias_values.empty() ? nullptr : block.keep(std::span<const float>(bias_values)),
                         .workspace = workspace_.reserve(workspace),
                         .tokens = out.tokens + first,
                         .usable = out.usable + first,
                         .logprobs = out.logprobs + first,
                         .top_ids = out.top_ids + first * cuda::kMostAlternatives,
                         .top_logprobs = out.top_logprobs + first * cuda::kMostAlternatives},
                        stream_.get());
  return half_ * max_rows_ + first;
}

void DeviceSampler::fetch() {
  if (used_ > 0) stream_.copy(device_results_->data(), host_half(half_), result_bytes_);
}

bool DeviceSampler::result(std::int64_t number, SampledToken& token) const {
  const Results results = results_at(host_half(number / max_rows_));
  const std::int32_t index = index_of(number);
  if (results.usable[index] == 0) return false;
  token.token = results.tokens[index];
  const std::int32_t alternatives = alternatives_[static_cast<std::size_t>(number)];
  token.top.clear();
  if (alternatives < 0) return true;
  token.logprob = results.logprobs[index];
  for (std::int32_t i = 0; i < alternatives; ++i) {
    const std::int64_t at = std::int64_t{index} * cuda::kMostAlternatives + i;
    if (results.top_ids[at] < 0) break;
    token.top.push_back({.token = results.top_ids[at], .logprob = results.top_logprobs[at]});
  }
  return true;
}

}  // namespace hotset::model
