// A checkpoint on disk behind one set of names, whatever its format (GGUF file, safetensors folder).
//
// Canonical names are Hugging Face's without the leading "model." and the trailing ".weight":
//   "embed_tokens" [vocabulary, hidden], "norm" [hidden], "lm_head" [vocabulary, hidden], and for each layer N
//   "layers.N.input_layernorm" [hidden], "layers.N.post_attention_layernorm" [hidden],
//   "layers.N.self_attn.q_proj" [heads * head_dim, hidden], ".k_proj", ".v_proj" [kv_heads * head_dim, hidden],
//   ".o_proj" [hidden, heads * head_dim], with qk_norm ".q_norm", ".k_norm" [head_dim],
//   "layers.N.mlp.gate_proj", ".up_proj" [intermediate, hidden], ".down_proj" [hidden, intermediate];
//   a bias is the matrix's name with ".bias" [rows].
// Rows of q_proj and k_proj (and their biases) are always in half-split RoPE order: kernels::RopeParams.
// With tied embeddings "lm_head" is "embed_tokens", also where the file holds a redundant copy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/result.h"
#include "kernels/tensor.h"
#include "model/gguf_metadata.h"
#include "model/model_config.h"

namespace hotset::model {

// Where the vocabulary comes from, and what a chat needs beside it.
struct TokenizerSource {
  // Nothing (only token ids can be served), a GGUF's metadata, or the path of a tokenizer.json.
  std::variant<std::monostate, std::shared_ptr<const GgufMetadata>, std::filesystem::path> vocabulary;
  std::string chat_template;    // Jinja source; empty: none
  std::string bos_token;        // text, as chat templates print it; empty: none
  std::string eos_token;        // same
  std::string pad_token;        // same
  std::string unk_token;        // same
  std::optional<bool> add_bos;  // whether plain text gets a BOS; null: as the vocabulary says
  std::optional<bool> add_eos;  // same for EOS
};

// A tensor as the file declares it.
struct TensorInfo {
  std::string type;                 // the file's spelling: "BF16", "Q4_K"
  std::vector<std::int64_t> shape;  // outermost first: a matrix is [rows, cols]
};

// Owned by the thread that loads the model. Views stay valid as long as the checkpoint: pack the weights, then destroy
// it.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual const TokenizerSource& tokenizer_source() const = 0;

  // nullopt: no such tensor. Shape and type of any tensor, usable or not.
  [[nodiscard]] virtual std::optional<TensorInfo> info(std::string_view canonical_name) const = 0;
  [[nodiscard]] bool has(std::string_view canonical_name) const { return info(canonical_name).has_value(); }

  // A matrix in the file's own format. GGUF's q_proj and k_proj of Llama are copies that the checkpoint owns (their
  // rows are put into half-split order); everything else points into the mapped file, which may have any alignment of
  // bytes. Errors: kNotFound, kInvalidArgument (a type or number of dimensions that can't be used). Validated
  // checkpoints give every expected tensor without an error.
  [[nodiscard]] virtual Result<kernels::MatrixView> matrix(std::string_view canonical_name) = 0;

  // A norm's weight or a bias as float32. Types F32, F16, BF16. Errors as above.
  [[nodiscard]] virtual Result<std::vector<float>> vector(std::string_view canonical_name) const = 0;

  // Tensors in the file that no canonical name leads to, in the file's spelling, ascending.
  [[nodiscard]] virtual std::vector<std::string> unused_tensors() const = 0;
};

// One tensor that a config asks for.
struct ExpectedTensor {
  std::string name;                 // canonical
  std::vector<std::int64_t> shape;  // [rows, cols] or [width]
};
[[nodiscard]] std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Every expected tensor is there, has the shape that the config asks for and a type that can be used. The error names
// the tensor, or lists the missing ones (the first 8 and their number).
Result<void> validate_checkpoint(const Checkpoint& checkpoint);

// `path`: a .gguf file, a folder with config.json and safetensors (single or sharded by an index), or a .safetensors
// file in such a folder. The result has been validated; unexpected tensors were logged as a warning. Nothing is read
// but headers: bad weights beyond them can't be seen here. Errors: kNotFound (no such path), kCorrupt (a file that
// breaks its format), kInvalidArgument (a model that is not supported, by the name of the architecture or option;
// missing shards or tensors, listed).
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path);

}  // namespace hotset::model
