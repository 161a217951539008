#include "model/checkpoint.h"

#include <cstring>

#include "core/concat.h"
#include "core/log.h"
#include "model/float_conversion.h"
#include "model/gguf_checkpoint.h"
#include "model/printable.h"
#include "model/safetensors_checkpoint.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;

constexpr std::uintptr_t kDataAlignment = 4;

Error not_found(std::string_view name) {
  return Error{ErrorCode::kNotFound, concat("the checkpoint holds no tensor ", printable(name)), {}};
}

Error bad_type(const StoredTensor& tensor) {
  return invalid_argument(concat("tensor ", printable(tensor.file_name), " has type ", printable(tensor.info.type),
                                 ", which is not supported for it"));
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (const auto dimension : shape) out += concat(out.size() > 1 ? ", " : "", dimension);
  return out + "]";
}

bool is_float(kernels::WeightType type) { return kernels::block_format(type).elements == 1; }

// Rows of one head lie as (0, half), (1, half + 1), ...: pair j's first channel in row 2 j, its second in 2 j + 1. Puts
// all first channels before all second ones. Rows are copied whole, so block formats are fine too.
std::vector<std::byte> to_half_split(std::span<const std::byte> data, const AdjacentPairs& pairs) {
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  const auto row = data.size() / size(pairs.heads * pairs.head_rows);
  const auto half = size(pairs.count / 2);
  std::vector<std::byte> out(data.begin(), data.end());
  for (std::int64_t head = 0; head < pairs.heads; ++head) {
    const auto first = size(head * pairs.head_rows + pairs.first);
    for (std::size_t pair = 0; pair < half; ++pair) {
      std::memcpy(&out[(first + pair) * row], &data[(first + 2 * pair) * row], row);
      std::memcpy(&out[(first + half + pair) * row], &data[(first + 2 * pair + 1) * row], row);
    }
  }
  return out;
}

// to_half_split can't work otherwise. Holds for every tensor whose shape fits its config.
bool fits(const std::optional<AdjacentPairs>& pairs, std::int64_t rows) {
  return !pairs || (rows > 0 && pairs->heads * pairs->head_rows == rows);
}

// Whether to_half_split() leaves every row in its block of FP8 scales.
bool stays_in_blocks(const AdjacentPairs& pairs) {
  for (std::int64_t head = 0; head < pairs.heads; ++head) {
    const std::int64_t first = head * pairs.head_rows + pairs.first;
    if (first / kernels::kFp8Block != (first + pairs.count - 1) / kernels::kFp8Block) return false;
  }
  return true;
}

// Eight codes at a time: one with all bits but the sign set carries into the sign's place.
bool has_nan_code(std::span<const std::byte> codes) {
  constexpr std::uint64_t kMagnitudes = 0x7f7f7f7f7f7f7f7f, kOnes = 0x0101010101010101;
  std::uint64_t seen = 0;
  std::size_t at = 0;
  for (; at + 8 <= codes.size(); at += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, &codes[at], sizeof eight);
    seen |= (eight & kMagnitudes) + kOnes;
  }
  for (; at < codes.size(); ++at) seen |= (std::to_integer<std::uint64_t>(codes[at]) & 0x7fU) + 1;
  return (seen & ~kMagnitudes) != 0;
}

// A matrix as it is handed out.
std::vector<std::byte> copy_of(const StoredTensor& tensor) {
  std::vector<std::byte> copy;
  if (tensor.scales) {
    const auto scales = *to_float32(tensor.scales->type, tensor.scales->data);
    copy = fp8_to_float32(tensor.data, tensor.info.shape[0], tensor.info.shape[1], scales);
    if (!tensor.pairs) return copy;
  }
  const std::span<const std::byte> data = tensor.scales ? std::span<const std::byte>(copy) : tensor.data;
  if (tensor.pairs) return to_half_split(data, *tensor.pairs);
  return {data.begin(), data.end()};
}

Result<void> check_tensor(const StoredTensor& tensor, const ExpectedTensor& expected) {
  if (tensor.info.shape != expected.shape) {
    return invalid_argument(concat("tensor ", printable(tensor.file_name), " has shape ", shape_text(tensor.info.shape),
                                   " where the model's configuration asks for ", shape_text(expected.shape)));
  }
  if (!tensor.type || (expected.shape.size() == 1 && !is_float(*tensor.type))) return bad_type(tensor);
  return {};
}

// Lists one layer's tensors.
class LayerTensors {
 public:
  LayerTensors(std::vector<ExpectedTensor>& out, std::string prefix) : out_(out), prefix_(std::move(prefix)) {}

