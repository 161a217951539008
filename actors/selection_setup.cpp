#include "actors/selection_setup.h"

#include <optional>
#include <utility>

#include "core/concat.h"
#include "core/log.h"
#include "model/index_basis_source.h"
#include "model/kv_layout.h"
#include "sparse/dsa.h"
#include "sparse/index_basis.h"
#include "sparse/low_rank.h"
#include "sparse/quest.h"

namespace hotset::actors {
namespace {

constexpr std::uint64_t kDummyBasisSeed = 2;

using Made = Result<std::shared_ptr<const sparse::SelectionAlgorithm>>;

kernels::HeadCombine combine_of(const std::string& name) {
  if (name == "mean") return kernels::HeadCombine::kMean;
  return name == "softmax" ? kernels::HeadCombine::kSoftmax : kernels::HeadCombine::kMax;
}

Made make_dsa_of(const ServerConfig& config, const model::ModelConfig& model) {
  return sparse::make_dsa({.top_k = model.indexer->top_k, .dim = model.indexer->dim, .dtype = kv_dtype_of(config)});
}

Made make_quest_of(const ServerConfig& config, const model::ModelConfig& model) {
  const KvGeometry rows = model::kv_geometry_of(model, kv_dtype_of(config));
  return sparse::make_quest({.block_tokens = config.sparse_block,
                             .window = config.sparse_window,
                             .budget = config.sparse_budget,
                             .combine = combine_of(config.quest_combine),
                             .kv_heads = rows.kv_heads,
                             .key_dim = rows.key_dim,
                             .rows_dtype = rows.dtype});
}

const char* words_for(model::IndexBasisOrigin origin) {
  switch (origin) {
    case model::IndexBasisOrigin::kBesideModel: return "beside the model";
    case model::IndexBasisOrigin::kCache: return "from the cache folder";
    case model::IndexBasisOrigin::kCalibrated: return "calibrated at this start";
  }
  return "";
}

}  // namespace

KvDType kv_dtype_of(const ServerConfig& config) {
  switch (config.kv_dtype) {
    case KvDTypeChoice::kBF16: return KvDType::kBF16;
    case KvDTypeChoice::kFp8: return KvDType::kFp8;
    case KvDTypeChoice::kAuto:
    case KvDTypeChoice::kF32: break;
  }
  return KvDType::kF32;
}

Result<std::string> algorithm_of(const ServerConfig& config, const model::ModelConfig& model,
                                 std::int64_t max_context) {
  if (config.algorithm != "auto") {
    if (config.algorithm == "dsa" && !model.indexer) {
      return invalid_argument("--algorithm dsa: this model has no indexer; use auto or lowrank", "--algorithm");
    }
    return config.algorithm;
  }
  if (model.indexer) return std::string("dsa");
  return std::string(max_context > config.sparse_threshold ? "lowrank" : "dense");
}

MetadataGeometry expected_metadata(const std::string& algorithm, const ServerConfig& config,
                                   const model::ModelConfig& model) {
  const KvGeometry rows = model::kv_geometry_of(model, kv_dtype_of(config));
  if (algorithm == "dsa") {
    const Made made = make_dsa_of(config, model);
    return made.ok() ? made.value()->metadata() : MetadataGeometry{};
  }
  if (algorithm == "quest") {
    const Made made = make_quest_of(config, model);
    return made.ok() ? made.value()->metadata() : MetadataGeometry{};
  }
  if (algorithm != "lowrank") return {};
  const std::int64_t rank =
      config.index_rank.value_or(sparse::default_index_rank(rows.key_dim, model.latent.has_value()));
  return {.kind = MetadataGeometry::Kind::kLowRankKeys,
          .kv_heads = rows.kv_heads,
          .dim = rows.key_dim,
          .rank = static_cast<std::int32_t>(rank),
          .block_tokens = 1,
          .dtype = rows.dtype};
}

Result<SelectionSetup> set_up_selection(const std::string& algorithm, const ServerConfig& config,
                                        const model::Checkpoint& checkpoint,
                                        const model::CalibrateModel& calibrate_model,
                                        const model::Tokenizer* tokenizer) {
  const model::ModelConfig& model = checkpoint.config();
  SelectionSetup setup;
  setup.policy.threshold = config.sparse_threshold;
  setup.description = algorithm;
  if (algorithm == "dense") return setup;
  Made made = invalid_argument("--algorithm is not known", "--algorithm");
  if (algorithm == "dsa") {
    setup.policy.threshold = model.indexer->top_k;  // as the model was trained
    made = make_dsa_of(config, model);
  } else if (algorithm == "quest") {
    made = make_quest_of(config, model);
  } else if (algorithm == "streaming") {
    made = sparse::make_streaming(config.sparse_block, config.sparse_window);
  } else if (algorithm == "lowrank" && config.load_format == "dummy") {
    const MetadataGeometry shape = expected_metadata(algorithm, config, model);
    if (auto ok = sparse::check_index_rank(shape.rank, shape.dim, "--index-rank"); !ok) return ok.error();
    const sparse::IndexBasis basis = sparse::random_index_basis(
        {.layers = model.layers, .kv_heads = shape.kv_heads, .key_dim = shape.dim, .rank = shape.rank},
        kDummyBasisSeed);
    setup.description = concat("lowrank (rank ", basis.rank, ", random)");
    made = sparse::make_low_rank({.sink = config.sparse_sink,
                                  .window = config.sparse_window,
                                  .budget = config.sparse_budget,
                                  .basis = std::make_shared<const sparse::IndexBasis>(basis)});
  } else if (algorithm == "lowrank") {
    auto found = model::find_or_calibrate(
        checkpoint, calibrate_model,
        {.model = config.model, .rank = config.index_rank, .cache_dir = config.cache_dir, .tokenizer = tokenizer});
    if (!found) return found.error();
    if (!found.value()) {
      constexpr const char* kNone =
          "there is no basis of index keys beside the model, and without a tokenizer it can't be calibrated";
      if (config.algorithm == "lowrank") {
        return invalid_argument(concat("--algorithm lowrank: ", kNone), "--algorithm");
      }
      log_warn(kNone, ": served with dense attention");
      setup.description = "dense";
      return setup;
    }
    const model::FoundIndexBasis& basis = *found.value();
    setup.description = concat("lowrank (rank ", basis.basis->rank, ", ", words_for(basis.origin), ")");
    made = sparse::make_low_rank({.sink = config.sparse_sink,
                                  .window = config.sparse_window,
                                  .budget = config.sparse_budget,
                                  .basis = basis.basis});
  }
  if (!made) return made.error();
  setup.policy.algorithm = std::move(made).value();
  setup.description += concat(", budget ", setup.policy.budget_blocks() * setup.policy.algorithm->block_tokens(),
                              " of more than ", setup.policy.threshold, " tokens");
  return setup;
}

}  // namespace hotset::actors
