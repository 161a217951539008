#include "model/device_engine.h"

#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "core/concat.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/sampling.h"

namespace hotset::model {

namespace cuda = kernels::cuda;

Result<DeviceEngine> open_device_engine(kernels::ElementType compute, bool fp8_weights) {
  auto found = kernels::cuda::find_gpu();
  if (!found) return found.error();
  try {
    DeviceEngine engine;
    engine.device = std::move(found).value();
    engine.stream = std::make_unique<kernels::cuda::DeviceStream>();
    engine.backend = kernels::cuda::make_cuda_backend(engine.device, *engine.stream, compute, fp8_weights);
    return engine;
  } catch (const std::exception& broken) {
    return Error{ErrorCode::kUnavailable, concat("the GPU cannot be used: ", broken.what()), {}};
  }
}

Result<void> check_device_model(const ModelConfig& config) {
  const auto refused = [](const char* what, std::int64_t value, const char* rule) -> Result<void> {
    return invalid_argument(
        concat("--device cuda takes ", what, " ", rule, ", and this model has ", value, ": --device cpu runs it"),
        "--device");
  };
  struct Width {
    const char* name;
    std::int64_t value;
    std::int64_t most;
  };
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  std::vector<Width> widths{{"a hidden size", config.hidden, kAny}, {"an MLP width", config.intermediate, kAny}};
  if (config.latent) {
    const LatentConfig& latent = *config.latent;
    widths.push_back({"a rank of latent keys", latent.kv_rank, 1024});
    widths.push_back({"a rank of latent queries", latent.q_rank, kAny});
    widths.push_back({"a rotary width", latent.rope_dim, 256});
    widths.push_back({"a head width without position", latent.nope_dim, 256});
    widths.push_back({"a value width", latent.value_dim, 256});
  } else {
    widths.push_back({"a head width", config.head_dim, 256});
  }
  if (config.indexer) widths.push_back({"an index key width", config.indexer->dim, 256});
  if (config.experts) widths.push_back({"an expert width", config.experts->intermediate, kAny});
  for (const Width& width : widths) {
    if (width.value % 16 != 0) return refused(width.name, width.value, "that is a multiple of 16");
    if (width.value > width.most) return refused(width.name, width.value, concat("of at most ", width.most).c_str());
  }
  if (config.vocabulary > cuda::kMostSampledVocabulary)
    return refused("a vocabulary", config.vocabulary, concat("of at most ", cuda::kMostSampledVocabulary).c_str());
  if (!config.experts) return {};
  if (config.experts->count > cuda::kMostRoutedExperts)
    return refused("experts", config.experts->count, concat("up to ", cuda::kMostRoutedExperts).c_str());
  if (config.experts->per_token > cuda::kMostExpertsOfARow)
    return refused("experts of a token", config.experts->per_token, concat("up to ", cuda::kMostExpertsOfARow).c_str());
  return {};
}

}  // namespace hotset::model
