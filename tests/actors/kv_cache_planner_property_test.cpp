// Random sequences through the planner, its operations applied to a model of the stream that knows who owns which page.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "actors/kv_cache_planner.h"
#include "core/concat.h"

namespace hotset::actors {
namespace {

using sparse::KvMode;
using sparse::KvOp;

std::uint64_t test_seed() {
  const char* text = std::getenv("HOTSET_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20'260'102;
}

struct Seen {
  std::int64_t plans = 0, granted = 0, later = 0, never = 0, cancelled = 0, completed = 0;
  std::int64_t resident_rows = 0, hot_rows = 0, parked_rows = 0, switches = 0;
};

// One sequence as the stream sees it.
struct Running {
  KvDemand demand;
  std::int64_t rows = 0;
  KvMode mode = KvMode::kParked;
  std::vector<HostPage> host_pages;
  std::vector<std::vector<PageId>> device_pages;  // [layer]
  std::optional<bool> past_threshold_hot;         // what its first decode row past the threshold was

  [[nodiscard]] std::int64_t tokens() const {
    return demand.prompt_tokens + (demand.max_new_tokens > 0 ? demand.max_new_tokens + 1 : 0);
  }
};

class Simulation {
 public:
  Simulation(std::mt19937_64& random, Seen& seen)
      : random_(random), seen_(seen), config_(random_config()), planner_(config_) {}

  void run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) {
      while (pick(0, 2) == 0) admit();
      plan_step();
      cancel_some();
    }
    while (!running_.empty()) end(running_.begin());
    check_counters();
    // Nobody holds anything now, so everyone who had to wait can start.
    for (const KvDemand& demand : waiting_) {
      const Result<Admission> answer = planner_.acquire(demand);
      ASSERT_TRUE(answer.ok());
      ASSERT_EQ(answer.value(), Admission::kGranted);
      planner_.release(demand.id);
    }
    check_counters();
  }

