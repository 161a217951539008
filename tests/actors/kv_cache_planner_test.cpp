#include "actors/kv_cache_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace hotset::actors {
namespace {

using sparse::KvMode;
using sparse::KvOp;
using Kind = sparse::KvOp::Kind;
using Kinds = std::vector<Kind>;

constexpr std::int32_t kLayers = 2;
constexpr std::int64_t kThreshold = 128;
constexpr std::int64_t kHotPages = 6;  // of a layer: 3 of the buffer, 3 of the ring

KvPlannerConfig make_config(std::int32_t device_tokens, KvModeChoice mode, std::int32_t metadata_tokens = 0) {
  constexpr KvGeometry kRows{.layers = kLayers, .kv_heads = 1, .key_dim = 4, .value_dim = 4, .dtype = KvDType::kF32};
  const MetadataGeometry metadata{.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 4};
  return {.layout = KvLayout::uniform(kRows, metadata_tokens > 0 ? metadata : MetadataGeometry{}),
          .device_pages = device_tokens / 64 * kLayers,
          .metadata_pages = metadata_tokens / 64 * kLayers,
          .host_pages = 100,
          .mode = mode};
}

KvDemand dense(std::uint64_t id, std::int64_t prompt, std::int64_t output) {
  return {.id = SequenceId{id}, .prompt_tokens = prompt, .max_new_tokens = output, .hot_shape = {}};
}
KvDemand sparse_demand(std::uint64_t id, std::int64_t prompt, std::int64_t output) {
  KvDemand demand = dense(id, prompt, output);
  demand.sparse = true;
  demand.threshold = kThreshold;
  demand.hot_shape = sparse::make_hot_buffer_shape(9, 16, 128).value();
  return demand;
}

// A planner, and the lengths of its sequences as a scheduler would know them.
class Bed {
 public:
  explicit Bed(const KvPlannerConfig& config) : planner(config) {}

  void grant(const KvDemand& demand) {
    const Result<Admission> answer = planner.acquire(demand);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    ASSERT_EQ(answer.value(), Admission::kGranted);
    if (!demand.resume) demands[demand.id] = demand;
    if (demand.resume) ++turns[demand.id];
  }
  void expect_later(const KvDemand& demand) {
    const Result<Admission> answer = planner.acquire(demand);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    ASSERT_EQ(answer.value(), Admission::kLater);
  }
  static KvDemand resume(std::uint64_t id) {
    KvDemand demand = dense(id, 0, 0);
    demand.resume = true;
    return demand;
  }

  // A step with the next rows of each: a whole prompt, or one decode row.
  KvStepPlan step(const std::vector<std::uint64_t>& ids) {
    std::vector<KvRows> rows;
    for (const std::uint64_t number : ids) {
      const SequenceId id{number};
      const std::int64_t prompt = demands.at(id).prompt_tokens;
      const bool prefill = lengths[id] < prompt;
      rows.push_back({.id = id,
                      .turn = turns[id],
                      .first_position = lengths[id],
                      .rows = prefill ? prompt - lengths[id] : 1,
                      .prefill = prefill});
    }
    KvStepPlan plan = planner.plan_step(rows);
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (plan.ops[i]) lengths[rows[i].id] += rows[i].rows;
    return plan;
  }
  void steps(const std::vector<std::uint64_t>& ids, int count) {
    for (int i = 0; i < count; ++i) (void)step(ids);
  }
  [[nodiscard]] KvMode mode(std::uint64_t id) const { return planner.mode(SequenceId{id}); }
  void release(std::uint64_t id) { planner.release(SequenceId{id}); }

  void expect_all_free() const {
    const KvCounters counters = planner.counters();
    EXPECT_EQ(counters.device_pages_free, counters.device_pages_total);
    EXPECT_EQ(counters.metadata_pages_free, counters.metadata_pages_total);
    EXPECT_EQ(counters.host_pages_free, counters.host_pages_total);
    EXPECT_EQ(counters.resident + counters.hot + counters.parked, 0);
  }

