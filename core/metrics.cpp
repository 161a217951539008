#include "core/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>

namespace hotset {
namespace {

class PrometheusCounter final : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter& metric) : metric_(metric) {}
  void add(double amount) override { metric_.Increment(amount); }
  [[nodiscard]] double value() const override { return metric_.Value(); }

 private:
  prometheus::Counter& metric_;
};

class PrometheusGauge final : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge& metric) : metric_(metric) {}
  void set(double value) override { metric_.Set(value); }
  void add(double amount) override { metric_.Increment(amount); }
  [[nodiscard]] double value() const override { return metric_.Value(); }

 private:
  prometheus::Gauge& metric_;
};

class PrometheusHistogram final : public Histogram {
 public:
  explicit PrometheusHistogram(prometheus::Histogram& metric) : metric_(metric) {}
  void observe(double value) override { metric_.Observe(value); }

 private:
  prometheus::Histogram& metric_;
};

template <class Interface>
using Named = std::map<std::pair<std::string, MetricLabels>, std::unique_ptr<Interface>>;

}  // namespace

struct MetricsRegistry::State {
  std::mutex mutex;  // guards the maps; the metrics themselves are atomic
  prometheus::Registry registry;
  Named<Counter> counters;
  Named<Gauge> gauges;
  Named<Histogram> histograms;
};

MetricsRegistry::MetricsRegistry() : state_(std::make_unique<State>()) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter& MetricsRegistry::counter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  const std::scoped_lock lock(state_->mutex);
  auto& entry = state_->counters[{name, labels}];
  if (!entry) {
    auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry);
    entry = std::make_unique<PrometheusCounter>(family.Add(labels));
  }
  return *entry;
}

Gauge& MetricsRegistry::gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  const std::scoped_lock lock(state_->mutex);
  auto& entry = state_->gauges[{name, labels}];
  if (!entry) {
    auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry);
    entry = std::make_unique<PrometheusGauge>(family.Add(labels));
  }
  return *entry;
}

Histogram& MetricsRegistry::histogram(const std::string& name, const std::string& help,
                                      const std::vector<double>& bounds, const MetricLabels& labels) {
  const std::scoped_lock lock(state_->mutex);
  auto& entry = state_->histograms[{name, labels}];
  if (!entry) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry);
    entry = std::make_unique<PrometheusHistogram>(family.Add(labels, bounds));
  }
  return *entry;
}

std::string MetricsRegistry::text() const { return prometheus::TextSerializer().Serialize(state_->registry.Collect()); }

}  // namespace hotset
