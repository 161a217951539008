#include "api/calibrate_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "actors/text_sources.h"
#include "core/concat.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/calibration.h"
#include "model/calibration_text.h"
#include "model/checkpoint.h"
#include "model/fingerprint.h"
#include "model/index_basis_file.h"
#include "model/index_basis_source.h"
#include "model/kv_layout.h"
#include "model/mapped_file.h"
#include "model/tokenizer/utf8.h"

namespace hotset::api {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::uint64_t kMaxTextBytes = 64 << 20;

std::string fixed(double number, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, number);
  return text;
}

Result<std::vector<std::int32_t>> read_tokens(const model::Checkpoint& checkpoint, const CalibrateOptions& options) {
  const auto tokenizer = actors::load_tokenizer(checkpoint.tokenizer_source());
  if (!tokenizer) {
    return invalid_argument(concat("The model can't be calibrated: ", tokenizer.error().message, "."));
  }
  std::string text(model::calibration_text());
  if (!options.text.empty()) {
    auto file = model::read_text_file(options.text, kMaxTextBytes);
    if (!file) return invalid_argument(concat("--text: ", file.error().message, "."), "--text");
    text = std::move(file).value();
    if (!model::is_valid_utf8(text)) {
      return invalid_argument(concat("--text: ", options.text, " is not valid UTF-8."), "--text");
    }
  }
  // A file about control tokens is text, too.
  auto tokens = tokenizer.value()->encode(text, {.parse_special = false});
  if (tokens && static_cast<std::int64_t>(tokens.value().size()) < model::kMinCalibrationTokens) {
    return invalid_argument(concat("--text: ", options.text, " has ", tokens.value().size(), " tokens; at least ",
                                   model::kMinCalibrationTokens, " are needed."),
                            "--text");
  }
  return tokens;
}

// Where the file went.
Result<fs::path> write_file(const model::Checkpoint& checkpoint, const sparse::IndexBasis& basis,
                            const CalibrateOptions& options, std::ostream& out) {
  const fs::path wanted = options.out.empty() ? model::index_basis_path_beside(options.model) : fs::path(options.out);
  const auto written = model::write_index_basis(wanted, basis);
  if (written) return wanted;
  const auto folder = model::cache_folder(options.cache_dir);
  if (!options.out.empty() || !folder) return Error{written.error().code, written.error().message, "--out"};
  std::error_code failed;
  fs::create_directories(*folder, failed);
  const auto cached = *folder / model::cached_index_basis_name(model::fingerprint(checkpoint), basis.rank);
  if (auto kept = model::write_index_basis(cached, basis); !kept) {
    return Error{kept.error().code, concat(written.error().message, "; ", kept.error().message), "--out"};
  }
  out << written.error().message << ", so the cache folder is used.\n";
  return cached;
}

void print_shares(const model::Calibration& calibration, std::ostream& out) {
  const auto percent = [](double share) { return concat(fixed(100 * share, 2), " %"); };
  std::vector<double> means;
  out << "captured share of the keys' second moment\n  layer   mean of KV heads   worst KV head\n";
  for (const auto& heads : calibration.captured) {
    const double mean = std::accumulate(heads.begin(), heads.end(), 0.0) / static_cast<double>(heads.size());
    const std::string layer = std::to_string(means.size());
    const std::string of_layer = percent(mean), worst = percent(*std::min_element(heads.begin(), heads.end()));
    out << std::string(7 - std::min<std::size_t>(7, layer.size()), ' ') << layer
        << std::string(19 - of_layer.size(), ' ') << of_layer << std::string(16 - worst.size(), ' ') << worst << '\n';
    means.push_back(mean);
  }
  const auto worst = std::min_element(means.begin(), means.end());
  out << "all layers: mean "
      << percent(std::accumulate(means.begin(), means.end(), 0.0) / static_cast<double>(means.size())) << ", worst "
      << percent(*worst) << " (layer " << worst - means.begin() << ")\n";
}

}  // namespace

Result<void> calibrate(const CalibrateOptions& options, std::ostream& out, std::ostream& progress, bool terminal) {
  const auto opened = model::open_checkpoint(options.model);
  if (!opened) return opened.error();
  model::Checkpoint& checkpoint = *opened.value();
  std::error_code absent;
  if (!options.out.empty() && fs::equivalent(options.out, options.model, absent)) {
    return invalid_argument("--out is the model itself.", "--out");
  }
  if (options.rank) {
    const auto key_dim = model::kv_geometry_of(checkpoint.config(), KvDType::kF32).key_dim;
    if (auto ok = sparse::check_index_rank(*options.rank, key_dim, "--rank"); !ok) return ok;
  }
  const auto tokens = read_tokens(checkpoint, options);
  if (!tokens) return tokens.error();

  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const auto backend = kernels::make_cpu_backend(options.threads > 0 ? options.threads : processors);
  progress << "loading " << options.model << '\n' << std::flush;
  const auto weights = model::load_weights(checkpoint, *backend);
  if (!weights) return weights.error();
  const auto start = steady_clock::now();
  const auto show = [&](std::int64_t done, std::int64_t total) {
    progress << (terminal ? "\r" : "") << "calibrating: " << done << " of " << total << " tokens"
             << (terminal && done < total ? "" : "\n") << std::flush;
  };
  const auto made = model::calibrate(*weights.value(), *backend, tokens.value(), options.rank, show);
  if (!made) return made.error();
  const std::chrono::duration<double> seconds = steady_clock::now() - start;

  const sparse::IndexBasis& basis = made.value().basis;
  out << "rank " << basis.rank << " of " << basis.key_dim << " channels, " << basis.layers << " layers, "
      << basis.kv_heads << " KV heads; " << made.value().tokens << " tokens in " << fixed(seconds.count(), 1) << " s\n";
  print_shares(made.value(), out);
  const auto file = write_file(checkpoint, basis, options, out);
  if (!file) return file.error();
  out << "written to " << file.value().string() << '\n';
  return {};
}

}  // namespace hotset::api
