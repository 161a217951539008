// The algorithms that this server offers to a request (`hotset: {algorithm, budget}` in its body), within the server's
// limits. Immutable; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/sequence_policy.h"
#include "core/result.h"

namespace hotset::actors {

class SelectionMenu {
 public:
  // `server`: the choice of --algorithm; null: dense. Dense is always on the menu. `others`: not null.
  explicit SelectionMenu(SharedPolicy server = nullptr, std::vector<SharedPolicy> others = {});

  // `algorithm` absent or `auto`: the server's choice. `budget` in tokens: at most the server's, at least what the
  // algorithm always takes; the hot buffer shrinks with it. kInvalidArgument names hotset.algorithm or hotset.budget
  // and says what is offered. A null policy is dense.
  [[nodiscard]] Result<SharedPolicy> resolve(const std::optional<std::string>& algorithm,
                                             const std::optional<std::int64_t>& budget) const;

  [[nodiscard]] const SharedPolicy& server() const { return server_; }
  [[nodiscard]] const std::vector<SharedPolicy>& offers() const { return offers_; }  // that select

 private:
  [[nodiscard]] std::string names() const;

  SharedPolicy server_;
  std::vector<SharedPolicy> offers_;
};

}  // namespace hotset::actors
