#pragma once
// The traces of a process: a tracer whose spans go to a collector.

#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "common/tracing/exporter.h"
#include "common/tracing/tracer.h"

namespace cairn::tracing {

struct Settings {
  std::string endpoint;  // As of ParseCollector.
  double sample = 1;     // As of Tracer.
  std::string ca;        // PEM file of the authorities for https. Empty: those of the system.
  std::string headers;   // File as of ReadHeaders. Empty: none.
};

// Thread-safe. Its end sends what waits, for a moment; by then nobody may use the tracer.
class Tracing {
 public:
  // Starts a thread. INVALID_ARGUMENT or FAILED_PRECONDITION naming the setting. The collector may
  // come later.
  static Result<std::unique_ptr<Tracing>> Start(const Settings& settings, Resource resource);

  Tracer* tracer() { return &tracer_; }
  Exporter::Stats GetStats() const { return exporter_.GetStats(); }

 private:
  Tracing(double sample, Exporter::Options options, std::unique_ptr<http::Client> client);

  Exporter exporter_;
  Tracer tracer_;
};

}  // namespace cairn::tracing
