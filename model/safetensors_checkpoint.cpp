#include "model/safetensors_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <system_error>
#include <utility>

#include "core/concat.h"
#include "kernels/tensor.h"
#include "model/hf_config.h"
#include "model/hf_tokenizer_files.h"
#include "model/json_options.h"
#include "model/printable.h"
#include "model/safetensors_reader.h"

namespace hotset::model {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfigBytes = 4 << 20;
constexpr std::uint64_t kMaxIndexBytes = 256 << 20;

// Tensors by their names in the files, from one file or from all shards.
struct TensorTable {
  std::map<std::string, SafetensorsTensor, std::less<>> tensors;
  std::vector<std::shared_ptr<const MappedFile>> files;
};

Result<TensorTable> read_single(const fs::path& path) {
  auto file = read_safetensors(path);
  if (!file) return file.error();
  TensorTable table;
  table.files.push_back(file.value().file);
  table.tensors = std::move(file.value().tensors);
  return table;
}

// A plain name beside the index: anything with a folder in it could lead elsewhere.
bool is_shard_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// Tensor name -> shard name.
Result<std::map<std::string, std::string, std::less<>>> read_index(const fs::path& path) {
  auto text = read_text_file(path, kMaxIndexBytes);
  if (!text) return text.error();
  auto index = parse_json_object(text.value(), path.filename().string());
  if (!index) return index.error();
  const auto map = index.value().find("weight_map");
  if (map == index.value().end() || !map->is_object() || map->empty()) {
    return corrupt(concat(path.filename().string(), " has no weight_map"));
  }
  std::map<std::string, std::string, std::less<>> out;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !is_shard_name(shard.get_ref<const std::string&>())) {
      return corrupt(concat(path.filename().string(), " puts tensor ", printable(tensor),
                            " into something that is no safetensors file of this folder"));
    }
    out.emplace(tensor, shard.get<std::string>());
  }
  return out;
}

Result<TensorTable> read_sharded(const fs::path& folder, const fs::path& index_path) {
  auto index = read_index(index_path);
  if (!index) return index.error();
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index.value()) shards.insert(shard);
  std::vector<std::string> absent;
  for (const auto& shard : shards) {
    std::error_code ignored;
    if (!fs::exists(folder / shard, ignored)) absent.push_back(shard);
  }
  if (!absent.empty()) return invalid_argument(concat("shards are missing: ", name_list(absent)));

  TensorTable table;
  for (const auto& shard : shards) {
    auto file = read_safetensors(folder / shard);
    if (!file) return file.error();
    table.files.push_back(file.value().file);
    for (auto& [name, tensor] : file.value().tensors) {
      const auto place = index.value().find(name);
      if (place != index.value().end() && place->second != shard) {
        return corrupt(concat("tensor ", printable(name), " is in ", printable(shard), " but the index puts it into ",
                              printable(place->second)));
      }
      if (!table.tensors.emplace(name, std::move(tensor)).second) {
        return corrupt(concat("tensor ", printable(name), " is in two shards"));
      }
    }
  }
  std::vector<std::string> missing;
  for (const auto& [tensor, shard] : index.value()) {
    if (!table.tensors.contains(tensor)) missing.push_back(tensor);
  }
  if (!missing.empty()) {
    return corrupt(concat("tensors are missing in the shards that the index names: ", name_list(missing)));
  }
  return table;
}

Result<TensorTable> read_tensors(const fs::path& folder, const fs::path& weights) {
  if (!weights.empty()) return read_single(weights);
  std::error_code ignored;
  if (fs::exists(folder / "model.safetensors", ignored)) return read_single(folder / "model.safetensors");
  const auto index = folder / "model.safetensors.index.json";
  if (fs::exists(index, ignored)) return read_sharded(folder, index);
  return Error{ErrorCode::kNotFound,
               concat(folder.string(), " holds neither model.safetensors nor model.safetensors.index.json"),
               {}};
}

std::string file_name(std::string_view canonical) {
  const std::string_view prefix = canonical == "lm_head" ? "" : "model.";
  const bool whole = canonical.ends_with(".bias") || canonical.ends_with(".e_score_correction_bias");
  const std::string_view suffix = whole ? "" : ".weight";
  return concat(prefix, canonical, suffix);
}

std::optional<kernels::WeightType> weight_type(std::string_view dtype) {
  if (dtype == "F32") return kernels::WeightType::kF32;
  if (dtype == "F16") return kernels::WeightType::kF16;
  if (dtype == "BF16") return kernels::WeightType::kBF16;
  return std::nullopt;
}

