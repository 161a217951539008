// The control plane behind one door: loads the model, spawns the actors, answers requests. No CAF in this header.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/requests.h"
#include "core/config.h"
#include "core/metrics.h"
#include "core/result.h"

namespace hotset::actors {

// kDegraded: requests are answered, but verification found rows or attention that were wrong.
enum class HealthState { kLoading, kReady, kDraining, kDegraded, kUnhealthy };

struct HealthReport {
  HealthState state = HealthState::kLoading;
  std::string reason;  // when degraded or unhealthy
};

struct ServingInfo {
  std::string model_name;
  std::int64_t max_context = 0;
  std::int32_t vocabulary = 0;
  bool has_tokenizer = false;
  bool has_chat_template = false;
  std::string summary;  // the start-up line: model, mode, pools and how many tokens they hold
};

using RequestHandle = std::uint64_t;

// Thread-safe. Every submitted request ends in exactly one on_finished or on_error, also when an actor dies or the
// system stops, within the configured timeouts; after cancel() no further event is delivered once cancel's effect was
// seen, and the sink is released.
class ServingSystem {
 public:
  // Loads the checkpoint (minutes for a large one; progress in the log) and starts the actors. Errors name the option.
  static Result<std::unique_ptr<ServingSystem>> start(const ServerConfig& config, MetricsRegistry& metrics);
  virtual ~ServingSystem() = default;

  [[nodiscard]] virtual const ServingInfo& info() const = 0;
  // From atomics: never waits for an actor.
  [[nodiscard]] virtual HealthReport health() const = 0;

  virtual RequestHandle generate(GenerationRequest request, std::shared_ptr<ResponseSink> sink) = 0;
  virtual void cancel(RequestHandle handle) = 0;

  // The callback runs on an actor thread.
  virtual void tokenize(TokenizeRequest request, std::function<void(Result<TokenizeResponse>)> done) = 0;
  virtual void detokenize(std::vector<std::int32_t> tokens, std::function<void(Result<std::string>)> done) = 0;

  // Refuses new requests (kUnavailable), lets running ones end until the deadline, then fails them and joins every
  // thread.
  virtual void stop(std::chrono::milliseconds deadline) = 0;
};

}  // namespace hotset::actors
