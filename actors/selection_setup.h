// The selection that a server runs with, from its options and its model. Start-up only, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/engine_limits.h"
#include "actors/selection_menu.h"
#include "core/config.h"
#include "core/kv_geometry.h"
#include "core/result.h"
#include "model/checkpoint.h"
#include "model/index_basis_source.h"
#include "model/model_config.h"
#include "model/tokenizer/tokenizer.h"
#include "sparse/selection.h"

namespace hotset::actors {

[[nodiscard]] KvDType kv_dtype_of(const ServerConfig& config);

// What --algorithm comes to for this model: dsa, lowrank, quest, streaming or dense. `auto` is dsa for a model with an
// indexer, else lowrank; dense where no context of up to `max_context` tokens passes the threshold.
[[nodiscard]] Result<std::string> algorithm_of(const ServerConfig& config, const model::ModelConfig& model,
                                               std::int64_t max_context);

// The policy that set_up_selection() will make, as far as it is known before the weights are read: a basis has no
// directions yet, and one beside the model may have another rank. For the first check of options and sizes. Errors name
// the option.
[[nodiscard]] Result<sparse::SelectionPolicy> expected_selection(const std::string& algorithm,
                                                                 const ServerConfig& config,
                                                                 const model::ModelConfig& model);

// What the server offers: `selection`, and StreamingLLM where its options and the device allow it: it keeps nothing, so
// every server can offer it. kInvalidArgument names the option of `selection` that the limits refuse.
[[nodiscard]] Result<SelectionMenu> make_selection_menu(const ServerConfig& config,
                                                        const sparse::SelectionPolicy& selection,
                                                        const EngineLimits& limits);

struct SelectionSetup {
  sparse::SelectionPolicy policy;
  std::string description;  // for the start-up line: "lowrank (rank 16 from the cache folder), budget 2048"
};

// May calibrate, which takes seconds to minutes. With `auto`, a model that has neither a basis nor a tokenizer is
// served dense, with a warning. Errors name the option.
[[nodiscard]] Result<SelectionSetup> set_up_selection(const std::string& algorithm, const ServerConfig& config,
                                                      const model::Checkpoint& checkpoint,
                                                      const model::CalibrateModel& calibrate_model,
                                                      const model::Tokenizer* tokenizer);

}  // namespace hotset::actors
