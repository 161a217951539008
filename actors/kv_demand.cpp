#include "actors/kv_demand.h"

#include <algorithm>
#include <string>

#include "core/check.h"
#include "core/concat.h"
#include "sparse/sequence_kv.h"

namespace hotset::actors {
namespace {

// More tokens than any pool has (2^31 pages of 64).
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

Error never_fits(std::int64_t needed_tokens, std::string_view pool, std::int64_t pool_tokens, std::string_view option) {
  return Error{ErrorCode::kCapacityNever,
               concat("the request needs room for ", needed_tokens, " tokens in the ", pool, " KV cache, which holds ",
                      pool_tokens, ": shorten it or use a larger ", option),
               std::string(option)};
}

}  // namespace

KvNeeds::KvNeeds(const KvPlannerConfig& config) : config_(config) {
  HS_CHECK(config.layout.rows.layers > 0, "a cache has layers");
}

std::int64_t KvNeeds::tokens(const KvDemand& demand) {
  const std::int64_t output = std::min(demand.max_new_tokens, kMostTokens);
  return std::min(demand.prompt_tokens, kMostTokens) + (output > 0 ? output + 1 : 0);
}

std::int64_t KvNeeds::metadata_of(const KvDemand& demand, std::int64_t rows) const {
  return demand.keeps_metadata ? config_.layout.metadata_layers * pages_for_tokens(rows) : 0;
}

DevicePages KvNeeds::resident(const KvDemand& demand, std::int64_t rows) const {
  return {.rows = config_.layout.rows.layers * pages_for_tokens(rows), .metadata = metadata_of(demand, rows)};
}

DevicePages KvNeeds::hot(const KvDemand& demand, std::int64_t rows) const {
  HS_CHECK(demand.sparse, "only a sequence that selects has a hot buffer");
  return {.rows = config_.layout.rows.layers * sparse::hot_pages_of(demand.hot_shape).total(),
          .metadata = metadata_of(demand, rows)};
}

DevicePages KvNeeds::resident_prompt(const KvDemand& demand) const {
  if (demand.max_new_tokens == 0) return resident(demand, demand.prompt_tokens);
  const std::int64_t with_decode = demand.prompt_tokens + 1;
  if (config_.mode != KvModeChoice::kHot || !selects_at(demand, with_decode)) return resident(demand, with_decode);
  DevicePages pages = hot(demand, with_decode);
  pages.rows = std::max(pages.rows, resident(demand, demand.prompt_tokens).rows);
  return pages;
}

DevicePages KvNeeds::streamed_prompt(const KvDemand& demand) const {
  return demand.max_new_tokens == 0 ? DevicePages{} : hot(demand, demand.prompt_tokens + 1);
}

bool KvNeeds::may_stream(const KvDemand& demand) const {
  if (config_.mode == KvModeChoice::kResident) return false;
  return demand.max_new_tokens == 0 || selects_at(demand, demand.prompt_tokens + 1);
}

bool KvNeeds::fits(const DevicePages& pages) const {
  return pages.rows <= config_.device_pages && pages.metadata <= config_.metadata_pages;
}

Result<void> KvNeeds::can_ever_run(const KvDemand& demand) const {
  if (demand.prompt_tokens <= 0) return invalid_argument("the prompt has no tokens", "prompt");
  if (demand.max_new_tokens < 0) return invalid_argument("max_tokens is negative", "max_tokens");
  const std::int64_t all = tokens(demand);
  if (pages_for_tokens(all) > config_.host_pages) {
    return never_fits(all, "host", std::int64_t{config_.host_pages} * kPageTokens, "--host-kv");
  }
  const bool selects = demand.max_new_tokens > 0 && selects_at(demand, all);
  const bool may_be_resident = config_.mode != KvModeChoice::kHot || !selects;
  if (may_be_resident && fits(resident(demand, all))) return {};
  if (demand.max_new_tokens == 0 && may_stream(demand)) return {};
  const std::int64_t device_tokens = config_.device_pages / config_.layout.rows.layers * kPageTokens;
  if (metadata_of(demand, all) > config_.metadata_pages) {
    return never_fits(all, "metadata part of the device",
                      config_.metadata_pages / config_.layout.metadata_layers * kPageTokens,
                      "--device-metadata-tokens");
  }
  if (!selects || config_.mode == KvModeChoice::kResident) {
    return never_fits(pages_for_tokens(all) * kPageTokens, "device", device_tokens, "--device-kv-tokens");
  }
  const std::int64_t hot_pages = sparse::hot_pages_of(demand.hot_shape).total();
  if (hot_pages * config_.layout.rows.layers > config_.device_pages) {
    const sparse::HotBufferShape& shape = demand.hot_shape;
    const bool ring = shape.ring_tokens > shape.hot_blocks * shape.block_tokens;
    const char* const larger = ring ? "--hot-ring" : "--hot-buffer";
    return Error{ErrorCode::kCapacityNever,
                 concat("the request needs room for ", hot_pages * kPageTokens,
                        " tokens of hot buffer and ring in the device KV cache, which holds ", device_tokens,
                        ": use a larger --device-kv-tokens or a smaller ", larger),
                 larger};
  }
  // Up to the threshold everything is attended to, so it is resident, unless the prompt reaches it.
  if (demand.prompt_tokens < demand.threshold && !fits(resident(demand, demand.threshold))) {
    return never_fits(pages_for_tokens(demand.threshold) * kPageTokens, "device", device_tokens, "--device-kv-tokens");
  }
  return {};
}

std::int64_t KvNeeds::largest_output(KvDemand demand) const {
  // What runs with more output also runs with less.
  std::int64_t fits = 0;
  std::int64_t too_many = std::int64_t{config_.host_pages} * kPageTokens + 1;
  while (too_many - fits > 1) {
    demand.max_new_tokens = fits + (too_many - fits) / 2;
    (can_ever_run(demand).ok() ? fits : too_many) = demand.max_new_tokens;
  }
  return fits;
}

}  // namespace hotset::actors
