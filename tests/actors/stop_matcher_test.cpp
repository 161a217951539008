#include "actors/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace hotset::actors {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
};

Outcome feed(const std::vector<std::string>& stops, bool keep, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops, keep);
  Outcome out;
  for (const std::string& piece : pieces) {
    out.stopped = matcher.add(piece, out.text);
    if (out.stopped) return out;
  }
  matcher.finish(out.text);
  return out;
}

// The obvious way: the shortest prefix of the whole text that ends with a stop string, and the longest such string.
Outcome slow(const std::vector<std::string>& stops, bool keep, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (!stop.empty() && text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, keep ? end : end - longest), true};
  }
  return {text, false};
}

TEST(StopMatcher, SpansPiecesAndSendsNothingOfTheStop) {
  StopMatcher matcher({"Tuesday, Wed"}, false);
  std::string out;
  EXPECT_FALSE(matcher.add("Monday, Tues", out));
  EXPECT_EQ(out, "Monday, ");
  EXPECT_FALSE(matcher.add("day, ", out));
  EXPECT_EQ(out, "Monday, ");
  EXPECT_TRUE(matcher.add("Wednesday", out));
  EXPECT_EQ(out, "Monday, ");
}

TEST(StopMatcher, WithholdsOnlyARealPrefix) {
  StopMatcher matcher({"stop here"}, false);
  std::string out;
  EXPECT_FALSE(matcher.add("no reason to wait", out));
  EXPECT_EQ(out, "no reason to wait");
  EXPECT_FALSE(matcher.add(" st", out));
  EXPECT_EQ(out, "no reason to wait ");
  EXPECT_FALSE(matcher.add("art", out));
  EXPECT_EQ(out, "no reason to wait start");
}

TEST(StopMatcher, KeepsTheStopWhenAsked) {
  EXPECT_EQ(feed({"END"}, true, {"a E", "ND b"}).text, "a END");
  EXPECT_EQ(feed({"END"}, false, {"a E", "ND b"}).text, "a ");
}

TEST(StopMatcher, PrefixOfAnotherStopEndsFirst) {
  EXPECT_EQ(feed({"abcd", "abc"}, true, {"xabcd"}).text, "xabc");
  EXPECT_EQ(feed({"abc", "b"}, false, {"xabc"}).text, "xa");
  EXPECT_EQ(feed({"bc", "abc"}, false, {"xabc"}).text, "x");
}

TEST(StopMatcher, EndGivesBackWhatWasWithheld) {
  const Outcome out = feed({"stop"}, false, {"a s", "to"});
  EXPECT_FALSE(out.stopped);
  EXPECT_EQ(out.text, "a sto");
}

TEST(StopMatcher, EqualsTheSlowModelHoweverTheTextIsCut) {
  const unsigned seed = 7;
  std::mt19937 random(seed);
  const auto word = [&](int most) {
    std::string out;
    for (int length = 1 + static_cast<int>(random() % most); length > 0; --length)
      out += static_cast<char>('a' + random() % 2);
    return out;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (int count = static_cast<int>(random() % 4); count > 0; --count) stops.push_back(word(6));
    std::vector<std::string> pieces;
    std::string text;
    for (int count = 1 + static_cast<int>(random() % 8); count > 0; --count) {
      pieces.push_back(word(5));
      text += pieces.back();
    }
    const bool keep = random() % 2 == 0;
    const Outcome want = slow(stops, keep, text);
    const Outcome got = feed(stops, keep, pieces);
    ASSERT_EQ(got.text, want.text) << "seed " << seed << " round " << round;
    ASSERT_EQ(got.stopped, want.stopped);
    stopped += got.stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 500);
}

}  // namespace
}  // namespace hotset::actors
