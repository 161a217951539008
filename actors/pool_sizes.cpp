#include "actors/pool_sizes.h"

#include <algorithm>
#include <limits>

#include "core/checked_math.h"
#include "core/concat.h"

namespace hotset::actors {
namespace {

constexpr std::int64_t kMostNumbers = std::numeric_limits<std::int32_t>::max();

Error too_large(const char* option, std::int64_t usable_bytes) {
  return invalid_argument(concat(option, " asks for more memory than is there (", usable_bytes >> 20, " MiB)"), option);
}

// Pages of 64 tokens in all layers, so many that 32 bits number the rows of the device,
std::int64_t most_device_pages(const KvLayout& layout) { return kMostNumbers / (layout.rows.layers * kPageTokens); }
// or the rows of a layer on the host and the metadata pages of all layers.
std::int64_t most_host_pages(const KvLayout& layout) {
  return kMostNumbers / std::max<std::int64_t>(kPageTokens, layout.rows.layers);
}

// Such pages that hold as many sequences as run at a time, each of `tokens`; no more than the device can number.
std::int64_t pages_of_contexts(const ServerConfig& config, const KvLayout& layout, std::int64_t tokens) {
  const auto pages = checked_mul(static_cast<std::uint64_t>(config.max_batch),
                                 static_cast<std::uint64_t>(pages_for_tokens(tokens) + 1));
  const std::int64_t most = most_device_pages(layout);
  return pages && *pages < static_cast<std::uint64_t>(most) ? static_cast<std::int64_t>(*pages) : most;
}

Result<PoolSizes> number_pages(const KvLayout& layout, std::int64_t device, std::int64_t metadata, std::int64_t host) {
  const std::int64_t layers = layout.rows.layers;
  if (device > most_device_pages(layout))
    return invalid_argument("the device pool has more pages than can be numbered", "--device-kv-tokens");
  if (std::max(host, metadata) > most_host_pages(layout))
    return invalid_argument("the host pool has more pages than can be numbered", "--host-kv");
  return PoolSizes{.device_pages = static_cast<std::int32_t>(device * layers),
                   .metadata_pages = static_cast<std::int32_t>(metadata * layout.metadata_layers),
                   .host_pages = static_cast<std::int32_t>(host)};
}

}  // namespace

Result<PoolSizes> choose_pool_sizes(const ServerConfig& config, const KvLayout& layout, std::int64_t max_context,
                                    std::int64_t usable_bytes) {
  const std::int64_t row_bytes = kPageTokens * layout.rows.token_bytes();  // 64 tokens in every layer
  const std::int64_t metadata_bytes = layout.metadata_page_bytes();
  std::int64_t metadata = metadata_bytes > 0 ? config.device_metadata_tokens / kPageTokens : 0;
  if (metadata_bytes > 0 && config.device_metadata_tokens != 0) {
    if (metadata < 1) {
      return invalid_argument("--device-metadata-tokens must be at least 64", "--device-metadata-tokens");
    }
    if (metadata > usable_bytes / metadata_bytes) return too_large("--device-metadata-tokens", usable_bytes);
  }
  const bool metadata_follows = metadata_bytes > 0 && metadata == 0;  // the host pool's size
  const std::int64_t host_bytes = row_bytes + metadata_bytes + (metadata_follows ? metadata_bytes : 0);
  const std::int64_t usable = usable_bytes - metadata * metadata_bytes;
  const std::int64_t wanted = pages_of_contexts(config, layout, max_context);
  std::int64_t device = config.device_kv_tokens / kPageTokens;
  std::int64_t host = config.host_kv_bytes / (row_bytes + metadata_bytes);
  if (config.device_kv_tokens != 0) {
    if (device < 1) return invalid_argument("--device-kv-tokens must be at least 64", "--device-kv-tokens");
    if (device > usable / row_bytes) return too_large("--device-kv-tokens", usable_bytes);
  }
  if (config.host_kv_bytes != 0) {
    if (host < 1) {
      return invalid_argument(
          concat("--host-kv must be at least ", row_bytes + metadata_bytes, " bytes for this model"), "--host-kv");
    }
    if (host > usable / host_bytes) return too_large("--host-kv", usable_bytes);
  }
  // A default takes what the other pool, when given, leaves.
  if (config.device_kv_tokens == 0) {
    device = std::min({wanted, usable / row_bytes / 4, (usable - host * host_bytes) / row_bytes});
  }
  if (config.host_kv_bytes == 0) {
    host = std::min({2 * std::max(wanted, device), usable / host_bytes * 2 / 5,
                     (usable - device * row_bytes) / host_bytes, most_host_pages(layout)});
  }
  if (device < 1)
    return invalid_argument("the memory that is left holds no page of the KV cache", "--device-kv-tokens");
  if (host < 1) return invalid_argument("the memory that is left holds no page of the KV cache", "--host-kv");
  if (device * row_bytes + host * host_bytes > usable) return too_large("--host-kv", usable_bytes);  // both were given
  if (metadata_follows) metadata = host;
  return number_pages(layout, device, metadata, host);
}

Result<PoolSizes> choose_split_pool_sizes(const ServerConfig& config, const KvLayout& layout, std::int64_t max_context,
                                          std::int64_t device_bytes, std::int64_t host_bytes) {
  const std::int64_t row_bytes = kPageTokens * layout.rows.token_bytes();  // 64 tokens in every layer
  const std::int64_t metadata_bytes = layout.metadata_page_bytes();
  const std::int64_t wanted = pages_of_contexts(config, layout, max_context);
  std::int64_t host = config.host_kv_bytes / (row_bytes + metadata_bytes);
  if (config.host_kv_bytes == 0) {
    host = std::min({2 * wanted, host_bytes / 5 * 3 / (row_bytes + metadata_bytes), most_host_pages(layout)});
    if (host < 1) return invalid_argument("the memory that is left holds no page of the KV cache", "--host-kv");
  }
  if (host < 1) {
    return invalid_argument(concat("--host-kv must be at least ", row_bytes + metadata_bytes, " bytes for this model"),
                            "--host-kv");
  }
  if (host > host_bytes / (row_bytes + metadata_bytes)) return too_large("--host-kv", host_bytes);
  std::int64_t metadata = 0;
  if (metadata_bytes > 0) {
    metadata = config.device_metadata_tokens / kPageTokens;
    if (config.device_metadata_tokens == 0) metadata = std::min(host, device_bytes / 4 / metadata_bytes);
    if (metadata < 1)
      return invalid_argument("--device-metadata-tokens must be at least 64", "--device-metadata-tokens");
    if (metadata > device_bytes / metadata_bytes) return too_large("--device-metadata-tokens", device_bytes);
  }
  const std::int64_t left = device_bytes - metadata * metadata_bytes;
  std::int64_t device = config.device_kv_tokens / kPageTokens;
  if (config.device_kv_tokens == 0) {
    device = std::min(wanted, left / row_bytes);
    if (device < 1)
      return invalid_argument("the GPU memory that is left holds no page of the KV cache", "--device-kv-tokens");
  }
  if (device < 1) return invalid_argument("--device-kv-tokens must be at least 64", "--device-kv-tokens");
  if (device > left / row_bytes) return too_large("--device-kv-tokens", left);
  return number_pages(layout, device, metadata, host);
}

}  // namespace hotset::actors
