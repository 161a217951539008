#include "model/index_basis_source.h"

#include <cstdlib>
#include <system_error>
#include <utility>

#include "core/concat.h"
#include "core/log.h"
#include "model/calibration_text.h"
#include "model/fingerprint.h"
#include "model/index_basis_file.h"
#include "model/kv_layout.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> environment_folder(const char* name) {
  const char* value = std::getenv(name);
  // The specification of XDG_CACHE_HOME says that a relative path is to be ignored.
  if (value == nullptr || !fs::path(value).is_absolute()) return std::nullopt;
  return fs::path(value);
}

// The file beside the model; null: there is none, or it has another rank than the one asked for.
Result<std::optional<FoundIndexBasis>> find_beside(const IndexBasisRequest& request, const KvGeometry& geometry) {
  const auto path = index_basis_path_beside(request.model);
  auto basis = read_index_basis(path, geometry);
  if (!basis && basis.error().code == ErrorCode::kNotFound) return std::optional<FoundIndexBasis>();
  if (!basis) return basis.error();
  if (request.rank && *request.rank != basis.value().rank) {
    log_info("index basis ", path.string(), " has rank ", basis.value().rank, " and is passed over: --index-rank is ",
             *request.rank);
    return std::optional<FoundIndexBasis>();
  }
  return std::optional(FoundIndexBasis{std::make_shared<const sparse::IndexBasis>(std::move(basis).value()),
                                       IndexBasisOrigin::kBesideModel, path});
}

std::optional<FoundIndexBasis> find_cached(const fs::path& path, const KvGeometry& geometry, std::int64_t rank) {
  auto basis = read_index_basis(path, geometry);
  if (basis && basis.value().rank == rank) {
    return FoundIndexBasis{std::make_shared<const sparse::IndexBasis>(std::move(basis).value()),
                           IndexBasisOrigin::kCache, path};
  }
  if (basis) {
    log_warn("index basis ", path.string(), " has rank ", basis.value().rank, " against its name; it is made anew");
  } else if (basis.error().code != ErrorCode::kNotFound) {
    log_warn(basis.error().message, "; it is made anew");
  }
  return std::nullopt;
}

CalibrationProgress log_progress() {
  return [last = std::int64_t{0}](std::int64_t done, std::int64_t total) mutable {
    const std::int64_t tenth = done * 10 / total;
    if (tenth == last) return;
    last = tenth;
    log_info("calibrating: ", tenth * 10, " %");
  };
}

// The path, when the file is there afterwards.
fs::path keep(const sparse::IndexBasis& basis, const std::optional<fs::path>& path) {
  if (!path) {
    log_warn("the calibration is not kept: neither --cache-dir, XDG_CACHE_HOME nor HOME names a folder");
    return {};
  }
  std::error_code failed;
  fs::create_directories(path->parent_path(), failed);
  if (const auto written = write_index_basis(*path, basis); !written) {
    log_warn("the calibration is not kept: ", written.error().message);
    return {};
  }
  log_info("the calibration is kept in ", path->string());
  return *path;
}

}  // namespace

fs::path index_basis_path_beside(const fs::path& model) {
  if (model.extension() == ".gguf") return fs::path(model.string() + ".index_basis.safetensors");
  if (model.extension() == ".safetensors") return model.parent_path() / "index_basis.safetensors";
  return model / "index_basis.safetensors";
}

std::optional<fs::path> cache_folder(const std::string& configured) {
  if (!configured.empty()) return fs::path(configured);
  if (const auto cache = environment_folder("XDG_CACHE_HOME")) return *cache / "hotset";
  if (const auto home = environment_folder("HOME")) return *home / ".cache" / "hotset";
  return std::nullopt;
}

std::string cached_index_basis_name(const Hash128& fingerprint, std::int64_t rank) {
  return concat(hex(fingerprint), "-rank", rank, ".index_basis.safetensors");
}

Result<std::optional<FoundIndexBasis>> find_or_calibrate(const Checkpoint& checkpoint,
                                                         const CalibrateModel& calibrate_model,
                                                         const IndexBasisRequest& request) {
  const ModelConfig& config = checkpoint.config();
  const auto geometry = kv_geometry_of(config, KvDType::kF32);
  const std::int64_t rank =
      request.rank.value_or(sparse::default_index_rank(geometry.key_dim, config.latent.has_value()));
  if (auto ok = sparse::check_index_rank(rank, geometry.key_dim, "--index-rank"); !ok) return ok.error();
  auto beside = find_beside(request, geometry);
  if (!beside || beside.value()) return beside;

  std::optional<fs::path> cached;
  if (const auto folder = cache_folder(request.cache_dir)) {
    cached = *folder / cached_index_basis_name(fingerprint(checkpoint), rank);
    if (auto found = find_cached(*cached, geometry, rank)) return found;
  }
  if (request.tokenizer == nullptr) return std::optional<FoundIndexBasis>();

  const auto tokens = request.tokenizer->encode(calibration_text(), {.parse_special = false});
  if (!tokens) return tokens.error();
  log_info("calibrating low-rank index keys of rank ", rank, ", once for this model");
  auto made = calibrate_model(tokens.value(), rank, request.progress ? request.progress : log_progress());
  if (!made) return made.error();
  auto file = keep(made.value().basis, cached);
  return std::optional(FoundIndexBasis{std::make_shared<const sparse::IndexBasis>(std::move(made.value().basis)),
                                       IndexBasisOrigin::kCalibrated, std::move(file)});
}

}  // namespace hotset::model
