#include "common/metrics/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>

#include "common/concurrency/mutex.h"
#include "common/config/config.h"
#include "common/metrics/process_stats.h"

namespace cairn::metrics {
namespace {

std::map<std::string, std::string> ToMap(const Labels& labels) {
  return {labels.begin(), labels.end()};
}

class FamilySink final : public Sink {
 public:
  void Counter(const std::string& name, const std::string& help, const Labels& labels,
               double value) override {
    Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
  }
  void Gauge(const std::string& name, const std::string& help, const Labels& labels,
             double value) override {
    Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
  }
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const Labels& labels) {
    auto [it, inserted] = index_.try_emplace(name, families_.size());
    if (inserted) {
      families_.emplace_back();
      families_.back().name = name;
      families_.back().help = help;
      families_.back().type = type;
    }
    prometheus::ClientMetric& metric = families_[it->second].metric.emplace_back();
    for (const auto& [label, text] : labels) metric.label.push_back({label, text});
    return metric;
  }
  std::map<std::string, size_t> index_;
  std::vector<prometheus::MetricFamily> families_;
};

void CollectProcess(const Labels& build, Sink& sink) {
  const ProcessStats stats = ReadProcessStats();
  sink.Counter("process_cpu_seconds_total", "CPU time of this process, user and system.", {},
               stats.cpu_seconds);
  sink.Gauge("process_resident_memory_bytes", "Resident memory of this process.", {},
             static_cast<double>(stats.resident_bytes));
  sink.Gauge("process_open_fds", "Open file descriptors.", {}, static_cast<double>(stats.open_fds));
  sink.Gauge("process_start_time_seconds", "Start of this process, seconds since 1970.", {},
             stats.start_time_seconds);
  sink.Gauge("cairn_build_info", "1, with the build in the labels.", build, 1);
}

}  // namespace

void Counter::Add(double value) const { impl_->Increment(value); }
void Gauge::Set(double value) const { impl_->Set(value); }
void Gauge::Add(double value) const { impl_->Increment(value); }
void Histogram::Observe(double value) const { impl_->Observe(value); }

struct Registry::Impl {
  prometheus::Registry registry;
  mutable Mutex mu;
  std::vector<std::function<void(Sink&)>> collectors ABSL_GUARDED_BY(mu);
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

metrics::Counter Registry::AddCounter(const std::string& name, const std::string& help,
                                      const Labels& labels) {
  metrics::Counter counter;
  counter.impl_ = &prometheus::BuildCounter()
                       .Name(name)
                       .Help(help)
                       .Register(impl_->registry)
                       .Add(ToMap(labels));
  return counter;
}

metrics::Gauge Registry::AddGauge(const std::string& name, const std::string& help,
                                  const Labels& labels) {
  metrics::Gauge gauge;
  gauge.impl_ =
      &prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry).Add(ToMap(labels));
  return gauge;
}

metrics::Histogram Registry::AddHistogram(const std::string& name, const std::string& help,
                                          const std::vector<double>& buckets,
                                          const Labels& labels) {
  metrics::Histogram histogram;
  histogram.impl_ = &prometheus::BuildHistogram()
                         .Name(name)
                         .Help(help)
                         .Register(impl_->registry)
                         .Add(ToMap(labels), prometheus::Histogram::BucketBoundaries(buckets));
  return histogram;
}

void Registry::AddCollector(std::function<void(Sink&)> collect) {
  MutexLock lock(impl_->mu);
  impl_->collectors.push_back(std::move(collect));
}

void Registry::AddProcessMetrics(const Labels& build_labels) {
  Labels build = {{"version", std::string(config::Version())},
                  {"revision", std::string(config::Revision())}};
  build.insert(build.end(), build_labels.begin(), build_labels.end());
  AddCollector([build](Sink& sink) { CollectProcess(build, sink); });
}

std::string Registry::Scrape() const {
  std::vector<std::function<void(Sink&)>> collectors;
  {
    MutexLock lock(impl_->mu);
    collectors = impl_->collectors;
  }
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  FamilySink sink;
  for (const auto& collect : collectors) collect(sink);
  for (auto& family : sink.Take()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace cairn::metrics