 private:
  std::int64_t pick(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  template <class T, std::size_t N>
  T one_of(const T (&values)[N]) {
    return values[pick(0, N - 1)];
  }

  KvPlannerConfig random_config() {
    KvPlannerConfig config;
    config.geometry = {
        .layers = static_cast<std::int32_t>(pick(1, 3)), .kv_heads = 1, .key_dim = 2, .value_dim = 2, .dtype = KvDType::kF32};
    config.device_pages = static_cast<std::int32_t>(pick(1, 24)) * config.geometry.layers;
    config.host_pages = static_cast<std::int32_t>(pick(4, 40));
    config.mode = one_of({KvModeChoice::kAuto, KvModeChoice::kResident, KvModeChoice::kHot});
    config.sparse = pick(0, 4) > 0;
    config.threshold = one_of({0, 1, 63, 64, 65, 127, 128, 129, 200});
    config.hot_shape = sparse::make_hot_buffer_shape(pick(1, 9), one_of({1, 8, 16, 64}), one_of({1, 16, 128})).value();
    return config;
  }

  void admit() {
    const std::int64_t near_threshold = std::max<std::int64_t>(1, config_.threshold + pick(-2, 2));
    const KvDemand demand{.id = SequenceId{++last_id_},
                          .prompt_tokens = one_of({pick(1, 20), pick(1, 400), near_threshold, pick(62, 66)}),
                          .max_new_tokens = one_of({std::int64_t{0}, std::int64_t{1}, pick(1, 10), pick(1, 200)})};
    const Result<Admission> answer = planner_.acquire(demand);
    // Alone, a demand runs at once or never.
    KvCachePlanner alone(config_);
    const Result<Admission> answer_alone = alone.acquire(demand);
    ASSERT_EQ(answer.ok(), answer_alone.ok());
    if (!answer.ok()) {
      ASSERT_EQ(answer.error().code, ErrorCode::kCapacityNever);
      const bool host = pages_for_tokens(Running{.demand = demand}.tokens()) > config_.host_pages;
      ASSERT_EQ(answer.error().param, host ? "--host-kv" : "--device-kv-tokens");
      ASSERT_NE(answer.error().message.find(answer.error().param), std::string::npos);
      ASSERT_LT(planner_.largest_output(demand.prompt_tokens), std::max<std::int64_t>(1, demand.max_new_tokens));
      ++seen_.never;
      return;
    }
    ASSERT_EQ(answer_alone.value(), Admission::kGranted);
    if (demand.max_new_tokens > 0) {
      ASSERT_GE(planner_.largest_output(demand.prompt_tokens), demand.max_new_tokens);
    }
    if (answer.value() == Admission::kGranted) {
      running_.emplace(demand.id, Running{.demand = demand});
      ++seen_.granted;
    } else {
      ASSERT_FALSE(running_.empty());
      waiting_.push_back(demand);
      ++seen_.later;
    }
  }

  void plan_step() {
    freed_in_step_.clear();
    std::vector<SequenceId> done;
    for (auto& [id, sequence] : running_) {
      if (pick(0, 9) == 0) continue;  // not in this step
      const bool prefill = sequence.rows < sequence.demand.prompt_tokens;
      const std::int64_t rows =
          prefill ? std::min(pick(1, 100), sequence.demand.prompt_tokens - sequence.rows) : std::int64_t{1};
      SCOPED_TRACE(concat("mode ", static_cast<int>(config_.mode), " sparse ", config_.sparse, " threshold ",
                          config_.threshold, " prompt ", sequence.demand.prompt_tokens, " output ",
                          sequence.demand.max_new_tokens, " at ", sequence.rows));
      for (const KvOp& op : planner_.plan_rows(id, sequence.rows, rows, prefill))
        ASSERT_NO_FATAL_FAILURE(apply(sequence, op));
      ++seen_.plans;
      ASSERT_NO_FATAL_FAILURE(check_room(sequence, sequence.rows + rows));
      ASSERT_NO_FATAL_FAILURE(check_mode(sequence, prefill));
      ASSERT_EQ(planner_.mode(id), sequence.mode);
      sequence.rows += rows;
      if (sequence.rows == sequence.tokens()) done.push_back(id);
    }
    check_counters();
    for (const SequenceId id : done) {
      end(running_.find(id));
      ++seen_.completed;
    }
  }

  void cancel_some() {
    for (auto sequence = running_.begin(); sequence != running_.end();) {
      const auto next = std::next(sequence);
      if (pick(0, 79) == 0) {
        end(sequence);
        ++seen_.cancelled;
      }
      sequence = next;
    }
  }

  void end(std::map<SequenceId, Running>::iterator sequence) {
    for (const HostPage page : sequence->second.host_pages) host_owned_.erase(page);
    for (const auto& pages : sequence->second.device_pages)
      for (const PageId page : pages) device_owned_.erase(page);
    planner_.release(sequence->first);
    running_.erase(sequence);
  }

  void own(PageId page) {
    ASSERT_TRUE(page.value() >= 0 && page.value() < config_.device_pages);
    ASSERT_TRUE(device_owned_.insert(page).second) << "device page " << page.value() << " has two owners";
    ASSERT_FALSE(freed_in_step_.contains(page)) << "device page " << page.value() << " was freed by this step";
  }

  void apply(Running& sequence, const KvOp& op) {
    const auto layers = static_cast<std::size_t>(config_.geometry.layers);
    switch (op.kind) {
      case KvOp::Kind::kAddHostPages:
        for (const HostPage page : op.host_pages) {
          ASSERT_TRUE(page.value() >= 0 && page.value() < config_.host_pages);
          ASSERT_TRUE(host_owned_.insert(page).second) << "host page " << page.value() << " has two owners";
          sequence.host_pages.push_back(page);
        }
        return;
      case KvOp::Kind::kEnterResident:
        ASSERT_EQ(sequence.mode, KvMode::kParked);
        ASSERT_EQ(sequence.rows, 0);
        sequence.mode = KvMode::kResident;
        sequence.device_pages.assign(layers, {});
        return;
      case KvOp::Kind::kAddDevicePages:
        ASSERT_EQ(sequence.mode, KvMode::kResident);
        ASSERT_EQ(op.device_pages.size() % layers, 0U);
        for (std::size_t i = 0; i < op.device_pages.size(); ++i) {
          ASSERT_NO_FATAL_FAILURE(own(op.device_pages[i]));
          sequence.device_pages[i % layers].push_back(op.device_pages[i]);
        }
        return;
      case KvOp::Kind::kEnterHot: {
        ASSERT_NE(sequence.mode, KvMode::kHot);
        seen_.switches += sequence.mode == KvMode::kResident;
        const auto per_layer = static_cast<std::size_t>(sparse::hot_pages_of(op.shape).total());
        ASSERT_EQ(op.shape, config_.hot_shape);
        ASSERT_EQ(op.device_pages.size(), per_layer * layers);
        // The old pages are still read when the new ones are filled.
        for (const PageId page : op.device_pages) ASSERT_NO_FATAL_FAILURE(own(page));
        for (const auto& pages : sequence.device_pages)
          for (const PageId page : pages) {
            device_owned_.erase(page);
            freed_in_step_.insert(page);
          }
        sequence.device_pages.assign(layers, {});
        for (std::size_t i = 0; i < op.device_pages.size(); ++i)
          sequence.device_pages[i / per_layer].push_back(op.device_pages[i]);
        sequence.mode = KvMode::kHot;
        return;
      }
      case KvOp::Kind::kPark: FAIL() << "nothing is parked again"; return;
    }
  }

  void check_room(const Running& sequence, std::int64_t end) const {
    ASSERT_EQ(static_cast<std::int64_t>(sequence.host_pages.size()), pages_for_tokens(end));
    if (sequence.mode == KvMode::kParked) {
      ASSERT_TRUE(sequence.device_pages.empty());
    }
    const std::int64_t pages =
        sequence.mode == KvMode::kResident ? pages_for_tokens(end) : sparse::hot_pages_of(config_.hot_shape).total();
    for (const auto& of_layer : sequence.device_pages) ASSERT_EQ(static_cast<std::int64_t>(of_layer.size()), pages);
  }

  void check_mode(Running& sequence, bool prefill) {
    ++(sequence.mode == KvMode::kResident ? seen_.resident_rows
       : sequence.mode == KvMode::kHot    ? seen_.hot_rows
                                          : seen_.parked_rows);
    if (config_.mode == KvModeChoice::kResident) {
      ASSERT_EQ(sequence.mode, KvMode::kResident);
    }
    if (!config_.sparse) {
      ASSERT_NE(sequence.mode, KvMode::kHot);
    }
    if (prefill) {
      ASSERT_NE(sequence.mode, KvMode::kHot);
      // A prompt that is followed by a dense decode step must be on the device by then.
      const bool dense_decode = !config_.sparse || sequence.demand.prompt_tokens + 1 <= config_.threshold;
      if (dense_decode && sequence.demand.max_new_tokens > 0) {
        ASSERT_EQ(sequence.mode, KvMode::kResident);
      }
      return;
    }
    const std::int64_t length = sequence.rows + 1;
    ASSERT_NE(sequence.mode, KvMode::kParked);
    if (!config_.sparse || length <= config_.threshold) {
      ASSERT_EQ(sequence.mode, KvMode::kResident);
      return;
    }
    const bool hot = sequence.mode == KvMode::kHot;
    if (config_.mode == KvModeChoice::kHot) {
      ASSERT_TRUE(hot);
    }
    ASSERT_EQ(sequence.past_threshold_hot.value_or(hot), hot);
    sequence.past_threshold_hot = hot;
  }

  void check_counters() const {
    const KvCounters counters = planner_.counters();
    ASSERT_EQ(counters.host_pages_free, config_.host_pages - static_cast<std::int32_t>(host_owned_.size()));
    // Pages that a switch has freed come back with the sequence's next plan.
    const auto owned = static_cast<std::int32_t>(device_owned_.size());
    if (running_.empty()) {
      ASSERT_EQ(counters.device_pages_free, config_.device_pages);
    } else {
      ASSERT_LE(counters.device_pages_free, config_.device_pages - owned);
    }
    ASSERT_EQ(static_cast<std::size_t>(counters.resident + counters.hot + counters.parked), running_.size());
  }

  std::mt19937_64& random_;
  Seen& seen_;
  KvPlannerConfig config_;
  KvCachePlanner planner_;
  std::map<SequenceId, Running> running_;
  std::vector<KvDemand> waiting_;
  std::set<PageId> device_owned_, freed_in_step_;
  std::set<HostPage> host_owned_;
  std::uint64_t last_id_ = 0;
};

TEST(KvCachePlannerProperty, KeepsItsInvariants) {
  const std::uint64_t seed = test_seed();
  std::cout << "seed " << seed << " (HOTSET_TEST_SEED)\n";
  std::mt19937_64 random(seed);
  Seen seen;
  for (int round = 0; round < 1000 && !HasFatalFailure(); ++round) Simulation(random, seen).run(150);
  EXPECT_GT(seen.plans, 100'000);
  for (const std::int64_t count : {seen.granted, seen.later, seen.never, seen.cancelled, seen.completed, seen.switches})
    EXPECT_GT(count, 200);
  for (const std::int64_t count : {seen.resident_rows, seen.hot_rows, seen.parked_rows}) EXPECT_GT(count, 1000);
}

}  // namespace
}  // namespace hotset::actors