  void add(std::string_view name, std::vector<std::int64_t> shape, bool bias = false) {
    const auto full = concat(prefix_, name);
    if (bias) out_.push_back({concat(full, ".bias"), {shape[0]}});
    out_.push_back({full, std::move(shape)});
  }
  void add_mlp(std::string_view prefix, std::int64_t intermediate, std::int64_t hidden, bool bias = false) {
    add(concat(prefix, "gate_proj"), {intermediate, hidden}, bias);
    add(concat(prefix, "up_proj"), {intermediate, hidden}, bias);
    add(concat(prefix, "down_proj"), {hidden, intermediate}, bias);
  }

 private:
  std::vector<ExpectedTensor>& out_;
  std::string prefix_;
};

void add_attention(LayerTensors& layer, const ModelConfig& config) {
  const std::int64_t q_rows = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t kv_rows = std::int64_t{config.kv_heads} * config.head_dim;
  layer.add("self_attn.q_proj", {q_rows, config.hidden}, config.qkv_bias);
  layer.add("self_attn.k_proj", {kv_rows, config.hidden}, config.qkv_bias);
  layer.add("self_attn.v_proj", {kv_rows, config.hidden}, config.qkv_bias);
  layer.add("self_attn.o_proj", {config.hidden, q_rows}, config.o_bias);
  if (!config.qk_norm) return;
  layer.add("self_attn.q_norm", {config.head_dim});
  layer.add("self_attn.k_norm", {config.head_dim});
}

void add_latent_attention(LayerTensors& layer, const ModelConfig& config, std::int32_t index) {
  const auto& latent = *config.latent;
  const std::int64_t heads = config.heads;
  if (latent.q_rank > 0) {
    layer.add("self_attn.q_a_proj", {latent.q_rank, config.hidden});
    layer.add("self_attn.q_a_layernorm", {latent.q_rank});
    layer.add("self_attn.q_b_proj", {heads * config.head_dim, latent.q_rank});
  } else {
    layer.add("self_attn.q_proj", {heads * config.head_dim, config.hidden});
  }
  layer.add("self_attn.kv_a_proj_with_mqa", {latent.kv_rank + latent.rope_dim, config.hidden});
  layer.add("self_attn.kv_a_layernorm", {latent.kv_rank});
  layer.add("self_attn.kv_b_proj", {heads * (latent.nope_dim + latent.value_dim), latent.kv_rank});
  layer.add("self_attn.o_proj", {config.hidden, heads * latent.value_dim});
  if (!config.indexer || !config.indexer->full_layer[static_cast<std::size_t>(index)]) return;
  const auto& indexer = *config.indexer;
  layer.add("self_attn.indexer.wq_b", {std::int64_t{indexer.heads} * indexer.dim, latent.q_rank});
  layer.add("self_attn.indexer.wk", {indexer.dim, config.hidden});
  layer.add("self_attn.indexer.k_norm", {indexer.dim}, true);
  layer.add("self_attn.indexer.weights_proj", {indexer.heads, config.hidden});
}

void add_experts(LayerTensors& layer, const ModelConfig& config) {
  const auto& experts = *config.experts;
  layer.add("mlp.gate", {experts.count, config.hidden});
  if (experts.correction_bias) layer.add("mlp.gate.e_score_correction_bias", {experts.count});
  for (std::int32_t expert = 0; expert < experts.count; ++expert) {
    layer.add_mlp(concat("mlp.experts.", expert, "."), experts.intermediate, config.hidden);
  }
  if (experts.shared > 0) {
    layer.add_mlp("mlp.shared_experts.", experts.shared * experts.intermediate, config.hidden);
  }
}

Result<CheckpointContents> read_contents(const fs::path& path) {
  std::error_code failed;
  const auto status = fs::status(path, failed);
  if (!fs::exists(status)) return Error{ErrorCode::kNotFound, concat("there is no model at ", path.string()), {}};
  if (fs::is_directory(status)) return read_safetensors_checkpoint(path, {});
  if (path.extension() == ".gguf") return read_gguf_checkpoint(path);
  if (path.extension() == ".safetensors") return read_safetensors_checkpoint(path.parent_path() / ".", path);
  return invalid_argument(concat(path.string(), " is neither a folder nor a .gguf or .safetensors file"));
}

}  // namespace

const StoredTensor* Checkpoint::find(std::string_view canonical_name) const {
  if (contents_.config.tied_embeddings && canonical_name == "lm_head") canonical_name = "embed_tokens";
  const auto it = contents_.tensors.find(canonical_name);
  return it == contents_.tensors.end() ? nullptr : &it->second;
}

Result<kernels::MatrixView> Checkpoint::matrix(std::string_view canonical_name) {
  const auto* tensor = find(canonical_name);
  if (tensor == nullptr) return not_found(canonical_name);
  if (!tensor->type || tensor->info.shape.size() != 2) return bad_type(*tensor);
  kernels::MatrixView view{*tensor->type, tensor->info.shape[0], tensor->info.shape[1], tensor->data};
  if (!fits(tensor->pairs, view.rows)) return bad_type(*tensor);
  const bool aligned = reinterpret_cast<std::uintptr_t>(tensor->data.data()) % kDataAlignment == 0;
  if (aligned && !tensor->pairs && !tensor->scales) return view;
  std::vector<std::byte>& copy = copies_[std::string(canonical_name)].matrix;
  if (copy.empty()) copy = copy_of(*tensor);
  view.data = copy;
  return view;
}

