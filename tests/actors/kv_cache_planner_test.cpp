#include "actors/kv_cache_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
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

// Two layers. The hot shape takes 3 buffer pages and 3 ring pages per layer.
KvPlannerConfig make_config(std::int32_t device_tokens, KvModeChoice mode, bool sparse = true) {
  return {.geometry = {.layers = kLayers, .kv_heads = 1, .key_dim = 4, .value_dim = 4, .dtype = KvDType::kF32},
          .device_pages = device_tokens / 64 * kLayers,
          .host_pages = 100,
          .mode = mode,
          .sparse = sparse,
          .threshold = kThreshold,
          .hot_shape = sparse::make_hot_buffer_shape(9, 16, 128).value()};
}

KvDemand demand(std::uint64_t id, std::int64_t prompt, std::int64_t output) {
  return {.id = SequenceId{id}, .prompt_tokens = prompt, .max_new_tokens = output};
}

void expect_granted(KvCachePlanner& planner, const KvDemand& what) {
  const Result<Admission> answer = planner.acquire(what);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_EQ(answer.value(), Admission::kGranted);
}

void expect_later(KvCachePlanner& planner, const KvDemand& what) {
  const Result<Admission> answer = planner.acquire(what);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_EQ(answer.value(), Admission::kLater);
}

Kinds kinds(const std::vector<KvOp>& ops) {
  Kinds out;
  for (const KvOp& op : ops) out.push_back(op.kind);
  return out;
}

Kinds plan(KvCachePlanner& planner, std::int64_t first, std::int64_t rows, bool prefill, std::uint64_t id = 1) {
  return kinds(planner.plan_rows(SequenceId{id}, first, rows, prefill));
}

void expect_all_free(const KvCachePlanner& planner) {
  const KvCounters counters = planner.counters();
  EXPECT_EQ(counters.device_pages_free, counters.device_pages_total);
  EXPECT_EQ(counters.host_pages_free, counters.host_pages_total);
  EXPECT_EQ(counters.resident + counters.hot + counters.parked, 0);
}

TEST(KvCachePlanner, AResidentSequenceGrowsByPages) {
  KvCachePlanner planner(make_config(512, KvModeChoice::kAuto));
  expect_granted(planner, demand(1, 63, 20));
  EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kParked);
  const std::vector<KvOp> first = planner.plan_rows(SequenceId{1}, 0, 63, true);
  EXPECT_EQ(kinds(first), (Kinds{Kind::kAddHostPages, Kind::kEnterResident, Kind::kAddDevicePages}));
  EXPECT_EQ(first[0].host_pages.size(), 1U);
  EXPECT_TRUE(first[1].device_pages.empty());
  EXPECT_EQ(first[2].device_pages.size(), 1U * kLayers);
  EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kResident);
  EXPECT_EQ(plan(planner, 63, 1, false), Kinds{});
  EXPECT_EQ(planner.counters().pages_written_through, 1);
  EXPECT_EQ(plan(planner, 64, 1, false), (Kinds{Kind::kAddHostPages, Kind::kAddDevicePages}));
  EXPECT_EQ(plan(planner, 65, 1, false), Kinds{});
  EXPECT_EQ(planner.counters().resident, 1);
  EXPECT_EQ(planner.counters().device_pages_free, 16 - 2 * kLayers);
  planner.release(SequenceId{1});
  expect_all_free(planner);
}

// Position p sees p + 1 tokens; up to the threshold they are attended in full, so on the device.
TEST(KvCachePlanner, HotModeStartsAtTheFirstDecodeRowPastTheThreshold) {
  for (const std::int64_t prompt : {std::int64_t{1}, std::int64_t{64}, kThreshold - 2, kThreshold - 1}) {
    KvCachePlanner planner(make_config(8 * 64, KvModeChoice::kHot));
    expect_granted(planner, demand(1, prompt, kThreshold - prompt + 70));
    (void)plan(planner, 0, prompt, true);
    EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kResident) << prompt;
    for (std::int64_t position = prompt; position < kThreshold; ++position) {
      (void)plan(planner, position, 1, false);
      EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kResident) << prompt << " at " << position;
    }
    EXPECT_EQ(plan(planner, kThreshold, 1, false), (Kinds{Kind::kAddHostPages, Kind::kEnterHot})) << prompt;
    EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kHot);
    EXPECT_EQ(planner.counters().entered_hot, 1);
    EXPECT_EQ(plan(planner, kThreshold + 1, 1, false), Kinds{});
    EXPECT_EQ(planner.counters().streamed_prefills, 0);
    planner.release(SequenceId{1});
    expect_all_free(planner);
  }
}

