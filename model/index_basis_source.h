// Where a server's basis of low-rank index keys comes from: the file beside the model, the cache folder, or a
// calibration whose result is kept in the cache folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/content_hash.h"
#include "core/result.h"
#include "kernels/backend.h"
#include "model/calibration.h"
#include "model/checkpoint.h"
#include "model/tokenizer/tokenizer.h"
#include "sparse/index_basis.h"

namespace hotset::model {

// FOLDER/index_basis.safetensors of a model folder (or of the folder of a .safetensors file),
// FILE.index_basis.safetensors of a GGUF file.
[[nodiscard]] std::filesystem::path index_basis_path_beside(const std::filesystem::path& model);

// `configured`, when it is not empty (--cache-dir); else $XDG_CACHE_HOME/hotset; else $HOME/.cache/hotset; else
// nothing.
[[nodiscard]] std::optional<std::filesystem::path> cache_folder(const std::string& configured);

// Name of a basis in the cache folder.
[[nodiscard]] std::string cached_index_basis_name(const Hash128& fingerprint, std::int64_t rank);

struct IndexBasisRequest {
  std::filesystem::path model;             // the path that was opened (ServerConfig::model)
  std::optional<std::int64_t> rank;        // ServerConfig::index_rank
  std::string cache_dir;                   // ServerConfig::cache_dir
  const Tokenizer* tokenizer = nullptr;    // null: the model has none, so that it can't be calibrated
  CalibrationProgress progress = nullptr;  // null: a log line every ten percent
};

// calibrate() with the model that is served; called only when nothing is found, so it may load the model for it.
using CalibrateModel = std::function<Result<Calibration>(std::span<const std::int32_t> tokens, std::int64_t rank,
                                                         const CalibrationProgress& progress)>;

enum class IndexBasisOrigin { kBesideModel, kCache, kCalibrated };

struct FoundIndexBasis {
  std::shared_ptr<const sparse::IndexBasis> basis;
  IndexBasisOrigin origin = IndexBasisOrigin::kBesideModel;
  std::filesystem::path file;  // that it was read from or kept in; empty: it could not be kept
};

// Looks beside the model, then in the cache folder, then calibrates with the built-in text and keeps the result in the
// cache folder (one that can't be written is a warning). A file beside the model whose rank is not the one asked for is
// passed over with a log line; when none was asked for, its rank is the rank. A damaged file in the cache is a warning
// and is made anew. Null: there is no file and no tokenizer to calibrate with.
// Errors: a rank that the model's keys don't allow (param --index-rank); a file beside the model that is damaged or of
// another model; those of calibrate(). Blocks as long as calibrate() does.
Result<std::optional<FoundIndexBasis>> find_or_calibrate(const Checkpoint& checkpoint,
                                                         const CalibrateModel& calibrate_model,
                                                         const IndexBasisRequest& request);

}  // namespace hotset::model