bool Checkpoint::has_fp8(std::string_view canonical_name) const {
  if (contents_.tensors.empty()) return contents_.config.fp8_weights;
  const auto* tensor = find(canonical_name);
  if (tensor == nullptr || !tensor->scales || tensor->info.shape.size() != 2) return false;
  return fits(tensor->pairs, tensor->info.shape[0]) && (!tensor->pairs || stays_in_blocks(*tensor->pairs));
}

Result<kernels::MatrixView> Checkpoint::fp8_matrix(std::string_view canonical_name) {
  const auto* tensor = find(canonical_name);
  if (tensor == nullptr || !has_fp8(canonical_name)) return not_found(canonical_name);
  if (has_nan_code(tensor->data)) {
    return corrupt(concat("tensor ", printable(tensor->file_name), " holds FP8 codes that are no numbers"));
  }
  Copies& copies = copies_[std::string(canonical_name)];
  if (copies.scales.empty()) {
    copies.scales = *to_float32(tensor->scales->type, tensor->scales->data);
    if (tensor->pairs) copies.codes = to_half_split(tensor->data, *tensor->pairs);
  }
  return kernels::MatrixView{.type = kernels::WeightType::kFp8Block,
                             .rows = tensor->info.shape[0],
                             .cols = tensor->info.shape[1],
                             .data = tensor->pairs ? std::span<const std::byte>(copies.codes) : tensor->data,
                             .scales = copies.scales};
}

void Checkpoint::release(std::string_view canonical_name) {
  const auto it = copies_.find(canonical_name);
  if (it != copies_.end()) copies_.erase(it);
}

Result<std::vector<float>> Checkpoint::vector(std::string_view canonical_name) const {
  const auto* tensor = find(canonical_name);
  if (tensor == nullptr) return not_found(canonical_name);
  if (!tensor->type || !is_float(*tensor->type) || tensor->info.shape.size() != 1) return bad_type(*tensor);
  if (!tensor->pairs) return *to_float32(*tensor->type, tensor->data);
  if (!fits(tensor->pairs, tensor->info.shape[0])) return bad_type(*tensor);
  return *to_float32(*tensor->type, to_half_split(tensor->data, *tensor->pairs));
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> out = {{"embed_tokens", {config.vocabulary, config.hidden}}, {"norm", {config.hidden}}};
  if (!config.tied_embeddings) out.push_back({"lm_head", {config.vocabulary, config.hidden}});
  for (std::int32_t index = 0; index < config.layers; ++index) {
    LayerTensors layer(out, concat("layers.", index, "."));
    layer.add("input_layernorm", {config.hidden});
    layer.add("post_attention_layernorm", {config.hidden});
    if (config.latent) {
      add_latent_attention(layer, config, index);
    } else {
      add_attention(layer, config);
    }
    if (config.experts && config.experts->sparse_layer[static_cast<std::size_t>(index)]) {
      add_experts(layer, config);
    } else {
      layer.add_mlp("mlp.", config.intermediate, config.hidden, config.mlp_bias);
    }
  }
  return out;
}

std::int64_t weight_count(const ModelConfig& config) {
  std::int64_t count = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    std::int64_t size = 1;
    for (const std::int64_t extent : tensor.shape) size *= extent;
    count += tensor.name.ends_with("kv_b_proj") ? 2 * size : size;
  }
  return count;
}

Result<void> validate_checkpoint(const Checkpoint& checkpoint) {
  std::vector<std::string> missing;
  const auto expected = expected_tensors(checkpoint.config());
  for (const auto& tensor : expected) {
    if (!checkpoint.has(tensor.name)) missing.push_back(tensor.name);
  }
  if (!missing.empty()) return invalid_argument(concat("the checkpoint lacks tensors: ", name_list(missing)));
  for (const auto& tensor : expected) {
    if (auto ok = check_tensor(*checkpoint.find(tensor.name), tensor); !ok) return ok;
  }
  return {};
}

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const fs::path& path) {
  auto contents = read_contents(path);
  if (!contents) return contents.error();
  auto checkpoint = std::make_unique<Checkpoint>(std::move(contents).value());
  if (auto ok = validate_checkpoint(*checkpoint); !ok) return ok.error();
  if (checkpoint->draft_tensors() > 0) {
    log_info("skipped the checkpoint's ", checkpoint->draft_tensors(), " tensors of layers that only predict drafts");
  }
  if (!checkpoint->unused_tensors().empty()) {
    log_warn("checkpoint tensors that the model does not use: ", name_list(checkpoint->unused_tensors()));
  }
  return checkpoint;
}

}  // namespace hotset::model
