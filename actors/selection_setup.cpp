#include "actors/selection_setup.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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

// Everything of a basis but its directions.
Result<sparse::IndexBasis> basis_shape(const ServerConfig& config, const model::ModelConfig& model) {
  const KvGeometry rows = model::kv_geometry_of(model, kv_dtype_of(config));
  const std::int64_t rank =
      config.index_rank.value_or(sparse::default_index_rank(rows.key_dim, model.latent.has_value()));
  if (auto ok = sparse::check_index_rank(rank, rows.key_dim, "--index-rank"); !ok) return ok.error();
  return sparse::IndexBasis{.layers = model.layers,
                            .kv_heads = rows.kv_heads,
                            .key_dim = rows.key_dim,
                            .rank = static_cast<std::int32_t>(rank)};
}

Made make_low_rank_of(const ServerConfig& config, std::shared_ptr<const sparse::IndexBasis> basis) {
  return sparse::make_low_rank({.sink = config.sparse_sink,
                                .window = config.sparse_window,
                                .budget = config.sparse_budget,
                                .basis = std::move(basis)});
}

// The option that a selection's size comes from.
const char* size_option_of(const sparse::SelectionAlgorithm& algorithm) {
  if (algorithm.name() == "dsa") return "--kv-mode";  // the model's index_topk
  return algorithm.name() == "streaming" ? "--sparse-window" : "--sparse-budget";
}

Result<void> check_limits(const EngineLimits& limits, const ServerConfig& config, const SequencePolicy& policy) {
  const sparse::SelectionAlgorithm& algorithm = *policy.selection.algorithm;
  if (algorithm.metadata().rank > limits.index_rank) {
    return invalid_argument(concat("--index-rank: index keys have rank ", algorithm.metadata().rank,
                                   ", and this device takes at most ", limits.index_rank),
                            "--index-rank");
  }
  if (config.kv_mode == KvModeChoice::kResident) return {};  // no sequence is ever hot
  const std::int64_t selected = std::max(algorithm.max_blocks(), algorithm.forced_blocks());
  if (selected > limits.selected_blocks) {
    const char* const option = size_option_of(algorithm);
    return invalid_argument(concat(option, ": ", algorithm.name(), " selects ", selected,
                                   " blocks, and a hot sequence on this device takes at most ", limits.selected_blocks,
                                   " (--kv-mode resident has no limit)"),
                            option);
  }
  if (policy.hot_shape.hot_blocks > limits.hot_blocks) {
    return invalid_argument(
        concat("--hot-buffer: a hot buffer has ", policy.hot_shape.hot_blocks, " blocks of ", algorithm.block_tokens(),
               " tokens, and this device takes at most ", limits.hot_blocks),
        "--hot-buffer");
  }
  return {};
}

Result<SharedPolicy> shared_policy(const ServerConfig& config, const sparse::SelectionPolicy& selection,
                                   bool keeps_metadata, const EngineLimits& limits) {
  // --hot-buffer is the server's algorithm's; another one on the menu has its default.
  const bool own = selection.algorithm->name() != "streaming" || config.algorithm == "streaming";
  auto shape =
      sparse::hot_buffer_shape_for(*selection.algorithm, config.hot_ring, own ? config.hot_buffer : std::nullopt);
  if (!shape) return shape.error();
  SequencePolicy policy{.selection = selection, .hot_shape = shape.value(), .keeps_metadata = keeps_metadata};
  if (auto fits = check_limits(limits, config, policy); !fits) return fits.error();
  return std::make_shared<const SequencePolicy>(std::move(policy));
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

Result<sparse::SelectionPolicy> expected_selection(const std::string& algorithm, const ServerConfig& config,
                                                   const model::ModelConfig& model) {
  sparse::SelectionPolicy policy{.algorithm = nullptr, .threshold = config.sparse_threshold, .budget = 0};
  if (algorithm == "dense") return policy;
  Made made = invalid_argument("--algorithm is not known", "--algorithm");
  if (algorithm == "dsa") {
    policy.threshold = model.indexer->top_k;  // as the model was trained
    made = sparse::make_dsa({.top_k = model.indexer->top_k, .dim = model.indexer->dim, .dtype = kv_dtype_of(config)});
  } else if (algorithm == "quest") {
    made = make_quest_of(config, model);
  } else if (algorithm == "streaming") {
    made = sparse::make_streaming(config.sparse_block, config.sparse_window);
  } else if (algorithm == "lowrank") {
    auto shape = basis_shape(config, model);
    if (!shape) return shape.error();
    made = make_low_rank_of(config, std::make_shared<const sparse::IndexBasis>(std::move(shape).value()));
  }
  if (!made) return made.error();
  policy.algorithm = std::move(made).value();
  return policy;
}

Result<SelectionSetup> set_up_selection(const std::string& algorithm, const ServerConfig& config,
                                        const model::Checkpoint& checkpoint,
                                        const model::CalibrateModel& calibrate_model,
                                        const model::Tokenizer* tokenizer) {
  auto expected = expected_selection(algorithm, config, checkpoint.config());
  if (!expected) return expected.error();
  SelectionSetup setup{.policy = std::move(expected).value(), .description = algorithm};
  if (algorithm == "dense") return setup;
  std::shared_ptr<const sparse::IndexBasis> basis;  // of low-rank keys
  if (algorithm == "lowrank" && config.load_format == "dummy") {
    basis = std::make_shared<const sparse::IndexBasis>(
        sparse::random_index_basis(*setup.policy.algorithm->basis(), kDummyBasisSeed));
    setup.description = concat("lowrank (rank ", basis->rank, ", random)");
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
      setup.policy.algorithm = nullptr;
      return setup;
    }
    basis = found.value()->basis;
    setup.description = concat("lowrank (rank ", basis->rank, ", ", words_for(found.value()->origin), ")");
  }
  if (basis != nullptr) {
    auto made = make_low_rank_of(config, std::move(basis));
    if (!made) return made.error();
    setup.policy.algorithm = std::move(made).value();
  }
  setup.description += concat(", budget ", setup.policy.budget_blocks() * setup.policy.algorithm->block_tokens(),
                              " of more than ", setup.policy.threshold, " tokens");
  return setup;
}

Result<SelectionMenu> make_selection_menu(const ServerConfig& config, const sparse::SelectionPolicy& selection,
                                          const EngineLimits& limits) {
  if (selection.algorithm == nullptr) return SelectionMenu();
  const bool keeps = selection.algorithm->metadata().kind != MetadataGeometry::Kind::kNone;
  auto server = shared_policy(config, selection, keeps, limits);
  if (!server) return server.error();
  std::vector<SharedPolicy> others;
  if (selection.algorithm->name() != "streaming") {
    auto streaming = sparse::make_streaming(config.sparse_block, config.sparse_window);
    if (!streaming) return streaming.error();
    auto policy = shared_policy(
        config, {.algorithm = std::move(streaming).value(), .threshold = config.sparse_threshold, .budget = 0}, false,
        limits);
    if (policy) others.push_back(std::move(policy).value());
  }
  return SelectionMenu(std::move(server).value(), std::move(others));
}

}  // namespace hotset::actors
