#include "actors/selection_menu.h"

#include <algorithm>
#include <utility>

#include "core/concat.h"

namespace hotset::actors {
namespace {

Result<SharedPolicy> with_budget(const SequencePolicy& server, std::int64_t tokens) {
  const sparse::SelectionAlgorithm& algorithm = *server.selection.algorithm;
  const std::int64_t block = algorithm.block_tokens();
  const std::int64_t most = server.selection.budget_blocks();
  const std::int64_t least = std::max<std::int64_t>(1, algorithm.forced_blocks());
  if (tokens < least * block || tokens > most * block) {
    return invalid_argument(concat("hotset.budget must be between ", least * block, " and ", most * block,
                                   " tokens for the algorithm ", algorithm.name(), " on this server"),
                            "hotset.budget");
  }
  auto own = std::make_shared<SequencePolicy>(server);
  own->selection.budget = tokens / block;
  const std::int64_t hot_blocks = ceil_div(server.hot_shape.hot_blocks * own->selection.budget, most);
  auto shape = sparse::make_hot_buffer_shape(hot_blocks, block, server.hot_shape.ring_recent);
  if (!shape) return shape.error();
  own->hot_shape = shape.value();
  return SharedPolicy(std::move(own));
}

}  // namespace

SelectionMenu::SelectionMenu(SharedPolicy server, std::vector<SharedPolicy> others) : server_(std::move(server)) {
  if (server_ != nullptr && server_->selection.algorithm != nullptr) offers_.push_back(server_);
  for (SharedPolicy& one : others) offers_.push_back(std::move(one));
}

Result<SharedPolicy> SelectionMenu::resolve(const std::optional<std::string>& algorithm,
                                            const std::optional<std::int64_t>& budget) const {
  SharedPolicy chosen = server_;
  if (algorithm && *algorithm == "dense") {
    chosen = nullptr;
  } else if (algorithm && *algorithm != "auto") {
    const auto named = [&](const SharedPolicy& one) { return one->selection.algorithm->name() == *algorithm; };
    const auto found = std::ranges::find_if(offers_, named);
    if (found == offers_.end()) {
      return invalid_argument(concat("hotset.algorithm: this server offers ", names()), "hotset.algorithm");
    }
    chosen = *found;
  }
  if (!budget) return chosen;
  if (chosen == nullptr || chosen->selection.algorithm == nullptr) {
    return invalid_argument("hotset.budget: dense attention has no budget", "hotset.budget");
  }
  return with_budget(*chosen, *budget);
}

std::string SelectionMenu::names() const {
  std::string out = "auto, dense";
  for (const SharedPolicy& one : offers_) out += concat(", ", one->selection.algorithm->name());
  return out;
}

}  // namespace hotset::actors
