#include "model/safetensors_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/concat.h"
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

Result<ModelConfig> read_config(const fs::path& folder) {
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

std::string file_name(std::string_view canonical) {
  const std::string_view prefix = canonical == "lm_head" ? "" : "model.";
  const std::string_view suffix = canonical.ends_with(".bias") ? "" : ".weight";
  return concat(prefix, canonical, suffix);
}

std::optional<kernels::WeightType> weight_type(std::string_view dtype) {
  if (dtype == "F32") return kernels::WeightType::kF32;
  if (dtype == "F16") return kernels::WeightType::kF16;
  if (dtype == "BF16") return kernels::WeightType::kBF16;
  return std::nullopt;
}

// Buffers that older exports saved beside the weights; they follow from config.json.
bool is_derived(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

Result<CheckpointContents> read_safetensors_checkpoint(const fs::path& folder, const fs::path& weights) {
  auto config = read_config(folder);
  if (!config) return config.error();
  auto tokenizer = read_hf_tokenizer_files(folder);
  if (!tokenizer) return tokenizer.error();
  auto table = read_tensors(folder, weights);
  if (!table) return table.error();

  CheckpointContents out;
  out.config = std::move(config).value();
  out.tokenizer = std::move(tokenizer).value();
  out.files = std::move(table.value().files);
  std::set<std::string, std::less<>> used;
  if (out.config.tied_embeddings) used.insert("lm_head.weight");
  for (const auto& expected : expected_tensors(out.config)) {
    const auto it = table.value().tensors.find(file_name(expected.name));
    if (it == table.value().tensors.end()) continue;
    used.insert(it->first);
    const auto& tensor = it->second;
    out.tensors.emplace(
        expected.name,
        StoredTensor{it->first, {tensor.dtype, tensor.shape}, weight_type(tensor.dtype), tensor.data, 0});
  }
  for (const auto& [name, tensor] : table.value().tensors) {
    if (!used.contains(name) && !is_derived(name)) out.unused_tensors.push_back(name);
  }
  return out;
}

}  // namespace hotset::model