// What the file pairs as (0, 1), (2, 3), ...: the rope part of latent attention, at the end of each head, and of an
// interleaved indexer, at the start.
std::optional<AdjacentPairs> adjacent_pairs(const ModelConfig& config, std::string_view canonical) {
  if (!config.latent) return std::nullopt;
  const auto& latent = *config.latent;
  const auto ends = [&](std::string_view suffix) { return canonical.ends_with(suffix); };
  if (latent.interleaved_rope) {
    if (ends("self_attn.q_b_proj") || ends("self_attn.q_proj")) {
      return AdjacentPairs{config.heads, config.head_dim, latent.nope_dim, latent.rope_dim};
    }
    if (ends("self_attn.kv_a_proj_with_mqa")) {
      return AdjacentPairs{1, latent.kv_rank + latent.rope_dim, latent.kv_rank, latent.rope_dim};
    }
  }
  if (config.indexer && config.indexer->interleaved_rope) {
    if (ends("indexer.wq_b")) return AdjacentPairs{config.indexer->heads, config.indexer->dim, 0, latent.rope_dim};
    if (ends("indexer.wk") || ends("indexer.k_norm") || ends("indexer.k_norm.bias")) {
      return AdjacentPairs{1, config.indexer->dim, 0, latent.rope_dim};
    }
  }
  return std::nullopt;
}

// DeepSeek's FP8: the matrix X.weight has its scales in X.weight_scale_inv. Fills type and scales of `tensor`.
Result<void> add_scales(const TensorTable& table, StoredTensor& tensor, std::set<std::string, std::less<>>& used) {
  const auto name = concat(tensor.file_name, "_scale_inv");
  const auto it = table.tensors.find(name);
  if (it == table.tensors.end()) {
    return invalid_argument(concat("tensor ", printable(tensor.file_name), " has type F8_E4M3 and there is no tensor ",
                                   printable(name), " with its scales"));
  }
  const auto& scales = it->second;
  const auto blocks = [](std::int64_t width) {
    return width / kernels::kFp8Block + (width % kernels::kFp8Block != 0 ? 1 : 0);
  };
  const std::vector<std::int64_t> wanted = {blocks(tensor.info.shape[0]), blocks(tensor.info.shape[1])};
  const auto type = weight_type(scales.dtype);
  if (!type || scales.shape != wanted) {
    return invalid_argument(concat("tensor ", printable(name), " does not hold a float for each block of 128 x 128 of ",
                                   printable(tensor.file_name)));
  }
  used.insert(name);
  tensor.type = kernels::WeightType::kF32;
  tensor.scales = BlockScales{*type, scales.data};
  return {};
}

// Buffers that older exports saved beside the weights; they follow from config.json.
bool is_derived(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

// A tensor of the layers behind the last one, which predict more than one token ahead (DeepSeek-V3, section 2.2).
bool is_draft(const ModelConfig& config, std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  std::int32_t layer = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), layer);
  return parsed.ec == std::errc() && layer >= config.layers && layer - config.layers < config.mtp_layers;
}

// Fills the tensors by canonical name, and what is left over.
Result<void> assign_tensors(const TensorTable& table, CheckpointContents& out) {
  std::set<std::string, std::less<>> used;
  if (out.config.tied_embeddings) used.insert("lm_head.weight");
  for (const auto& expected : expected_tensors(out.config)) {
    const auto it = table.tensors.find(file_name(expected.name));
    if (it == table.tensors.end()) continue;
    used.insert(it->first);
    const auto& source = it->second;
    StoredTensor tensor{it->first,
                        {source.dtype, source.shape},
                        weight_type(source.dtype),
                        source.data,
                        adjacent_pairs(out.config, expected.name),
                        std::nullopt};
    if (source.dtype == "F8_E4M3" && source.shape.size() == 2) {
      if (auto ok = add_scales(table, tensor, used); !ok) return ok;
      out.config.fp8_weights = true;
    }
    out.tensors.emplace(expected.name, std::move(tensor));
  }
  for (const auto& [name, tensor] : table.tensors) {
    if (used.contains(name) || is_derived(name)) continue;
    if (out.config.experts && name.ends_with(".mlp.experts.gate_up_proj")) {
      return invalid_argument(
          concat("tensor ", printable(name), " stacks the experts of a layer, which is not supported"));
    }
    if (is_draft(out.config, name)) {
      ++out.draft_tensors;
    } else {
      out.unused_tensors.push_back(name);
    }
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_folder_config(const fs::path& folder) {
  auto text = read_text_file(folder / "config.json", kMaxConfigBytes);
  if (!text) return text.error();
  auto generation = read_text_file(folder / "generation_config.json", kMaxConfigBytes);
  if (!generation && generation.error().code != ErrorCode::kNotFound) return generation.error();
  auto config = parse_hf_config(text.value(), generation ? std::string_view(generation.value()) : std::string_view());
  if (!config) return config;
  // canonical(): "." and a trailing slash have a last component too.
  std::error_code failed;
  const auto absolute = fs::canonical(folder, failed);
  if (!failed) config.value().name = absolute.filename().string();
  return config;
}

Result<CheckpointContents> read_safetensors_checkpoint(const fs::path& folder, const fs::path& weights) {
  auto config = read_folder_config(folder);
  if (!config) return config.error();
  auto tokenizer = read_hf_tokenizer_files(folder);
  if (!tokenizer) return tokenizer.error();
  auto table = read_tensors(folder, weights);
  if (!table) return table.error();

  CheckpointContents out;
  out.config = std::move(config).value();
  out.tokenizer = std::move(tokenizer).value();
  out.files = std::move(table.value().files);
  if (auto ok = assign_tensors(table.value(), out); !ok) return ok.error();
  return out;
}

}  // namespace hotset::model
