#include "model/weights.h"

#include <cmath>
#include <cstring>
#include <string>

#include "core/concat.h"
#include "model/float_conversion.h"
#include "model/rope.h"

namespace hotset::model {
namespace {

std::span<const std::byte> rows_of(const kernels::MatrixView& view, std::int64_t first, std::int64_t rows) {
  const std::size_t row_bytes = view.data.size() / static_cast<std::size_t>(view.rows);
  return view.data.subspan(static_cast<std::size_t>(first) * row_bytes, static_cast<std::size_t>(rows) * row_bytes);
}

// `data` [rows, cols] of `bytes` each as [cols, rows].
std::vector<std::byte> transposed(std::span<const std::byte> data, std::int64_t rows, std::int64_t cols,
                                  std::int32_t bytes) {
  std::vector<std::byte> out(data.size());
  const auto size = static_cast<std::size_t>(bytes);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      std::memcpy(&out[static_cast<std::size_t>(col * rows + row) * size],
                  &data[static_cast<std::size_t>(row * cols + col) * size], size);
    }
  }
  return out;
}

// What the model multiplies by as it is.
bool is_projection(std::string_view name) {
  for (const std::string_view other : {"embed_tokens", "lm_head", "mlp.gate", "kv_b_proj", "indexer.weights_proj"}) {
    if (name.ends_with(other)) return false;
  }
  return true;
}

// Of an expert: what its layer's names begin with; else empty.
std::string_view experts_prefix(std::string_view name) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const auto at = name.find(kExperts);
  return at == std::string_view::npos ? std::string_view() : name.substr(0, at + kExperts.size());
}

// Loads tensors one after the other and keeps the first error.
class WeightLoader {
 public:
  WeightLoader(Checkpoint& checkpoint, kernels::DenseBackend& backend)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        backend_(backend),
        fp8_(fp8_matrices(checkpoint,
                          [&](std::int64_t rows, std::int64_t cols) { return backend.takes_fp8(rows, cols); })) {}

  Matrix matrix(const std::string& name) {
    Matrix packed;
    with_view(name, [&](const kernels::MatrixView& view) { packed = backend_.pack(view); });
    return packed;
  }
  Vector vector(const std::string& name) {
    if (!status_.ok()) return {};
    auto values = checkpoint_.vector(name);
    if (!values.ok()) {
      status_ = values.error();
      return {};
    }
    return backend_.array_of(std::span<const float>(values.value()));
  }
  Linear linear(const std::string& name, bool bias = false) {
    Linear out;
    out.weight = matrix(name);
    if (bias) out.bias = vector(name + ".bias");
    return out;
  }
  LayerWeights layer(std::int32_t index);
  [[nodiscard]] const Result<void>& status() const { return status_; }

 private:
  [[nodiscard]] Result<kernels::MatrixView> view_of(const std::string& name) {
    return fp8_.contains(name) ? checkpoint_.fp8_matrix(name) : checkpoint_.matrix(name);
  }
  template <class Use>
  void with_view(const std::string& name, const Use& use) {
    if (!status_.ok()) return;
    const auto view = view_of(name);
    if (!view.ok()) {
      status_ = view.error();
      return;
    }
    use(view.value());
    checkpoint_.release(name);
  }
  // As with_view(), of elements that stand alone.
  template <class Use>
  void with_elements(const std::string& name, const Use& use) {
    with_view(name, [&](const kernels::MatrixView& view) {
      if (kernels::block_format(view.type).elements == 1) return use(view);
      status_ = invalid_argument(concat("tensor ", name, " is in a block format, which is not supported for it"));
    });
  }
  // Matrices of the same columns; returns the one of all their rows, or null.
  Matrix joined(const std::vector<std::pair<std::string, Linear*>>& parts);
  GroupedAttentionWeights grouped(const std::string& prefix);
  LatentAttentionWeights latent(const std::string& prefix, std::int32_t index);
  void split_kv_b(const std::string& name, LatentAttentionWeights& out);
  IndexerWeights indexer(const std::string& prefix);
  MlpWeights mlp(const std::string& prefix, bool bias = false);
  ExpertsWeights experts(const std::string& prefix);