TEST(KvCachePlanner, APromptThatReachesTheThresholdIsStreamedThenHot) {
  for (const std::int64_t prompt : {kThreshold, kThreshold + 1, std::int64_t{1000}}) {
    KvCachePlanner planner(make_config(6 * 64, KvModeChoice::kHot));
    expect_granted(planner, demand(1, prompt, 100));
    for (std::int64_t first = 0; first < prompt; first += 64) {
      EXPECT_EQ(plan(planner, first, std::min<std::int64_t>(64, prompt - first), true), Kinds{Kind::kAddHostPages});
      EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kParked);
    }
    EXPECT_EQ(planner.counters().device_pages_free, planner.counters().device_pages_total);
    EXPECT_EQ(planner.counters().streamed_prefills, 1);
    const std::vector<KvOp> ops = planner.plan_rows(SequenceId{1}, prompt, 1, false);
    EXPECT_EQ(ops.back().kind, Kind::kEnterHot);
    EXPECT_EQ(ops.back().shape, make_config(64, KvModeChoice::kHot).hot_shape);
    EXPECT_EQ(ops.back().device_pages.size(), 6U * kLayers);
    EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kHot);
    for (std::int64_t position = prompt + 1; position < prompt + 100; ++position)
      (void)plan(planner, position, 1, false);
    EXPECT_EQ(planner.counters().device_pages_free, 0);
    EXPECT_EQ(planner.counters().pages_written_through, (prompt + 100) / 64);
    planner.release(SequenceId{1});
    expect_all_free(planner);
  }
}

TEST(KvCachePlanner, PagesFreedByTheSwitchWaitForTheNextPlan) {
  KvCachePlanner planner(make_config(8 * 64, KvModeChoice::kHot));
  expect_granted(planner, demand(1, 127, 50));
  const std::vector<KvOp> prefill = planner.plan_rows(SequenceId{1}, 0, 127, true);
  (void)plan(planner, 127, 1, false);
  const std::vector<KvOp> ops = planner.plan_rows(SequenceId{1}, 128, 1, false);
  for (const PageId page : ops.back().device_pages)
    for (const PageId old : prefill.back().device_pages) EXPECT_NE(page, old);
  EXPECT_EQ(planner.counters().device_pages_free, 0);
  (void)plan(planner, 129, 1, false);
  EXPECT_EQ(planner.counters().device_pages_free, 2 * kLayers);
  // Released right after the switch, it leaves nothing behind either.
  planner.release(SequenceId{1});
  expect_all_free(planner);
  expect_granted(planner, demand(2, 127, 50));
  (void)plan(planner, 0, 127, true, 2);
  (void)plan(planner, 127, 1, false, 2);
  (void)plan(planner, 128, 1, false, 2);
  planner.release(SequenceId{2});
  expect_all_free(planner);
}

TEST(KvCachePlanner, AutoIsResidentWhileThereIsRoomAndHotBeyond) {
  KvCachePlanner planner(make_config(16 * 64, KvModeChoice::kAuto));
  expect_granted(planner, demand(1, 500, 100));  // 10 pages per layer
  expect_granted(planner, demand(2, 500, 100));  // 6 are left: the hot buffer's
  expect_later(planner, demand(3, 500, 100));
  (void)plan(planner, 0, 500, true, 1);
  (void)plan(planner, 0, 500, true, 2);
  EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kResident);
  EXPECT_EQ(planner.mode(SequenceId{2}), KvMode::kParked);
  (void)plan(planner, 500, 1, false, 1);
  (void)plan(planner, 500, 1, false, 2);
  EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kResident);
  EXPECT_EQ(planner.mode(SequenceId{2}), KvMode::kHot);
  planner.release(SequenceId{1});
  expect_granted(planner, demand(3, 500, 100));
  planner.release(SequenceId{2});
  planner.release(SequenceId{3});
  planner.release(SequenceId{3});
  planner.release(SequenceId{99});
  expect_all_free(planner);
}

TEST(KvCachePlanner, FourHotSequencesInRoomForTwo) {
  KvCachePlanner planner(make_config(1024, KvModeChoice::kHot));
  expect_granted(planner, demand(1, 300, 24));
  expect_granted(planner, demand(2, 300, 24));
  expect_later(planner, demand(3, 300, 24));
  expect_later(planner, demand(4, 300, 24));
  planner.release(SequenceId{2});
  expect_granted(planner, demand(3, 300, 24));
  expect_later(planner, demand(4, 300, 24));
}

TEST(KvCachePlanner, ADenseServerNeverGoesHot) {
  for (const KvModeChoice mode : {KvModeChoice::kAuto, KvModeChoice::kResident, KvModeChoice::kHot}) {
    KvCachePlanner planner(make_config(512, mode, false));
    expect_granted(planner, demand(1, 300, 100));
    (void)plan(planner, 0, 300, true);
    for (std::int64_t position = 300; position < 401; ++position) (void)plan(planner, position, 1, false);
    EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kResident);
    expect_later(planner, demand(2, 300, 100));
    EXPECT_EQ(planner.acquire(demand(3, 500, 100)).error().param, "--device-kv-tokens");
  }
}

