// What the algorithms that score have in common: rows whose blocks all fit the budget take everything and are not
// scored; the others are scored in batches of bounded memory and cut down to the budget by the exact top-k.
#pragma once

#include <cstdint>
#include <span>

#include "sparse/selection.h"

namespace hotset::sparse {

class ScoredSelection : public SelectionAlgorithm {
 public:
  void select(LayerId layer, std::span<const SelectionRow> rows, const SelectionQueries& queries,
              kernels::Backend& backend, SelectionScratch& scratch, SelectionList& out) const final;

 protected:
  // Scores at least the candidates. scratch.first and scratch.last hold them, [rows.rows].
  virtual void score(LayerId layer, const kernels::ScoredRows& rows, const SelectionQueries& queries,
                     const SelectionScratch& scratch, kernels::Backend& backend) const = 0;

 private:
  [[nodiscard]] std::int64_t blocks_of(std::int64_t length) const;
  [[nodiscard]] bool takes_everything(const SelectionRow& row) const;
  // Puts rows from `begin` on into the scratch, as many as fit; gives the first one that does not.
  std::size_t collect(std::span<const SelectionRow> rows, std::size_t begin, SelectionScratch& scratch) const;
  void choose(LayerId layer, const SelectionQueries& queries, kernels::Backend& backend,
              SelectionScratch& scratch) const;
};

}  // namespace hotset::sparse