  Checkpoint& checkpoint_;
  const ModelConfig& config_;
  kernels::DenseBackend& backend_;
  std::set<std::string, std::less<>> fp8_;
  Result<void> status_;
};

LayerWeights WeightLoader::layer(std::int32_t index) {
  const std::string prefix = concat("layers.", index, ".");
  LayerWeights out;
  out.attention_norm = vector(prefix + "input_layernorm");
  out.mlp_norm = vector(prefix + "post_attention_layernorm");
  if (config_.latent) {
    out.attention = latent(prefix + "self_attn.", index);
  } else {
    out.attention = grouped(prefix + "self_attn.");
  }
  if (config_.experts && config_.experts->sparse_layer[static_cast<std::size_t>(index)]) {
    out.feed_forward = experts(prefix + "mlp.");
  } else {
    out.feed_forward = mlp(prefix + "mlp.", config_.mlp_bias);
  }
  return out;
}

Matrix WeightLoader::joined(const std::vector<std::pair<std::string, Linear*>>& parts) {
  std::vector<kernels::MatrixView> views;
  for (const auto& [name, linear] : parts) {
    if (status_.ok()) {
      const auto view = view_of(name);
      if (!view.ok()) {
        status_ = view.error();
      } else {
        views.push_back(view.value());
      }
    }
  }
  if (!status_.ok()) return nullptr;
  kernels::JoinedMatrices packed = backend_.pack_joined(views);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].second->weight = std::move(packed.parts[i]);
    checkpoint_.release(parts[i].first);
  }
  return std::move(packed.all);
}

GroupedAttentionWeights WeightLoader::grouped(const std::string& prefix) {
  GroupedAttentionWeights out;
  if (config_.qkv_bias || config_.qk_norm) {
    out.q = linear(prefix + "q_proj", config_.qkv_bias);
    out.k = linear(prefix + "k_proj", config_.qkv_bias);
    out.v = linear(prefix + "v_proj", config_.qkv_bias);
  } else {
    out.qkv = joined({{prefix + "q_proj", &out.q}, {prefix + "k_proj", &out.k}, {prefix + "v_proj", &out.v}});
  }
  out.o = linear(prefix + "o_proj", config_.o_bias);
  if (config_.qk_norm) {
    out.q_norm = vector(prefix + "q_norm");
    out.k_norm = vector(prefix + "k_norm");
  }
  return out;
}

LatentAttentionWeights WeightLoader::latent(const std::string& prefix, std::int32_t index) {
  LatentAttentionWeights out;
  std::vector<std::pair<std::string, Linear*>> inputs;
  if (config_.latent->q_rank > 0) {
    inputs.emplace_back(prefix + "q_a_proj", &out.q_a);
    out.q_norm = vector(prefix + "q_a_layernorm");
    out.q = linear(prefix + "q_b_proj");
  } else {
    out.q = linear(prefix + "q_proj");
  }
  if (config_.indexer && config_.indexer->full_layer[static_cast<std::size_t>(index)]) {
    out.indexer = indexer(prefix + "indexer.");
    inputs.emplace_back(prefix + "indexer.wk", &out.indexer->k);
  }
  inputs.emplace_back(prefix + "kv_a_proj_with_mqa", &out.kv_a);
  out.inputs = joined(inputs);
  out.kv_norm = vector(prefix + "kv_a_layernorm");
  split_kv_b(prefix + "kv_b_proj", out);
  out.o = linear(prefix + "o_proj");
  return out;
}

