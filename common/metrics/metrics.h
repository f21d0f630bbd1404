#pragma once
// Metrics of a process: counters, gauges and histograms, over prometheus-cpp, whose headers stay in
// the .cc files.
//
// Engine cores know nothing of this: they have GetStats(), and the process adds a collector that
// reads it at each scrape. Names, units and meanings of everything that is exported:
// docs/metrics.md, which a test compares with a live scrape.
//
// Handles are cheap to copy and live as long as the registry. Resolve them once, at start: making
// one takes a lock and a map. Everything is thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace cairn::metrics {

// Values are enums, never names of users or keys.
using Labels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  Counter() = default;
  void Add(double value = 1) const;

 private:
  friend class Registry;
  prometheus::Counter* impl_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void Set(double value) const;
  void Add(double value) const;

 private:
  friend class Registry;
  prometheus::Gauge* impl_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void Observe(double value) const;

 private:
  friend class Registry;
  prometheus::Histogram* impl_ = nullptr;
};

// What a collector reports at one scrape. Values of one name are grouped; help is that of the
// first.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Counter(const std::string& name, const std::string& help, const Labels& labels,
                       double value) = 0;
  virtual void Gauge(const std::string& name, const std::string& help, const Labels& labels,
                     double value) = 0;
};

class Registry {
 public:
  Registry();
  ~Registry();

  // Calls with one name share the help; the same name and labels give the same metric. A
  // process-wide mistake in a name aborts.
  metrics::Counter AddCounter(const std::string& name, const std::string& help,
                              const Labels& labels = {});
  metrics::Gauge AddGauge(const std::string& name, const std::string& help,
                          const Labels& labels = {});
  // `buckets`: upper bounds, ascending, without +Inf.
  metrics::Histogram AddHistogram(const std::string& name, const std::string& help,
                                  const std::vector<double>& buckets, const Labels& labels = {});

  // Called at each scrape, on the scraper's thread. Lives as long as the registry: what it captures
  // must too.
  void AddCollector(std::function<void(Sink&)> collect);
  // process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds,
  // process_start_time_seconds and cairn_build_info. `build_labels`: beside version and revision.
  void AddProcessMetrics(const Labels& build_labels = {});

  // All metrics in Prometheus' text format 0.0.4.
  std::string Scrape() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::metrics
