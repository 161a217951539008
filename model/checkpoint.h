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

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/result.h"
#include "kernels/tensor.h"
#include "model/gguf_metadata.h"
#include "model/mapped_file.h"
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

// A tensor of a checkpoint, filled in by the reader of its format.
struct StoredTensor {
  std::string file_name;                    // the file's name of it, for messages
  TensorInfo info;                          // of this tensor; where the file stacks several, of the part
  std::optional<kernels::WeightType> type;  // null: a type that can't be used as a weight
  std::span<const std::byte> data;          // exactly as many bytes as type and shape say
  std::int32_t adjacent_pair_heads = 0;     // > 0: rows lie in adjacent-pair RoPE order, in this many heads
};

struct CheckpointContents {
  ModelConfig config;
  TokenizerSource tokenizer;
  std::map<std::string, StoredTensor, std::less<>> tensors;  // by canonical name
  std::vector<std::string> unused_tensors;                   // file names that no canonical name leads to, ascending
  std::vector<std::shared_ptr<const MappedFile>> files;      // keep `data` of the tensors valid
};

// Owned by the thread that loads the model. Views stay valid as long as the checkpoint: pack the weights, then destroy
// it.
class Checkpoint {
 public:
  explicit Checkpoint(CheckpointContents contents) : contents_(std::move(contents)) {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  [[nodiscard]] const ModelConfig& config() const { return contents_.config; }
  [[nodiscard]] const TokenizerSource& tokenizer_source() const { return contents_.tokenizer; }
  [[nodiscard]] const std::vector<std::string>& unused_tensors() const { return contents_.unused_tensors; }

  // nullptr: no such tensor. Any tensor, usable or not.
  [[nodiscard]] const StoredTensor* find(std::string_view canonical_name) const;
  [[nodiscard]] bool has(std::string_view canonical_name) const { return find(canonical_name) != nullptr; }

  // A matrix in the file's own format, at an address that is a multiple of 4. It points into the mapped file; what lies
  // there unaligned or in adjacent-pair order (Llama's q_proj and k_proj in a GGUF) is a copy that the checkpoint owns.
  // Errors: kNotFound; kInvalidArgument for a type or a number of dimensions that can't be used. A validated checkpoint
  // gives every expected tensor without an error.
  [[nodiscard]] Result<kernels::MatrixView> matrix(std::string_view canonical_name);

  // A norm's weight or a bias as float32. Types F32, F16, BF16. Errors as above.
  [[nodiscard]] Result<std::vector<float>> vector(std::string_view canonical_name) const;

 private:
  CheckpointContents contents_;
  std::map<std::string, std::vector<std::byte>, std::less<>> copies_;  // by canonical name
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
