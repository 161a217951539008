// `hotset serve`: loads the model behind a listening server, serves until a signal, drains.
#pragma once

#include "core/config.h"

namespace hotset::api {

// Returns the exit code: 0 after an orderly end, 1 when the server could not start (the reason is logged). Call it from
// the main thread before other threads exist. `config.model` must be set; it is accepted as a second name of the model.
int serve(const ServerConfig& config);

}  // namespace hotset::api