// The file has the rows of each head's K before those of its V.
void WeightLoader::split_kv_b(const std::string& name, LatentAttentionWeights& out) {
  with_elements(name, [&](const kernels::MatrixView& view) {
    const std::int64_t nope = config_.latent->nope_dim;
    const std::int64_t value = config_.latent->value_dim;
    const std::int32_t bytes = kernels::block_format(view.type).bytes;
    std::vector<std::byte> all_k, all_v;
    std::vector<std::vector<std::byte>> absorbing;
    std::vector<kernels::MatrixView> absorb_k, output_v;
    for (std::int64_t head = 0; head < config_.heads; ++head) {
      const auto k = rows_of(view, head * (nope + value), nope);
      const auto v = rows_of(view, head * (nope + value) + nope, value);
      all_k.insert(all_k.end(), k.begin(), k.end());
      all_v.insert(all_v.end(), v.begin(), v.end());
      absorbing.push_back(transposed(k, nope, view.cols, bytes));
      absorb_k.push_back({view.type, view.cols, nope, absorbing.back()});
      output_v.push_back({view.type, value, view.cols, v});
    }
    out.absorb_k = backend_.pack_batch(absorb_k);
    out.output_v = backend_.pack_batch(output_v);
    out.expand_k = backend_.pack({view.type, config_.heads * nope, view.cols, all_k});
    out.expand_v = backend_.pack({view.type, config_.heads * value, view.cols, all_v});
    for (const Matrix& matrix : out.absorb_k) out.absorb_k_views.push_back(matrix.get());
    for (const Matrix& matrix : out.output_v) out.output_v_views.push_back(matrix.get());
  });
}

// All but k.
IndexerWeights WeightLoader::indexer(const std::string& prefix) {
  IndexerWeights out;
  out.q = linear(prefix + "wq_b");
  out.k_norm = vector(prefix + "k_norm");
  out.k_norm_bias = vector(prefix + "k_norm.bias");
  with_elements(prefix + "weights_proj", [&](const kernels::MatrixView& view) {
    const double elements = static_cast<double>(config_.indexer->heads) * config_.indexer->dim;
    const auto factor = static_cast<float>(1.0 / std::sqrt(elements));
    std::vector<float> scaled = *to_float32(view.type, view.data);
    for (float& weight : scaled) weight *= factor;
    out.weights.weight =
        backend_.pack({kernels::WeightType::kF32, view.rows, view.cols, std::as_bytes(std::span(scaled))});
  });
  return out;
}

MlpWeights WeightLoader::mlp(const std::string& prefix, bool bias) {
  MlpWeights out;
  if (bias) {
    out.gate = linear(prefix + "gate_proj", bias);
    out.up = linear(prefix + "up_proj", bias);
  } else {
    out.gate_up = joined({{prefix + "gate_proj", &out.gate}, {prefix + "up_proj", &out.up}});
  }
  out.down = linear(prefix + "down_proj", bias);
  return out;
}

ExpertsWeights WeightLoader::experts(const std::string& prefix) {
  ExpertsWeights out;
  out.router = linear(prefix + "gate");
  if (config_.experts->correction_bias) out.correction_bias = vector(prefix + "gate.e_score_correction_bias");
  using Part = kernels::PackedExperts::Part;
  out.experts = backend_.make_experts({.count = config_.experts->count,
                                       .hidden = config_.hidden,
                                       .intermediate = config_.experts->intermediate,
                                       .fp8 = fp8_.contains(prefix + "experts.0.gate_proj")});
  for (std::int32_t expert = 0; expert < config_.experts->count && status_.ok(); ++expert) {
    const std::string of_expert = concat(prefix, "experts.", expert, ".");
    for (const auto& [name, part] :
         {std::pair("gate_proj", Part::kGate), std::pair("up_proj", Part::kUp), std::pair("down_proj", Part::kDown)}) {
      with_view(of_expert + name, [&](const kernels::MatrixView& view) { out.experts->set(expert, part, view); });
    }
  }
  if (config_.experts->shared > 0) out.shared = mlp(prefix + "shared_experts.");
  return out;
}

