#include "model/gguf_checkpoint.h"

#include <array>
#include <set>
#include <utility>

#include "core/concat.h"
#include "model/gguf_config.h"
#include "model/gguf_reader.h"

namespace hotset::model {
namespace {

struct NamePair {
  std::string_view canonical;
  std::string_view gguf;
};
constexpr std::array kModelNames = {
    NamePair{"embed_tokens", "token_embd"},
    NamePair{"norm", "output_norm"},
    NamePair{"lm_head", "output"},
};
constexpr std::array kLayerNames = {
    NamePair{"input_layernorm", "attn_norm"},    NamePair{"post_attention_layernorm", "ffn_norm"},
    NamePair{"self_attn.q_proj", "attn_q"},      NamePair{"self_attn.k_proj", "attn_k"},
    NamePair{"self_attn.v_proj", "attn_v"},      NamePair{"self_attn.o_proj", "attn_output"},
    NamePair{"self_attn.q_norm", "attn_q_norm"}, NamePair{"self_attn.k_norm", "attn_k_norm"},
    NamePair{"mlp.gate_proj", "ffn_gate"},       NamePair{"mlp.up_proj", "ffn_up"},
    NamePair{"mlp.down_proj", "ffn_down"},
};
constexpr std::string_view kBias = ".bias";

// "layers.3.self_attn.q_proj.bias" -> "blk.3.attn_q.bias". Only for names out of expected_tensors().
std::string gguf_name(std::string_view canonical) {
  const bool bias = canonical.ends_with(kBias);
  if (bias) canonical.remove_suffix(kBias.size());
  const std::string_view suffix = bias ? kBias : ".weight";
  for (const auto& name : kModelNames) {
    if (name.canonical == canonical) return concat(name.gguf, suffix);
  }
  constexpr std::string_view kLayers = "layers.";
  canonical.remove_prefix(kLayers.size());
  const auto dot = canonical.find('.');
  for (const auto& name : kLayerNames) {
    if (name.canonical == canonical.substr(dot + 1))
      return concat("blk.", canonical.substr(0, dot), ".", name.gguf, suffix);
  }
  check_failed(__FILE__, __LINE__, "gguf_name", "a canonical name without a GGUF name");
}

// llama.cpp's converter reorders the rows of Q and K for adjacent-pair RoPE in architecture "llama" only; the Qwen
// families keep Hugging Face's half-split order.
std::optional<AdjacentPairs> adjacent_pairs(const ModelConfig& config, std::string_view canonical) {
  if (config.architecture != Architecture::kLlama) return std::nullopt;
  if (canonical.find(".q_proj") != std::string_view::npos) {
    return AdjacentPairs{config.heads, config.head_dim, 0, config.head_dim};
  }
  if (canonical.find(".k_proj") != std::string_view::npos) {
    return AdjacentPairs{config.kv_heads, config.head_dim, 0, config.head_dim};
  }
  return std::nullopt;
}

Result<TokenizerSource> read_tokenizer(const std::shared_ptr<const GgufMetadata>& metadata) {
  TokenizerSource source;
  auto model = metadata->string("tokenizer.ggml.model");
  if (!model) return model.error();
  if (!model.value() || *model.value() == "none" || *model.value() == "no_vocab") return source;
  source.vocabulary = metadata;

  auto chat_template = metadata->string("tokenizer.chat_template");
  if (!chat_template) return chat_template.error();
  source.chat_template = chat_template.value().value_or("");
  auto add_bos = metadata->boolean("tokenizer.ggml.add_bos_token");
  if (!add_bos) return add_bos.error();
  source.add_bos = add_bos.value();
  auto add_eos = metadata->boolean("tokenizer.ggml.add_eos_token");
  if (!add_eos) return add_eos.error();
  source.add_eos = add_eos.value();

  auto tokens = metadata->strings("tokenizer.ggml.tokens");
  if (!tokens) return tokens.error();
  if (!tokens.value()) return corrupt("GGUF metadata tokenizer.ggml.tokens is missing");
  const std::pair<std::string_view, std::string*> texts[] = {{"tokenizer.ggml.bos_token_id", &source.bos_token},
                                                             {"tokenizer.ggml.eos_token_id", &source.eos_token},
                                                             {"tokenizer.ggml.padding_token_id", &source.pad_token},
                                                             {"tokenizer.ggml.unknown_token_id", &source.unk_token}};
  for (const auto& [key, text] : texts) {
    auto id = metadata->integer(key);
    if (!id) return id.error();
    if (!id.value()) continue;
    const auto index = static_cast<std::uint64_t>(*id.value());
    if (index >= tokens.value()->size())
      return corrupt(concat("GGUF metadata ", key, " is no token of the vocabulary"));
    *text = (*tokens.value())[index];
  }
  return source;
}

}  // namespace

Result<CheckpointContents> read_gguf_checkpoint(const std::filesystem::path& path) {
  auto file = read_gguf(path);
  if (!file) return file.error();
  auto& gguf = file.value();
  auto config = parse_gguf_config(gguf);
  if (!config) return config.error();
  auto tokenizer = read_tokenizer(gguf.metadata);
  if (!tokenizer) return tokenizer.error();

  CheckpointContents out;
  out.config = std::move(config).value();
  out.tokenizer = std::move(tokenizer).value();
  out.files.push_back(gguf.file);
  std::set<std::string, std::less<>> used = {"rope_freqs.weight"};
  for (const auto& expected : expected_tensors(out.config)) {
    const auto it = gguf.tensors.find(gguf_name(expected.name));
    if (it == gguf.tensors.end()) continue;
    used.insert(it->first);
    const auto& tensor = it->second;
    out.tensors.emplace(expected.name, StoredTensor{it->first,
                                                    {std::string(weight_type_name(tensor.type)), tensor.shape},
                                                    tensor.type,
                                                    tensor.data,
                                                    adjacent_pairs(out.config, expected.name),
                                                    std::nullopt});
  }
  for (const auto& [name, tensor] : gguf.tensors) {
    if (!used.contains(name)) out.unused_tensors.push_back(name);
  }
  return out;
}

}  // namespace hotset::model
