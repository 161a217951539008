#include "core/metrics.h"

#include <gtest/gtest.h>

namespace hotset {
namespace {

TEST(Metrics, SameNameAndLabelsAreOneMetric) {
  MetricsRegistry registry;
  registry.counter("hotset_test_total", "Help.", {{"tier", "host"}}).add(2);
  registry.counter("hotset_test_total", "Help.", {{"tier", "host"}}).add();
  registry.counter("hotset_test_total", "Help.", {{"tier", "device"}}).add(5);
  EXPECT_EQ(registry.counter("hotset_test_total", "Help.", {{"tier", "host"}}).value(), 3);
  EXPECT_EQ(registry.counter("hotset_test_total", "Help.", {{"tier", "device"}}).value(), 5);
}

TEST(Metrics, TextHoldsEveryKind) {
  MetricsRegistry registry;
  registry.counter("hotset_a_total", "Counts a.").add(7);
  registry.gauge("hotset_b", "Shows b.", {{"tier", "host"}}).set(1.5);
  auto& histogram = registry.histogram("hotset_c_seconds", "Times c.", {0.1, 1});
  histogram.observe(0.05);
  histogram.observe(0.5);
  histogram.observe(50);
  const std::string text = registry.text();
  EXPECT_NE(text.find("# TYPE hotset_a_total counter\nhotset_a_total 7"), std::string::npos) << text;
  EXPECT_NE(text.find("hotset_b{tier=\"host\"} 1.5"), std::string::npos) << text;
  EXPECT_NE(text.find("hotset_c_seconds_bucket{le=\"1\"} 2"), std::string::npos) << text;
  EXPECT_NE(text.find("hotset_c_seconds_count 3"), std::string::npos) << text;
}

}  // namespace
}  // namespace hotset