TEST(KvCachePlanner, ScoringNeedsNoDevicePagesUnderPressure) {
  for (const bool sparse : {false, true}) {
    KvCachePlanner planner(make_config(512, KvModeChoice::kAuto, sparse));
    expect_granted(planner, demand(1, 500, 0));
    expect_granted(planner, demand(2, 2000, 0));
    (void)plan(planner, 0, 500, true, 1);
    (void)plan(planner, 0, 256, true, 2);
    EXPECT_EQ(planner.mode(SequenceId{1}), KvMode::kResident);
    EXPECT_EQ(planner.mode(SequenceId{2}), KvMode::kParked);
    EXPECT_EQ(planner.counters().parked, 1);
    planner.release(SequenceId{2});
    planner.release(SequenceId{1});
    expect_all_free(planner);
  }
  KvCachePlanner resident(make_config(512, KvModeChoice::kResident));
  EXPECT_EQ(resident.acquire(demand(1, 513, 0)).error().code, ErrorCode::kCapacityNever);
  expect_granted(resident, demand(2, 512, 0));
  KvCachePlanner hot(make_config(512, KvModeChoice::kHot));
  expect_granted(hot, demand(1, kThreshold + 1, 0));
  (void)plan(hot, 0, kThreshold + 1, true);
  EXPECT_EQ(hot.mode(SequenceId{1}), KvMode::kParked);
}

TEST(KvCachePlanner, WhatNeverFitsIsRefusedByTheOptionsName) {
  KvCachePlanner planner(make_config(512, KvModeChoice::kResident));
  const Error device = planner.acquire(demand(1, 500, 12)).error();  // 513 tokens with the row behind the output
  EXPECT_EQ(device.code, ErrorCode::kCapacityNever);
  EXPECT_EQ(device.param, "--device-kv-tokens");
  EXPECT_NE(device.message.find("576 tokens"), std::string::npos) << device.message;
  EXPECT_NE(device.message.find("512"), std::string::npos) << device.message;
  EXPECT_NE(device.message.find("--device-kv-tokens"), std::string::npos) << device.message;
  expect_granted(planner, demand(2, 500, 11));

  const Error host = planner.acquire(demand(3, 6000, 500)).error();
  EXPECT_EQ(host.code, ErrorCode::kCapacityNever);
  EXPECT_EQ(host.param, "--host-kv");
  EXPECT_NE(host.message.find("6501 tokens"), std::string::npos) << host.message;
  EXPECT_NE(host.message.find("6400"), std::string::npos) << host.message;

  // The hot buffer itself does not fit.
  KvCachePlanner hot(make_config(5 * 64, KvModeChoice::kHot));
  EXPECT_EQ(hot.acquire(demand(1, 200, 10)).error().param, "--device-kv-tokens");
  expect_granted(hot, demand(2, 100, kThreshold - 101));

  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(planner.acquire(demand(4, kMost, kMost)).error().param, "--host-kv");
  EXPECT_EQ(planner.acquire(demand(4, 0, 1)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(planner.acquire(demand(4, 1, -1)).error().code, ErrorCode::kInvalidArgument);
}

TEST(KvCachePlanner, LargestOutput) {
  // Resident: 512 tokens less the prompt and the row behind the output.
  EXPECT_EQ(KvCachePlanner(make_config(512, KvModeChoice::kResident)).largest_output(100), 411);
  EXPECT_EQ(KvCachePlanner(make_config(512, KvModeChoice::kResident)).largest_output(510), 1);
  EXPECT_EQ(KvCachePlanner(make_config(512, KvModeChoice::kResident)).largest_output(511), 0);
  EXPECT_EQ(KvCachePlanner(make_config(512, KvModeChoice::kAuto, false)).largest_output(2000), 0);
  // Hot: the host's 6,400.
  EXPECT_EQ(KvCachePlanner(make_config(512, KvModeChoice::kHot)).largest_output(100), 6299);
  EXPECT_EQ(KvCachePlanner(make_config(512, KvModeChoice::kAuto)).largest_output(2000), 4399);
  // Room for the hot buffer, but not for the resident pages before it as well.
  EXPECT_EQ(KvCachePlanner(make_config(448, KvModeChoice::kHot)).largest_output(100), kThreshold - 101);
  EXPECT_EQ(KvCachePlanner(make_config(448, KvModeChoice::kAuto)).largest_output(100), 347);
  EXPECT_EQ(KvCachePlanner(make_config(448, KvModeChoice::kHot)).largest_output(kThreshold), 6400 - kThreshold - 1);
  EXPECT_EQ(KvCachePlanner(make_config(512, KvModeChoice::kAuto)).largest_output(0), 0);
}

TEST(KvCachePlannerDeathTest, OurBugsAreCaught) {
  KvCachePlanner planner(make_config(512, KvModeChoice::kAuto));
  expect_granted(planner, demand(1, 10, 5));
  EXPECT_DEATH((void)planner.acquire(demand(1, 10, 5)), "granted once");
  EXPECT_DEATH((void)plan(planner, 0, 1, true, 2), "only a granted sequence");
  EXPECT_DEATH((void)plan(planner, 1, 1, true), "in order");
  EXPECT_DEATH((void)plan(planner, 0, 11, true), "in the prompt");
  EXPECT_DEATH((void)plan(planner, 0, 1, false), "behind it");
  EXPECT_DEATH((void)plan(planner, 0, 17, true), "inside its reservation");
}

}  // namespace
}  // namespace hotset::actors
