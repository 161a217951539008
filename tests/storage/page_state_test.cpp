#include "storage/page_state.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <string>

namespace hotset::storage {
namespace {

using enum PageState;

constexpr std::array kAll = {kFilling, kDevice, kCopying, kDeviceAndHost, kHost, kLower, kFree};

TEST(PageState, ExactlyTheWrittenTransitionsAreAllowed) {
  const std::map<PageState, std::set<PageState>> next = {
      {kFilling, {kDevice, kHost, kFree}},
      {kDevice, {kCopying, kFree}},
      {kCopying, {kDeviceAndHost}},
      {kDeviceAndHost, {kHost, kFree}},
      {kHost, {kDeviceAndHost, kLower, kFree}},
      {kLower, {kHost, kFree}},
      {kFree, {}},
  };
  for (const PageState from : kAll)
    for (const PageState to : kAll)
      EXPECT_EQ(transition_allowed(from, to), next.at(from).contains(to)) << name_of(from) << " to " << name_of(to);
}

TEST(PageState, NamesAreDistinct) {
  std::set<std::string> names;
  for (const PageState state : kAll) names.insert(std::string(name_of(state)));
  EXPECT_EQ(names.size(), kAll.size());
  EXPECT_TRUE(names.contains("device+host"));
}

TEST(PageState, AdvanceMoves) {
  PageState state = kFilling;
  for (const PageState to : {kDevice, kCopying, kDeviceAndHost, kHost, kLower, kHost, kDeviceAndHost, kFree}) {
    advance(state, to);
    EXPECT_EQ(state, to);
  }
}

TEST(PageStateDeathTest, ACopyIsNotTakenAway) {
  PageState state = kCopying;
  EXPECT_DEATH(advance(state, kFree), "forbidden transition");
  state = kFree;
  EXPECT_DEATH(advance(state, kFree), "forbidden transition");
}

}  // namespace
}  // namespace hotset::storage