  KvCachePlanner planner;
  std::map<SequenceId, KvDemand> demands;
  std::map<SequenceId, std::int64_t> lengths;
  std::map<SequenceId, std::uint32_t> turns;
};

Kinds kinds(const std::vector<KvOp>& ops) {
  Kinds out;
  for (const KvOp& op : ops) out.push_back(op.kind);
  return out;
}

TEST(KvCachePlanner, AResidentSequenceGrowsByPages) {
  Bed bed(make_config(512, KvModeChoice::kAuto, 512));
  KvDemand demand = sparse_demand(1, 63, 20);
  demand.keeps_metadata = true;
  bed.grant(demand);
  EXPECT_EQ(bed.mode(1), KvMode::kParked);
  const KvStepPlan first = bed.step({1});
  ASSERT_TRUE(first.ops[0]);
  EXPECT_EQ(kinds(*first.ops[0]),
            (Kinds{Kind::kAddHostPages, Kind::kEnterResident, Kind::kAddDevicePages, Kind::kAddMetadataPages}));
  EXPECT_EQ(first.ops[0]->at(2).device_pages.size(), 1U * kLayers);
  EXPECT_EQ(first.ops[0]->at(3).metadata_pages.size(), 1U * kLayers);
  EXPECT_EQ(kinds(*bed.step({1}).ops[0]), Kinds{});
  EXPECT_EQ(bed.planner.counters().pages_written_through, 1);
  EXPECT_EQ(kinds(*bed.step({1}).ops[0]), (Kinds{Kind::kAddHostPages, Kind::kAddDevicePages, Kind::kAddMetadataPages}));
  EXPECT_EQ(bed.planner.counters().device_pages_free, 16 - 2 * kLayers);
  EXPECT_EQ(bed.planner.counters().metadata_pages_free, 16 - 2 * kLayers);
  EXPECT_EQ(bed.planner.counters().device_row_bytes, 2 * kLayers * 64 * 32);
  bed.release(1);
  bed.expect_all_free();
}

// Position p sees p + 1 tokens; up to the threshold they are attended in full, so on the device.
TEST(KvCachePlanner, HotModeStartsAtTheFirstDecodeRowPastTheThreshold) {
  for (const std::int64_t prompt : {std::int64_t{1}, std::int64_t{64}, kThreshold - 1, kThreshold, kThreshold + 1}) {
    Bed bed(make_config(6 * 64, KvModeChoice::kHot));
    bed.grant(sparse_demand(1, prompt, 400));
    (void)bed.step({1});
    EXPECT_EQ(bed.mode(1), KvMode::kResident) << prompt;
    for (std::int64_t position = prompt; position < kThreshold; ++position) {
      (void)bed.step({1});
      EXPECT_EQ(bed.mode(1), KvMode::kResident) << prompt << " at " << position;
    }
    const KvStepPlan turn = bed.step({1});
    ASSERT_EQ(turn.transitions.size(), 1U) << prompt;
    EXPECT_EQ(kinds(turn.transitions[0].ops), Kinds{Kind::kEnterHot});
    EXPECT_EQ(turn.transitions[0].ops[0].device_pages.size(), kHotPages * kLayers);
    EXPECT_EQ(bed.mode(1), KvMode::kHot);
    EXPECT_EQ(bed.planner.counters().device_pages_free, 0);
    bed.steps({1}, 100);
    EXPECT_EQ(bed.planner.counters().entered_hot, 1);
    EXPECT_EQ(bed.planner.counters().demoted, 0);
    bed.release(1);
    bed.expect_all_free();
  }
}

TEST(KvCachePlanner, APromptThatDoesNotFitIsStreamedThenHot) {
  for (const KvModeChoice mode : {KvModeChoice::kAuto, KvModeChoice::kHot}) {
    Bed bed(make_config(6 * 64, mode, 2048));
    KvDemand demand = sparse_demand(1, 1000, 100);
    demand.keeps_metadata = true;
    bed.grant(demand);
    EXPECT_EQ(kinds(*bed.step({1}).ops[0]), Kinds{Kind::kAddHostPages});
    EXPECT_EQ(bed.mode(1), KvMode::kParked);
    EXPECT_EQ(bed.planner.counters().streamed_prefills, 1);
    bed.expect_later(sparse_demand(2, 10, 1));  // the hot buffer's pages are kept back
    const KvStepPlan decode = bed.step({1});
    EXPECT_EQ(kinds(*decode.ops[0]), Kinds{Kind::kEnterHot});
    EXPECT_EQ(decode.ops[0]->at(0).device_pages.size(), kHotPages * kLayers);
    EXPECT_EQ(decode.ops[0]->at(0).metadata_pages.size(), 16U * kLayers);
    EXPECT_EQ(decode.ops[0]->at(0).shape, demand.hot_shape);
    bed.steps({1}, 99);
    EXPECT_EQ(bed.planner.counters().metadata_pages_free, (32 - 18) * kLayers);
    bed.release(1);
    bed.expect_all_free();
  }
}

TEST(KvCachePlanner, PressureOfANewOneDemotesThoseThatFreeMost) {
  Bed bed(make_config(24 * 64, KvModeChoice::kAuto));
  bed.grant(sparse_demand(1, 500, 100));  // 8 pages a layer
  bed.grant(sparse_demand(2, 700, 100));  // 11
  bed.steps({1, 2}, 2);
  EXPECT_EQ(bed.planner.counters().demoted, 0);
  bed.grant(sparse_demand(3, 300, 10));  // 5 pages and one for each that grows
  EXPECT_EQ(bed.mode(1), KvMode::kResident);
  EXPECT_EQ(bed.mode(2), KvMode::kHot);
  const KvStepPlan step = bed.step({1, 2, 3});
  ASSERT_EQ(step.transitions.size(), 1U);
  EXPECT_EQ(step.transitions[0].id, SequenceId{2});
  EXPECT_EQ(kinds(step.transitions[0].ops), Kinds{Kind::kEnterHot});
  EXPECT_EQ(bed.planner.counters().demoted, 1);
  for (const std::uint64_t id : {1, 2, 3}) bed.release(id);
  bed.expect_all_free();
}

TEST(KvCachePlanner, AReleaseForgetsATransitionThatHasNotLeft) {
  Bed bed(make_config(16 * 64, KvModeChoice::kAuto));
  bed.grant(sparse_demand(1, 700, 100));
  bed.steps({1}, 2);
  bed.grant(sparse_demand(2, 500, 100));
  EXPECT_EQ(bed.mode(1), KvMode::kHot);
  bed.release(1);
  EXPECT_TRUE(bed.step({2}).transitions.empty());
  bed.release(2);
  bed.expect_all_free();
}

TEST(KvCachePlanner, ShortDenseSequencesAreParkedYoungestFirstAndComeBackOldestFirst) {
  Bed bed(make_config(12 * 64, KvModeChoice::kAuto));
  for (const std::uint64_t id : {1, 2, 3}) bed.grant(dense(id, 126, 300));  // 2 pages, 7 at the end
  (void)bed.step({1, 2, 3});
  std::vector<SequenceId> deferred;
  for (int i = 0; i < 300 && deferred.empty(); ++i) deferred = bed.step({1, 2, 3}).deferred;
  ASSERT_EQ(deferred, std::vector<SequenceId>{SequenceId{3}});
  EXPECT_EQ(bed.mode(3), KvMode::kParked);
  EXPECT_EQ(bed.planner.counters().entered_parked, 1);
  const std::int64_t length = bed.lengths[SequenceId{3}];
  // Its rows that were drafted before are stale, and nothing new overtakes it.
  EXPECT_FALSE(bed.step({1, 2, 3}).ops[2]);
  EXPECT_EQ(bed.lengths[SequenceId{3}], length);
  bed.expect_later(dense(4, 1, 1));
  bed.expect_later(Bed::resume(3));
  for (deferred.clear(); deferred.empty();) deferred = bed.step({1, 2}).deferred;
  ASSERT_EQ(deferred, std::vector<SequenceId>{SequenceId{2}});
  bed.release(1);
  bed.expect_later(Bed::resume(3));  // the older one is first
  bed.grant(Bed::resume(2));
  bed.expect_later(dense(4, 1, 1));
  const KvStepPlan back = bed.step({2});  // its next row begins a page
  ASSERT_EQ(kinds(*back.ops[0]), (Kinds{Kind::kAddHostPages, Kind::kEnterResident, Kind::kAddDevicePages}));
  EXPECT_EQ(back.ops[0]->at(1).device_pages.size(),
            static_cast<std::size_t>(pages_for_tokens(bed.lengths[SequenceId{2}] - 1) * kLayers));
  bed.release(2);
  bed.grant(Bed::resume(3));
  // Rows of the turn before are dropped though their position is right.
  --bed.turns[SequenceId{3}];
  EXPECT_FALSE(bed.step({3}).ops[0]);
  ++bed.turns[SequenceId{3}];
  EXPECT_TRUE(bed.step({3}).ops[0]);
  EXPECT_EQ(bed.planner.counters().resumed, 2);
  bed.release(3);
  bed.expect_all_free();
}

TEST(KvCachePlanner, AParkedSequencePastTheThresholdComesBackResidentWhereThatFits) {
  Bed bed(make_config(16 * 64, KvModeChoice::kAuto, 16 * 64));
  KvDemand keeper = sparse_demand(2, 600, 100);
  keeper.keeps_metadata = true;
  bed.grant(dense(1, 64 * 4, 64 * 12 - 1));
  bed.grant(keeper);
  std::vector<SequenceId> deferred;
  for (int i = 0; i < 600 && deferred.empty() && bed.lengths[SequenceId{2}] < 640; ++i) {
    deferred = bed.step(i < 30 ? std::vector<std::uint64_t>{1, 2} : std::vector<std::uint64_t>{1}).deferred;
  }
  // It was demoted first; then its hot pages were wanted too.
  ASSERT_EQ(deferred, std::vector<SequenceId>{SequenceId{2}});
  EXPECT_EQ(bed.planner.counters().demoted, 1);
  EXPECT_EQ(bed.planner.counters().metadata_pages_free, bed.planner.counters().metadata_pages_total);
  bed.release(1);
  bed.expect_later(dense(3, 64 * 5, 1));  // the parked one is first
  bed.grant(Bed::resume(2));              // resident fits now
  const KvStepPlan back = bed.step({2});
  EXPECT_EQ(kinds(*back.ops[0]).front(), Kind::kEnterResident);
  EXPECT_EQ(back.ops[0]->front().metadata_pages.size(), 10U * kLayers);
  bed.grant(dense(3, 64 * 5, 1));
  bed.release(2);
  bed.release(3);
  bed.expect_all_free();
}

TEST(KvCachePlanner, AParkedSequencePastTheThresholdComesBackHotWhereResidentDoesNotFit) {
  Bed bed(make_config(22 * 64, KvModeChoice::kAuto, 16 * 64));
  bed.grant(dense(1, 64 * 4, 64 * 8 - 1));  // 12 pages at its end
  bed.grant(dense(2, 64 * 4, 60));          // 5
  KvDemand keeper = sparse_demand(3, 600, 100);
  keeper.keeps_metadata = true;
  bed.grant(keeper);  // 10, hot 6
  bed.steps({1, 2, 3}, 5);
  std::vector<SequenceId> deferred;
  for (int i = 0; i < 600 && deferred.empty(); ++i) deferred = bed.step({1}).deferred;
  ASSERT_EQ(deferred, std::vector<SequenceId>{SequenceId{3}});
  EXPECT_EQ(bed.planner.counters().demoted, 1);
  bed.expect_later(Bed::resume(3));
  bed.release(2);
  // 10 pages are free, and sequence 1 may need one of them.
  ASSERT_EQ(bed.planner.counters().device_pages_free, 10 * kLayers);
  bed.grant(Bed::resume(3));
  const KvStepPlan back = bed.step({3});
  ASSERT_EQ(kinds(*back.ops[0]), Kinds{Kind::kEnterHot});
  EXPECT_EQ(back.ops[0]->front().device_pages.size(), kHotPages * kLayers);
  EXPECT_EQ(back.ops[0]->front().metadata_pages.size(), 10U * kLayers);
  EXPECT_EQ(back.ops[0]->front().shape, keeper.hot_shape);
  EXPECT_EQ(bed.mode(3), KvMode::kHot);
  EXPECT_EQ(bed.planner.counters().resumed, 1);
  bed.release(1);
  bed.release(3);
  bed.expect_all_free();
}

TEST(KvCachePlanner, PromotionWaitsForCalmAndForRoomToTheEnd) {
  Bed bed(make_config(22 * 64, KvModeChoice::kAuto));
  bed.grant(sparse_demand(1, 500, 1000));  // all of it: 24 pages
  bed.steps({1}, 2);
  bed.grant(sparse_demand(2, 900, 30));  // 15
  EXPECT_EQ(bed.mode(1), KvMode::kHot);
  bed.step({1, 2});
  bed.steps({1, 2}, 2);
  bed.release(2);
  bed.steps({1}, 300);
  EXPECT_EQ(bed.mode(1), KvMode::kHot) << "its end and an eighth of the pool do not fit";
  bed.release(1);

  bed.grant(sparse_demand(3, 500, 300));  // all of it: 13 pages
  bed.steps({3}, 2);
  bed.grant(sparse_demand(4, 900, 30));
  EXPECT_EQ(bed.mode(3), KvMode::kHot);
  bed.steps({3, 4}, 2);
  bed.release(4);
  const std::int64_t since = 2;
  for (std::int64_t step = since; step < KvCachePlanner::kCalmSteps; ++step) {
    EXPECT_TRUE(bed.step({3}).transitions.empty()) << step;
  }
  const KvStepPlan promoted = bed.step({3});
  ASSERT_EQ(promoted.transitions.size(), 1U);
  EXPECT_EQ(kinds(promoted.transitions[0].ops), (Kinds{Kind::kPark, Kind::kEnterResident}));
  EXPECT_EQ(bed.mode(3), KvMode::kResident);
  EXPECT_EQ(bed.planner.counters().promoted, 1);
  bed.release(3);
  bed.expect_all_free();
}

TEST(KvCachePlanner, ADenseSequenceNeverGoesHotWhateverTheOthersDo) {
  for (const KvModeChoice mode : {KvModeChoice::kAuto, KvModeChoice::kResident, KvModeChoice::kHot}) {
    Bed bed(make_config(512, mode));
    bed.grant(dense(1, 300, 100));
    bed.steps({1}, 102);
    EXPECT_EQ(bed.mode(1), KvMode::kResident);
    EXPECT_EQ(bed.planner.acquire(dense(3, 500, 100)).error().param, "--device-kv-tokens");
  }
}

TEST(KvCachePlanner, ScoringNeedsNoDevicePagesUnderPressure) {
  Bed bed(make_config(512, KvModeChoice::kAuto));
  bed.grant(dense(1, 500, 0));
  bed.grant(sparse_demand(2, 2000, 0));
  bed.grant(dense(3, 2000, 0));
  (void)bed.step({1, 2, 3});
  EXPECT_EQ(bed.mode(1), KvMode::kResident);
  EXPECT_EQ(bed.mode(2), KvMode::kParked);
  EXPECT_EQ(bed.mode(3), KvMode::kParked);
  for (const std::uint64_t id : {1, 2, 3, 3}) bed.release(id);
  bed.release(99);
  bed.expect_all_free();
  Bed resident(make_config(512, KvModeChoice::kResident));
  EXPECT_EQ(resident.planner.acquire(dense(1, 513, 0)).error().code, ErrorCode::kCapacityNever);
  resident.grant(dense(2, 512, 0));
}

TEST(KvCachePlanner, HostPagesAreReservedForTheWholeSequence) {
  KvPlannerConfig config = make_config(64 * 64, KvModeChoice::kAuto);
  config.host_pages = 30;
  Bed bed(config);
  for (const std::uint64_t id : {1, 2, 3}) bed.grant(dense(id, 10, 600));
  bed.expect_later(dense(4, 1, 1));
  bed.release(2);
  bed.grant(dense(4, 10, 600));
}

TEST(KvNeeds, WhatNeverFitsIsRefusedByTheOptionsName) {
  const KvNeeds resident(make_config(512, KvModeChoice::kResident));
  const Error device = resident.can_ever_run(dense(1, 500, 12)).error();  // 513 tokens with the overshoot row
  EXPECT_EQ(device.code, ErrorCode::kCapacityNever);
  EXPECT_EQ(device.param, "--device-kv-tokens");
  EXPECT_NE(device.message.find("576 tokens"), std::string::npos) << device.message;
  EXPECT_NE(device.message.find("512"), std::string::npos) << device.message;
  EXPECT_TRUE(resident.can_ever_run(dense(2, 500, 11)).ok());
  const Error host = resident.can_ever_run(dense(3, 6000, 500)).error();
  EXPECT_EQ(host.param, "--host-kv");
  EXPECT_NE(host.message.find("6501 tokens"), std::string::npos) << host.message;

  const KvNeeds hot(make_config(5 * 64, KvModeChoice::kHot));
  const Error buffer = hot.can_ever_run(sparse_demand(1, 200, 10)).error();
  EXPECT_EQ(buffer.param, "--hot-ring") << "192 tokens of ring, 144 of buffer";
  EXPECT_NE(buffer.message.find("384 tokens"), std::string::npos) << buffer.message;
  KvDemand large = sparse_demand(1, 200, 10);
  large.hot_shape = sparse::make_hot_buffer_shape(18, 16, 128).value();
  EXPECT_EQ(hot.can_ever_run(large).error().param, "--hot-buffer");
  EXPECT_TRUE(hot.can_ever_run(sparse_demand(2, 100, kThreshold - 101)).ok());
  KvDemand late = sparse_demand(3, 100, 500);
  late.threshold = 500;
  EXPECT_EQ(KvNeeds(make_config(6 * 64, KvModeChoice::kAuto)).can_ever_run(late).error().param, "--device-kv-tokens");

  KvDemand keeper = sparse_demand(4, 500, 100);
  keeper.keeps_metadata = true;
  EXPECT_EQ(KvNeeds(make_config(64 * 64, KvModeChoice::kAuto, 512)).can_ever_run(keeper).error().param,
            "--device-metadata-tokens");

  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(resident.can_ever_run(dense(4, kMost, kMost)).error().param, "--host-kv");
  EXPECT_EQ(resident.can_ever_run(dense(4, 0, 1)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(resident.can_ever_run(dense(4, 1, -1)).error().code, ErrorCode::kInvalidArgument);
}

TEST(KvNeeds, LargestOutput) {
  const KvNeeds resident(make_config(512, KvModeChoice::kResident));
  // Resident: 512 tokens less the prompt and the row behind the output.
  EXPECT_EQ(resident.largest_output(dense(1, 100, 0)), 411);
  EXPECT_EQ(resident.largest_output(dense(1, 511, 0)), 0);
  EXPECT_EQ(resident.largest_output(dense(1, 0, 0)), 0);
  const KvNeeds automatic(make_config(512, KvModeChoice::kAuto));
  EXPECT_EQ(automatic.largest_output(dense(1, 2000, 0)), 0);
  // Hot: the host's 6,400.
  EXPECT_EQ(automatic.largest_output(sparse_demand(1, 100, 0)), 6299);
  EXPECT_EQ(automatic.largest_output(sparse_demand(1, 2000, 0)), 4399);
  EXPECT_EQ(KvNeeds(make_config(5 * 64, KvModeChoice::kHot)).largest_output(sparse_demand(1, 100, 0)),
            kThreshold - 101);
}

TEST(KvCachePlannerDeathTest, OurBugsAreCaught) {
  Bed bed(make_config(512, KvModeChoice::kAuto));
  bed.grant(dense(1, 10, 5));
  const auto plan = [&](std::int64_t rows, bool prefill) {
    const KvRows one{.id = SequenceId{1}, .first_position = 0, .rows = rows, .prefill = prefill};
    (void)bed.planner.plan_step({&one, 1});
  };
  EXPECT_DEATH((void)bed.planner.acquire(dense(1, 10, 5)), "granted once");
  EXPECT_DEATH(plan(11, true), "in the prompt");
  EXPECT_DEATH(plan(1, false), "behind it");
  EXPECT_DEATH(plan(17, true), "inside its reservation");
}

// Where the rows of resident sequences lie, in a pool of the size of a GPU's: 32 layers, pages of 256 KiB.
class Pieces : public ::testing::Test {
 protected:
  static constexpr std::int32_t kManyLayers = 32;
  static constexpr std::int64_t kPiece = 4;  // pages of 1 MiB, which a copy engine takes
  struct Lists {
    std::vector<HostPage> host;
    std::vector<std::vector<PageId>> device;
  };

  static KvPlannerConfig config_of(std::int32_t device_tokens) {
    constexpr KvGeometry kRows{
        .layers = kManyLayers, .kv_heads = 8, .key_dim = 128, .value_dim = 128, .dtype = KvDType::kBF16};
    return {.layout = KvLayout::uniform(kRows, MetadataGeometry{}),
            .device_pages = device_tokens / 64 * kManyLayers,
            .metadata_pages = 0,
            .host_pages = 8192,
            .mode = KvModeChoice::kAuto};
  }

  void step(const std::vector<std::uint64_t>& ids) {
    const KvStepPlan plan = bed.step(ids);
    for (const KvTransition& transition : plan.transitions) apply(transition.id.value(), transition.ops);
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (plan.ops[i]) apply(ids[i], *plan.ops[i]);
  }
  void release(std::uint64_t id) {
    bed.release(id);
    lists.erase(id);
  }

  // Share of a sequence's rows that lie together on both sides in pieces of at least kPiece pages.
  [[nodiscard]] double in_pieces(std::uint64_t id) const {
    const Lists& one = lists.at(id);
    std::int64_t in = 0, all = 0;
    for (const std::vector<PageId>& pages : one.device) {
      std::size_t begin = 0;
      for (std::size_t i = 1; i <= pages.size(); ++i) {
        if (i < pages.size() && pages[i].value() == pages[i - 1].value() + 1 &&
            one.host[i].value() == one.host[i - 1].value() + 1)
          continue;
        const auto length = static_cast<std::int64_t>(i - begin);
        in += length >= kPiece ? length : 0;
        all += length;
        begin = i;
      }
    }
    return static_cast<double>(in) / static_cast<double>(all);
  }

  Bed bed{config_of(64 * 1024)};
  std::map<std::uint64_t, Lists> lists;

 private:
  void apply(std::uint64_t id, const std::vector<KvOp>& ops) {
    Lists& one = lists[id];
    for (const KvOp& op : ops) {
      one.host.insert(one.host.end(), op.host_pages.begin(), op.host_pages.end());
      if (op.kind != Kind::kAddDevicePages && op.kind != Kind::kAddHostPages) one.device.clear();
      if (op.kind == Kind::kEnterHot) continue;
      one.device.resize(kManyLayers);
      const auto each = static_cast<std::ptrdiff_t>(op.device_pages.size() / kManyLayers);
      for (std::ptrdiff_t layer = 0; layer < kManyLayers; ++layer) {
        const auto from = op.device_pages.begin() + layer * each;
        auto& list = one.device[static_cast<std::size_t>(layer)];
        list.insert(list.end(), from, from + each);
      }
    }
  }
};

TEST_F(Pieces, AChunkIsOnePieceOfALayer) {
  bed.grant(dense(1, 4096, 4096));
  step({1});
  for (const std::vector<PageId>& pages : lists.at(1).device) {
    ASSERT_EQ(pages.size(), 64U);
    for (std::size_t i = 1; i < pages.size(); ++i) ASSERT_EQ(pages[i].value(), pages[i - 1].value() + 1);
  }
  // What is written token by token goes on there, beside somebody else who does.
  bed.grant(dense(2, 4096, 4096));
  step({2});
  for (int i = 0; i < 1024; ++i) step({1, 2});
  EXPECT_EQ(in_pieces(1), 1.0);
  EXPECT_EQ(in_pieces(2), 1.0);
}

// Requests of many lengths come and go, grow together, are parked and come back, in a pool that is mostly full.
TEST_F(Pieces, MostRowsLieInThemAfterManyRequests) {
  constexpr std::uint32_t kSeed = 20'261'130;
  std::mt19937 random(kSeed);
  std::vector<std::uint64_t> running;
  std::uint64_t next = 1;
  double share = 0;
  std::int64_t measured = 0;
  for (int round = 0; round < 300; ++round) {
    const std::int64_t prompt = 64 + static_cast<std::int64_t>(random() % 12'000);
    const Result<Admission> answer = bed.planner.acquire(dense(next, prompt, 2000));
    ASSERT_TRUE(answer.ok());
    if (answer.value() == Admission::kGranted) {
      bed.demands[SequenceId{next}] = dense(next, prompt, 2000);
      running.push_back(next++);
    }
    for (int i = 0; i < 40; ++i) {
      step(running);
      std::erase_if(running, [&](std::uint64_t id) {  // past its output, or parked
        if (bed.lengths[SequenceId{id}] < bed.demands.at(SequenceId{id}).prompt_tokens + 1900 &&
            bed.mode(id) == KvMode::kResident)
          return false;
        release(id);
        return true;
      });
    }
    if (running.size() > 1 && random() % 2 == 0) {
      const std::size_t at = random() % running.size();
      share += in_pieces(running[at]);
      ++measured;
      release(running[at]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  ASSERT_GT(measured, 50);
  std::printf("%.1f %% of the rows lie in pieces of 1 MiB or more\n", 100 * share / static_cast<double>(measured));
  EXPECT_GT(share / static_cast<double>(measured), 0.7);
}

TEST_F(Pieces, WhatComesBackDoesToo) {
  // Two that fill the pool: the younger one is parked, and resumed when the older one ends.
  bed.grant(dense(1, 30'000, 6000));
  bed.grant(dense(2, 30'000, 6000));
  step({1});
  step({2});
  while (bed.mode(2) == KvMode::kResident) step({1, 2});
  ASSERT_EQ(bed.mode(2), KvMode::kParked);
  release(1);
  bed.grant(Bed::resume(2));
  step({2});
  ASSERT_EQ(bed.mode(2), KvMode::kResident);
  EXPECT_GT(in_pieces(2), 0.99);
}

}  // namespace
}  // namespace hotset::actors
