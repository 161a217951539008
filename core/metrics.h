// Metrics with Prometheus text output. Counters, gauges and histograms live as long as the registry; updating one is
// lock-free and safe from any thread. Names and labels are fixed at creation. prometheus-cpp stands behind it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace hotset {

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void add(double amount = 1) = 0;  // amount >= 0
  [[nodiscard]] virtual double value() const = 0;
};
class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void set(double value) = 0;
  virtual void add(double amount) = 0;
  [[nodiscard]] virtual double value() const = 0;
};
class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void observe(double value) = 0;
};

using MetricLabels = std::map<std::string, std::string>;

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The same name and labels give the same metric. `help` of the first call stays.
  Counter& counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  // `bounds`: upper bounds of the buckets, ascending, without the last (infinite) one.
  Histogram& histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                       const MetricLabels& labels = {});

  // Text exposition format 0.0.4.
  [[nodiscard]] std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hotset
