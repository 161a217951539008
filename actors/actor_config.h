// Settings of the actor system.
#pragma once

#include <caf/actor_system_config.hpp>

namespace hotset::actors {

// Registers the wire messages. The policy `sharing` wakes actors within microseconds and leaves an idle process idle;
// the default one polls. Nothing is read from the command line or a file.
class ActorConfig : public caf::actor_system_config {
 public:
  ActorConfig();
};

}  // namespace hotset::actors
