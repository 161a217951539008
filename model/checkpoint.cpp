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
// all first channels before all second ones. `row` counts bytes; a row is copied whole, so block formats are fine too.
std::vector<std::byte> to_half_split(std::span<const std::byte> data, std::int64_t rows, std::int32_t heads) {
  const auto row = data.size() / static_cast<std::size_t>(rows);
  const auto half = static_cast<std::size_t>(rows / heads / 2);
  std::vector<std::byte> out(data.size());
  for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head) {
    const auto first = head * 2 * half;
    for (std::size_t pair = 0; pair < half; ++pair) {
      std::memcpy(&out[(first + pair) * row], &data[(first + 2 * pair) * row], row);
      std::memcpy(&out[(first + half + pair) * row], &data[(first + 2 * pair + 1) * row], row);
    }
  }
  return out;
}

// to_half_split can't divide rows otherwise. Holds for every tensor whose shape fits its config.
bool splits_into_pairs(std::int64_t rows, std::int32_t heads) {
  return rows > 0 && rows % (2 * std::int64_t{heads}) == 0;
}

Result<void> check_tensor(const StoredTensor& tensor, const ExpectedTensor& expected) {
  if (tensor.info.shape != expected.shape) {
    return invalid_argument(concat("tensor ", printable(tensor.file_name), " has shape ", shape_text(tensor.info.shape),
                                   " where the model's configuration asks for ", shape_text(expected.shape)));
  }
  if (!tensor.type || (expected.shape.size() == 1 && !is_float(*tensor.type))) return bad_type(tensor);
  return {};
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
  const bool aligned = reinterpret_cast<std::uintptr_t>(tensor->data.data()) % kDataAlignment == 0;
  const auto heads = tensor->adjacent_pair_heads;
  if (heads == 0 && aligned) return view;
  if (heads > 0 && !splits_into_pairs(view.rows, heads)) return bad_type(*tensor);
  const auto [it, added] = copies_.try_emplace(std::string(canonical_name));
  if (added) {
    it->second = heads > 0 ? to_half_split(tensor->data, view.rows, heads)
                           : std::vector<std::byte>(tensor->data.begin(), tensor->data.end());
  }
  view.data = it->second;
  return view;
}

Result<std::vector<float>> Checkpoint::vector(std::string_view canonical_name) const {
  const auto* tensor = find(canonical_name);
  if (tensor == nullptr) return not_found(canonical_name);
  if (!tensor->type || !is_float(*tensor->type) || tensor->info.shape.size() != 1) return bad_type(*tensor);
  if (tensor->adjacent_pair_heads == 0) return *to_float32(*tensor->type, tensor->data);
  const auto rows = tensor->info.shape[0];
  if (!splits_into_pairs(rows, tensor->adjacent_pair_heads)) return bad_type(*tensor);
  return *to_float32(*tensor->type, to_half_split(tensor->data, rows, tensor->adjacent_pair_heads));
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const std::int64_t q_rows = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t kv_rows = std::int64_t{config.kv_heads} * config.head_dim;
  std::vector<ExpectedTensor> out = {{"embed_tokens", {config.vocabulary, config.hidden}}, {"norm", {config.hidden}}};
  if (!config.tied_embeddings) out.push_back({"lm_head", {config.vocabulary, config.hidden}});
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const auto add = [&](std::string_view name, std::vector<std::int64_t> shape, bool bias) {
      const auto full = concat("layers.", layer, ".", name);
      if (bias) out.push_back({concat(full, ".bias"), {shape[0]}});
      out.push_back({full, std::move(shape)});
    };
    add("input_layernorm", {config.hidden}, false);
    add("post_attention_layernorm", {config.hidden}, false);
    add("self_attn.q_proj", {q_rows, config.hidden}, config.qkv_bias);
    add("self_attn.k_proj", {kv_rows, config.hidden}, config.qkv_bias);
    add("self_attn.v_proj", {kv_rows, config.hidden}, config.qkv_bias);
    add("self_attn.o_proj", {config.hidden, q_rows}, config.o_bias);
    if (config.qk_norm) {
      add("self_attn.q_norm", {config.head_dim}, false);
      add("self_attn.k_norm", {config.head_dim}, false);
    }
    add("mlp.gate_proj", {config.intermediate, config.hidden}, config.mlp_bias);
    add("mlp.up_proj", {config.intermediate, config.hidden}, config.mlp_bias);
    add("mlp.down_proj", {config.hidden, config.intermediate}, config.mlp_bias);
  }
  return out;
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
  if (!checkpoint->unused_tensors().empty()) {
    log_warn("checkpoint tensors that the model does not use: ", name_list(checkpoint->unused_tensors()));
  }
  return checkpoint;
}

}  // namespace hotset::model
