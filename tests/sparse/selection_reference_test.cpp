// Every algorithm against tests/fixtures/selection/expected.json, which the reference definitions in plain float64
// Python wrote (make_expected.py beside it).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "sparse/dsa.h"
#include "sparse/low_rank.h"
#include "sparse/quest.h"
#include "tests/sparse/selection_driver.h"

namespace hotset::sparse {
namespace {

using nlohmann::json;

// A gap that float32 may close; 0 is an exact tie, which the position decides.
constexpr double kNearTie = 1e-5;

void flatten(const json& from, std::vector<float>& to) {
  if (from.is_array()) {
    for (const json& part : from) flatten(part, to);
  } else {
    to.push_back(from.get<float>());
  }
}

// The prompt at once, the last tokens one by one.
void append(SelectionSequence& sequence, kernels::Backend& backend, const std::vector<float>& keys, std::int64_t width,
            std::int64_t length) {
  const std::int64_t prompt = std::max<std::int64_t>(length - 3, 0);
  if (prompt > 0) sequence.append(backend, {keys.begin(), keys.begin() + prompt * width});
  for (std::int64_t token = prompt; token < length; ++token)
    sequence.append(backend, {keys.begin() + token * width, keys.begin() + (token + 1) * width});
}

class SelectionReference : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(HOTSET_FIXTURES "/selection/expected.json");
    ASSERT_TRUE(file.good());
    data_ = json::parse(file);
    heads_ = data_.at("heads");
    kv_heads_ = data_.at("kv_heads");
    dim_ = data_.at("dim");
  }

  std::vector<float> numbers(const char* name) const {
    std::vector<float> out;
    flatten(data_.at(name), out);
    return out;
  }

  std::shared_ptr<const SelectionAlgorithm> algorithm_of(const json& with) const {
    const std::string name = with.at("algorithm");
    if (name == "streaming") return make_streaming(with.at("block"), with.at("window")).value();
    if (name == "dsa") return make_dsa({.top_k = with.at("top_k"), .dim = dim_, .dtype = KvDType::kF32}).value();
    if (name == "lowrank") {
      auto basis = std::make_shared<IndexBasis>();
      basis->layers = 1;
      basis->kv_heads = kv_heads_;
      basis->key_dim = dim_;
      basis->rank = data_.at("rank");
      basis->u.push_back(numbers("basis"));
      return make_low_rank(
                 {.sink = with.at("sink"), .window = with.at("window"), .budget = with.at("budget"), .basis = basis})
          .value();
    }
    QuestOptions options;
    options.block_tokens = with.at("block");
    options.window = with.at("window");
    options.budget = with.at("budget").get<std::int64_t>() * options.block_tokens;
    const std::string combine = with.at("combine");
    options.combine = combine == "max"    ? kernels::HeadCombine::kMax
                      : combine == "mean" ? kernels::HeadCombine::kMean
                                          : kernels::HeadCombine::kSoftmax;
    options.kv_heads = kv_heads_;
    options.key_dim = dim_;
    return make_quest(options).value();
  }

  json data_;
  std::int32_t heads_ = 0, kv_heads_ = 0, dim_ = 0;
};

TEST_F(SelectionReference, EveryCase) {
  const auto backend = kernels::make_cpu_backend(2);
  const std::vector<float> q = numbers("queries");
  const std::vector<float> weights = numbers("dsa_weights");
  SelectionQueries queries;
  queries.q = queries.index_q = q.data();
  queries.q_stride = std::int64_t{heads_} * dim_;
  queries.heads = queries.index_heads = heads_;
  queries.index_weights = weights.data();
  queries.scale = 1.0F / std::sqrt(static_cast<float>(dim_));
  std::int64_t chosen = 0;
  std::int64_t near_ties = 0;
  for (const json& with : data_.at("cases")) {
    const auto algorithm = algorithm_of(with);
    const bool dsa = with.at("algorithm") == "dsa";
    const std::vector<float> keys = numbers(dsa ? "dsa_keys" : "keys");
    const std::int64_t width = dsa ? dim_ : std::int64_t{kv_heads_} * dim_;
    for (std::size_t row = 0; row < data_.at("lengths").size(); ++row) {
      const std::int64_t length = data_.at("lengths")[row];
      SelectionSequence sequence(*algorithm, LayerId{0});
      if (algorithm->metadata().kind != MetadataGeometry::Kind::kNone) append(sequence, *backend, keys, width, length);
      const Ints blocks = select_rows(*algorithm, LayerId{0},
                                      {sequence.row(static_cast<std::int64_t>(row), length, algorithm->max_blocks())},
                                      queries, *backend)[0];
      const json& gap = with.at("gaps")[row];
      if (!gap.is_null()) ++chosen;
      if (!gap.is_null() && gap.get<double>() > 0 && gap.get<double>() <= kNearTie) {
        ++near_ties;
        EXPECT_EQ(blocks.size(), with.at("selected")[row].size());
        continue;
      }
      EXPECT_EQ(blocks, with.at("selected")[row].get<Ints>())
          << with.at("algorithm") << " length " << length << " gap " << gap;
    }
  }
  EXPECT_GT(chosen, 90);
  EXPECT_LE(near_ties, 1);
}

}  // namespace
}  // namespace hotset::sparse
