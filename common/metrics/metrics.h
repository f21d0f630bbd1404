#pragma once
// The metrics of a process: counters, gauges and histograms. They use prometheus-cpp, whose headers
// are included only in .cc files.
//
// The cores of the engines do not know this file. They have GetStats(), and the process adds a
// collector that reads it at each scrape. docs/operate/metrics.md has the names, units and meanings
// of all metrics, and a test compares it with a live scrape.
//
// Handles are cheap to copy and valid as long as the registry. Make them once, at start, because
// making one takes a lock and a search in a map. Everything here is thread-safe.

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

// The values of a label come from an enum, never from names of users or from keys.
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

// A count or a size, as a sample has it.
inline double Number(uint64_t value) { return static_cast<double>(value); }

// Collects what a collector reports at one scrape. Values with the same name are grouped, with the
// help text of the first.
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

  // Calls with the same name share the help text. The same name and labels give the same metric. A
  // name that is not valid aborts the process.
  metrics::Counter AddCounter(const std::string& name, const std::string& help,
                              const Labels& labels = {});
  metrics::Gauge AddGauge(const std::string& name, const std::string& help,
                          const Labels& labels = {});
  // `buckets`: upper bounds, ascending, without +Inf.
  metrics::Histogram AddHistogram(const std::string& name, const std::string& help,
                                  const std::vector<double>& buckets, const Labels& labels = {});

  // The registry calls it at each scrape, on the scraper's thread. It lives as long as the
  // registry, so everything that it captures must live as long too.
  void AddCollector(std::function<void(Sink&)> collect);
  // process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds,
  // process_start_time_seconds and cairn_build_info. `build_labels`: labels next to version and
  // revision.
  void AddProcessMetrics(const Labels& build_labels = {});

  // All metrics in Prometheus' text format 0.0.4.
  std::string Scrape() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::metrics
