// A checkpoint on disk behind one set of names, whatever its format (GGUF file, safetensors folder).
//
// Canonical names are Hugging Face's without the leading "model." and the trailing ".weight":
//   "embed_tokens" [vocabulary, hidden], "norm" [hidden], "lm_head" [vocabulary, hidden], and for each layer N
//   "layers.N.input_layernorm" [hidden], "layers.N.post_attention_layernorm" [hidden],
//   "layers.N.self_attn.q_proj" [heads * head_dim, hidden], ".k_proj", ".v_proj" [kv_heads * head_dim, hidden],
//   ".o_proj" [hidden, heads * head_dim], with qk_norm ".q_norm", ".k_norm" [head_dim],
//   "layers.N.mlp.gate_proj", ".up_proj" [intermediate, hidden], ".down_proj" [hidden, intermediate];
//   a bias is the matrix's name with ".bias" [rows].
// With latent attention (config.latent) a layer has instead of q_proj, k_proj and v_proj
//   "layers.N.self_attn.q_a_proj" [q_rank, hidden], ".q_a_layernorm" [q_rank],
//   ".q_b_proj" [heads * (nope_dim + rope_dim), q_rank], or where q_rank is 0 ".q_proj" [the same rows, hidden],
//   ".kv_a_proj_with_mqa" [kv_rank + rope_dim, hidden], ".kv_a_layernorm" [kv_rank],
//   ".kv_b_proj" [heads * (nope_dim + value_dim), kv_rank], each head's nope rows before its value rows;
//   ".o_proj" is [hidden, heads * value_dim];
// with an indexer, in its full layers only,
//   "layers.N.self_attn.indexer.wq_b" [index heads * index dim, q_rank], ".wk" [index dim, hidden],
//   ".k_norm", ".k_norm.bias" [index dim], ".weights_proj" [index heads, hidden];
// and a layer with experts instead of its dense MLP
//   "layers.N.mlp.gate" [count, hidden], with correction_bias "layers.N.mlp.gate.e_score_correction_bias" [count],
//   "layers.N.mlp.experts.E.gate_proj", ".up_proj" [expert's intermediate, hidden], ".down_proj" [hidden, expert's
//   intermediate], with shared > 0 "layers.N.mlp.shared_experts.gate_proj", ... of shared * expert's intermediate.
// Rows that RoPE turns (and their biases and norms) are always in half-split order, kernels::RopeParams, whatever order
// the file has: those of q_proj and k_proj; the last rope_dim rows of each head of q_b_proj (or q_proj) and of
// kv_a_proj_with_mqa; the first rope_dim rows of each head of indexer.wq_b, of indexer.wk and of indexer.k_norm.
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

// Rows that lie in adjacent-pair RoPE order, (0, 1), (2, 3), ...: in each head those from `first` on, `count` of them.
struct AdjacentPairs {
  std::int64_t heads = 0;
  std::int64_t head_rows = 0;  // all rows of a head: heads * head_rows is the tensor's outermost dimension
  std::int64_t first = 0;
  std::int64_t count = 0;  // even, >= 2
};

// The scales of a matrix in FP8, one for each block of 128 x 128 (kernels::kFp8Block).
struct BlockScales {
  kernels::WeightType type = kernels::WeightType::kF32;  // or F16, BF16
  std::span<const std::byte> data;
};

// A tensor of a checkpoint, filled in by the reader of its format.
struct StoredTensor {
  std::string file_name;                    // the file's name of it, for messages
  TensorInfo info;                          // of this tensor; where the file stacks several, of the part
  std::optional<kernels::WeightType> type;  // as it is handed out; null: a type that can't be used as a weight
  std::span<const std::byte> data;          // exactly as many bytes as type and shape say; with scales one each
  std::optional<AdjacentPairs> pairs;       // null: rows are as they shall be
  std::optional<BlockScales> scales;        // `data` are E4M3 codes, `type` is F32
};

struct CheckpointContents {
  ModelConfig config;
  TokenizerSource tokenizer;
  std::map<std::string, StoredTensor, std::less<>> tensors;  // by canonical name
  std::vector<std::string> unused_tensors;                   // file names that no canonical name leads to, ascending
  std::size_t draft_tensors = 0;                             // of the config's mtp_layers, left out of the above
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
  [[nodiscard]] std::size_t draft_tensors() const { return contents_.draft_tensors; }

  // nullptr: no such tensor. Any tensor, usable or not.
  [[nodiscard]] const StoredTensor* find(std::string_view canonical_name) const;
  [[nodiscard]] bool has(std::string_view canonical_name) const { return find(canonical_name) != nullptr; }

  // A matrix in the file's own format (FP8: as float32), at an address that is a multiple of 4. It points into the
  // mapped file; what lies there unaligned, in adjacent-pair order or as FP8 is a copy that the checkpoint owns until
  // release(). Errors: kNotFound; kInvalidArgument for a type or a number of dimensions that can't be used. A validated
  // checkpoint gives every expected tensor without an error.
  [[nodiscard]] Result<kernels::MatrixView> matrix(std::string_view canonical_name);

  // Whether fp8_matrix() has it: FP8 in the file, and its rows come into order within their blocks of scales. With a
  // config alone: whether the config says that weights are FP8.
  [[nodiscard]] bool has_fp8(std::string_view canonical_name) const;
  // The same matrix as kFp8Block, at any address. Errors: kNotFound without has_fp8(); kCorrupt for a code that is NaN.
  [[nodiscard]] Result<kernels::MatrixView> fp8_matrix(std::string_view canonical_name);

  // Frees the copies behind a matrix, if there are any; its views become invalid. Without it the copies of a large FP8
  // checkpoint add up to four times its size.
  void release(std::string_view canonical_name);

  // A norm's weight or a bias as float32. Types F32, F16, BF16. Errors as above.
  [[nodiscard]] Result<std::vector<float>> vector(std::string_view canonical_name) const;

 private:
  struct Copies {
    std::vector<std::byte> matrix;
    std::vector<std::byte> codes;  // of fp8_matrix(): empty where the file's can be used
    std::vector<float> scales;     // likewise
  };
  CheckpointContents contents_;
  std::map<std::string, Copies, std::less<>> copies_;  // by canonical name
};

// One tensor that a config asks for.
struct ExpectedTensor {
  std::string name;                 // canonical
  std::vector<std::int64_t> shape;  // [rows, cols] or [width]
};
[[nodiscard]] std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);
// Numbers of all tensors that a model of this config holds in memory: what is taken apart in two forms counts twice.
[[nodiscard]] std::int64_t weight_count(const ModelConfig& config);

// Every expected tensor is there, has the shape that the config asks for and a type that can be used. The error names
// the tensor, or lists the missing ones (the first 8 and their number).
Result<void> validate_checkpoint(const Checkpoint& checkpoint);

// `path`: a .gguf file, a folder with config.json and safetensors (single or sharded by an index), or a .safetensors
// file in such a folder. The result has been validated; unexpected tensors were logged as a warning. Nothing is read
// but headers: bad weights beyond them can't be seen here. Errors: kNotFound (no such path), kCorrupt (a file that
// breaks its format), kInvalidArgument (a model that is not supported, by the name of the architecture or option;
// missing shards or tensors, listed; an FP8 matrix without scales or with scales of another shape).
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path);

}  // namespace hotset::model
