#include "actors/supervisor.h"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <caf/exit_reason.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <string>
#include <utility>
#include <vector>

#include "actors/engine_actors.h"
#include "actors/gateway.h"
#include "actors/sparse_coordinator.h"
#include "core/concat.h"
#include "core/log.h"

namespace hotset::actors {
namespace {

struct Child {
  std::string name;
  caf::actor handle;
};

struct SupervisorState {
  static constexpr const char* name = "supervisor";
  std::vector<Child> children;  // in the order of the shutdown
  std::shared_ptr<OpenRequests> open;
  std::shared_ptr<EngineHealth> health;
  GatewayActor gateway;
  bool gateway_alive = true;
  bool stopping = false;
};
using Self = SupervisorActor::stateful_pointer<SupervisorState>;

void stop_next(Self self) {
  if (self->state.children.empty()) {
    self->quit();
    return;
  }
  self->send_exit(self->state.children.front().handle, caf::exit_reason::user_shutdown);
}

// The gateway ends its requests itself, so that no sink hears two threads at once; a dead one can't.
void fail_open_requests(SupervisorState& state, Self self, const Error& error) {
  if (state.gateway_alive) {
    self->send(state.gateway, FailOpenRequests{.error = error});
    return;
  }
  for (const std::shared_ptr<ResponseSink>& sink : state.open->take_all()) sink->on_error(error);
}

void child_down(Self self, const caf::down_msg& down) {
  SupervisorState& state = self->state;
  const auto is_source = [&](const Child& child) { return child.handle.address() == down.source; };
  const auto child = std::find_if(state.children.begin(), state.children.end(), is_source);
  if (child == state.children.end()) return;
  const std::string name = child->name;
  if (name == "gateway") state.gateway_alive = false;
  state.children.erase(child);
  if (state.stopping) {
    stop_next(self);
    return;
  }
  log_error("the ", name, " actor ended unexpectedly; open requests fail and the process is unhealthy");
  state.health->fail(concat("the ", name, " ended unexpectedly"));
  fail_open_requests(state, self, {ErrorCode::kInternal, "a part of the server has failed", {}});
}

SupervisorActor::behavior_type supervisor(Self self, const ProcessActors& actors, std::shared_ptr<OpenRequests> open,
                                          std::shared_ptr<EngineHealth> health) {
  SupervisorState& state = self->state;
  state.open = std::move(open);
  state.health = std::move(health);
  state.gateway = actors.gateway;
  const auto watch = [&](const char* name, const auto& handle) {
    state.children.push_back({.name = name, .handle = caf::actor_cast<caf::actor>(handle)});
    self->monitor(handle);
  };
  watch("prompt reader", actors.prompt_reader);
  watch("text reader", actors.text_reader);
  watch("gateway", actors.gateway);
  watch("coordinator", actors.coordinator);
  watch("algorithm", actors.algorithm);
  watch("cache manager", actors.manager);
  watch("backend adaptor", actors.adaptor);
  watch("stream", actors.stream);
  watch("host tier", actors.host_tier);
  self->set_down_handler([self](const caf::down_msg& down) { child_down(self, down); });
  return {
      [self](const StopActors&) {
        if (std::exchange(self->state.stopping, true)) return;
        stop_next(self);
      },
  };
}

}  // namespace

ProcessActors spawn_process(caf::actor_system& system, SupervisorParts parts) {
  ServingParts& serving = parts.serving;
  ProcessActors out;
  out.coordinator = spawn_coordinator(system, {.scheduler = serving.scheduler,
                                               .pools = serving.pools,
                                               .vocabulary = serving.info.vocabulary,
                                               .menu = serving.menu,
                                               .health = parts.health,
                                               .metrics = parts.engine_metrics,
                                               .clock = serving.clock});
  out.stream =
      spawn_compute_stream(system, std::move(serving.executor), serving.clock, out.coordinator, parts.own_threads);
  out.adaptor = spawn_backend_adaptor(system, out.stream);
  out.host_tier = spawn_host_tier(system, serving.pools.host_pages, parts.engine_metrics);
  out.manager = spawn_cache_manager(system, serving.pools, out.adaptor, out.host_tier, parts.engine_metrics);
  out.algorithm = spawn_algorithm(system, out.manager, parts.engine_metrics);
  caf::anon_send(out.coordinator, ConnectEngine{.algorithm = out.algorithm, .manager = out.manager});
  out.gateway = spawn_gateway(system,
                              {.config = serving.gateway,
                               .tokenizer = serving.encoder->tokenizer(),
                               .open = parts.open,
                               .metrics = parts.gateway_metrics,
                               .clock = serving.clock},
                              out.coordinator, parts.own_threads);
  const auto reader = std::make_shared<const PromptReader>(serving.gateway, serving.encoder);
  out.prompt_reader = spawn_prompt_reader(system, reader, parts.open, out.gateway, parts.own_threads);
  out.text_reader = spawn_prompt_reader(system, reader, parts.open, out.gateway, parts.own_threads);
  out.supervisor = system.spawn(supervisor, out, parts.open, parts.health);
  return out;
}

}  // namespace hotset::actors
