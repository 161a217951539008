#include "actors/actor_config.h"

#include <caf/atom.hpp>
#include <cstddef>

#include "actors/wire_messages.h"

namespace hotset::actors {

ActorConfig::ActorConfig() {
  // As an atom: a string would be refused on standard error and leave the default.
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", std::size_t{2});
  add_message_type<Error>("hotset::Error");
  add_message_type<SubmitSequences>("hotset::SubmitSequences");
  add_message_type<SubmitAnswer>("hotset::SubmitAnswer");
  add_message_type<CancelSequences>("hotset::CancelSequences");
  add_message_type<StepOutputs>("hotset::StepOutputs");
}

}  // namespace hotset::actors