// Sums up the elements of matrices, and the bytes that they take.
class Counter {
 public:
  explicit Counter(const ModelConfig& config)
      : experts_(config.experts.value_or(ExpertsConfig{})), hidden_(config.hidden) {}
  void operator()(const Matrix& matrix) {
    if (!matrix) return;
    elements_ += matrix->rows() * matrix->cols();
    bytes_ += matrix->bytes();
  }
  void operator()(const MlpWeights& mlp) {
    for (const Linear* linear : {&mlp.gate, &mlp.up, &mlp.down}) (*this)(linear->weight);
  }
  void operator()(const ExpertsWeights& weights) {
    (*this)(weights.router.weight);
    elements_ += 3 * std::int64_t{experts_.count} * experts_.intermediate * hidden_;
    bytes_ += weights.experts->bytes();
    if (weights.shared) (*this)(*weights.shared);
  }
  void operator()(const GroupedAttentionWeights& weights) {
    for (const Linear* linear : {&weights.q, &weights.k, &weights.v, &weights.o}) (*this)(linear->weight);
  }
  void operator()(const LatentAttentionWeights& weights) {
    for (const Linear* linear : {&weights.q_a, &weights.q, &weights.kv_a, &weights.o}) (*this)(linear->weight);
    (*this)(weights.expand_k);
    (*this)(weights.expand_v);
    if (!weights.indexer) return;
    for (const Linear* linear : {&weights.indexer->q, &weights.indexer->k, &weights.indexer->weights}) {
      (*this)(linear->weight);
    }
  }
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  ExpertsConfig experts_;
  std::int64_t hidden_;
  std::int64_t elements_ = 0;
  std::int64_t bytes_ = 0;
};

Counter count_matrices(const ModelWeights& weights) {
  Counter counter(weights.config);
  counter(weights.embedding);
  counter(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    std::visit(counter, layer.attention);
    std::visit(counter, layer.feed_forward);
  }
  return counter;
}

}  // namespace

std::int64_t ModelWeights::parameters() const { return count_matrices(*this).elements(); }
std::int64_t ModelWeights::matrix_bytes() const { return count_matrices(*this).bytes(); }

std::set<std::string, std::less<>> fp8_matrices(const Checkpoint& checkpoint, const TakesFp8& takes) {
  std::set<std::string, std::less<>> out;
  std::set<std::string, std::less<>> mixed;  // prefixes of experts of which one can't
  for (const ExpectedTensor& tensor : expected_tensors(checkpoint.config())) {
    if (tensor.shape.size() != 2 || !is_projection(tensor.name)) continue;
    if (checkpoint.has_fp8(tensor.name) && takes(tensor.shape[0], tensor.shape[1])) {
      out.insert(tensor.name);
    } else if (const auto prefix = experts_prefix(tensor.name); !prefix.empty()) {
      mixed.emplace(prefix);
    }
  }
  std::erase_if(out, [&](const std::string& name) { return mixed.contains(experts_prefix(name)); });
  return out;
}

Result<std::unique_ptr<ModelWeights>> load_weights(Checkpoint& checkpoint, kernels::DenseBackend& backend) {
  auto weights = std::make_unique<ModelWeights>();
  weights->config = checkpoint.config();
  const RopeTable rope = make_rope(weights->config);
  weights->inv_freq = backend.array_of(std::span<const float>(rope.inv_freq));
  weights->rope_attention_factor = rope.attention_factor;
  WeightLoader loader(checkpoint, backend);
  weights->embedding = loader.matrix("embed_tokens");
  weights->final_norm = loader.vector("norm");
  if (!weights->config.tied_embeddings) weights->lm_head = loader.matrix("lm_head");
  for (std::int32_t layer = 0; layer < weights->config.layers && loader.status().ok(); ++layer) {
    weights->layers.push_back(loader.layer(layer));
  }
  if (!loader.status().ok()) return loader.status().error();
  return weights;
}

}  // namespace hotset::model
