#include "actors/serving_system.h"

#include <algorithm>
#include <atomic>
#include <caf/actor_system.hpp>
#include <caf/logger.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "actors/actor_config.h"
#include "actors/serving_parts.h"
#include "actors/supervisor.h"
#include "core/log.h"

namespace hotset::actors {
namespace {

constexpr std::chrono::milliseconds kLastWords{2'000};  // for the gateway to end its requests at the deadline

class LocalServingSystem final : public ServingSystem {
 public:
  LocalServingSystem(ServingParts parts, MetricsRegistry& metrics)
      : info_(parts.info),
        clock_(parts.clock),
        open_(std::make_shared<OpenRequests>()),
        health_(std::make_shared<EngineHealth>(parts.clock, std::chrono::nanoseconds(parts.stall_timeout).count())),
        system_(std::make_unique<caf::actor_system>(config_)) {
    parts.gateway.too_late = too_late_to_read_;
    try {
      actors_ = spawn_process(*system_, {.serving = std::move(parts),
                                         .open = open_,
                                         .health = health_,
                                         .gateway_metrics = std::make_shared<GatewayMetrics>(metrics),
                                         .engine_metrics = std::make_shared<EngineMetrics>(metrics)});
    } catch (const std::exception& failed) {
      // Nobody would stop the actors that are there already, and the system waits for them for ever.
      log_error("The server's parts can't be started: ", failed.what(), " (threads or memory: ulimit -u and -v)");
      std::_Exit(1);
    }
    // CAF gave this thread a share of the system's logger, and the system's destructor waits for the last share:
    // without this line a stop() from another thread would never return.
    caf::logger::set_current_actor_system(nullptr);
    health_->set_ready();
  }
  ~LocalServingSystem() override { stop(std::chrono::milliseconds(0)); }

  [[nodiscard]] const ServingInfo& info() const override { return info_; }
  [[nodiscard]] HealthReport health() const override { return health_->report(open_->size()); }

  RequestHandle generate(GenerationRequest request, std::shared_ptr<ResponseSink> sink) override {
    const RequestHandle handle = ++last_handle_;
    {
      const std::shared_lock lock(gate_);
      if (actors_ && health_->accepts()) {
        auto pending = health_->begin_work(open_->size());
        open_->add(handle, std::move(sink));
        caf::anon_send(actors_->prompt_reader,
                       Generate{.handle = handle,
                                .request = std::make_shared<const GenerationRequest>(std::move(request)),
                                .arrived_ns = clock_->steady_ns(),
                                .pending = std::move(pending)});
      } else {
        open_->add(handle, std::move(sink));
      }
    }
    // Also when the state changed just now: whoever failed the open requests may have missed this one.
    if (!health_->accepts()) {
      if (const auto refused = open_->take(handle)) refused->on_error(refusal());
    }
    return handle;
  }

  void cancel(RequestHandle handle) override {
    if (open_->take(handle) == nullptr) return;
    const std::shared_lock lock(gate_);
    if (actors_) caf::anon_send(actors_->gateway, CancelGeneration{.handle = handle});
  }

  void tokenize(TokenizeRequest request, std::function<void(Result<TokenizeResponse>)> done) override {
    auto reply = std::make_shared<Reply<TokenizeResponse>>(std::move(done));
    const std::shared_lock lock(gate_);
    if (!actors_) return;  // the reply answers by itself
    caf::anon_send(
        actors_->text_reader,
        Tokenize{.request = std::make_shared<const TokenizeRequest>(std::move(request)), .reply = std::move(reply)});
  }

  void detokenize(std::vector<std::int32_t> tokens, std::function<void(Result<std::string>)> done) override {
    auto reply = std::make_shared<Reply<std::string>>(std::move(done));
    const std::shared_lock lock(gate_);
    if (!actors_) return;
    caf::anon_send(actors_->text_reader,
                   Detokenize{.tokens = std::make_shared<const std::vector<std::int32_t>>(std::move(tokens)),
                              .reply = std::move(reply)});
  }

  void stop(std::chrono::milliseconds deadline) override {
    const std::lock_guard once(stop_mutex_);
    if (system_ == nullptr) return;
    health_->set_draining();
    const auto end = std::chrono::steady_clock::now() + deadline;
    if (!health_->failed()) open_->wait_until_empty(end);
    const Error error = refusal();
    if (open_->size() > 0) {
      caf::anon_send(actors_->gateway, FailOpenRequests{.error = error});
      open_->wait_until_empty(std::chrono::steady_clock::now() + kLastWords);
    }
    stop_actors(end);
    for (const std::shared_ptr<ResponseSink>& sink : open_->take_all()) sink->on_error(error);
  }

 private:
  [[nodiscard]] Error refusal() const {
    if (health_->failed()) return {ErrorCode::kUnavailable, "the engine has failed and must be restarted", {}};
    return {ErrorCode::kUnavailable, "the server is shutting down", {}};
  }

  // Texts that wait to be read are read until `end`; the one under way is read in any case.
  void stop_actors(std::chrono::steady_clock::time_point end) {
    std::optional<ProcessActors> actors;
    {
      const std::unique_lock lock(gate_);
      actors.swap(actors_);
    }
    caf::anon_send(actors->supervisor, StopActors{});
    {
      const caf::scoped_actor self(*system_);
      self->monitor(actors->supervisor);
      bool ended = false;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      self->receive([&](const caf::down_msg&) { ended = true; },
                    caf::after(std::max(left, std::chrono::milliseconds(0))) >> [] {});
      if (!ended) {
        *too_late_to_read_ = true;
        self->receive([](const caf::down_msg&) {});
      }
    }
    actors.reset();
    system_.reset();  // joins every thread
  }

  ServingInfo info_;
  std::shared_ptr<const Clock> clock_;
  std::shared_ptr<OpenRequests> open_;
  std::shared_ptr<EngineHealth> health_;
  std::atomic<RequestHandle> last_handle_{0};
  std::mutex stop_mutex_;
  std::shared_ptr<std::atomic<bool>> too_late_to_read_ = std::make_shared<std::atomic<bool>>(false);
  ActorConfig config_;  // outlives the system
  std::unique_ptr<caf::actor_system> system_;
  std::shared_mutex gate_;               // exclusively only to take actors_ away
  std::optional<ProcessActors> actors_;  // empty: stopped
};

}  // namespace

std::unique_ptr<ServingSystem> start_serving(ServingParts parts, MetricsRegistry& metrics) {
  return std::make_unique<LocalServingSystem>(std::move(parts), metrics);
}

Result<std::unique_ptr<ServingSystem>> ServingSystem::start(const ServerConfig& config, MetricsRegistry& metrics) {
  Result<ServingParts> parts = load_serving_parts(config);
  if (!parts) return parts.error();
  return start_serving(std::move(parts).value(), metrics);
}

}  // namespace hotset::actors
