#pragma once
// Sends spans to a collector: OTLP over HTTP. At most one call to it is under way. A collector that
// is slow, away or wrong costs spans, which are counted, and nothing else.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/http/client.h"
#include "common/tracing/otlp.h"

namespace cairn::tracing {

struct Collector {
  http::Origin origin;
  std::string target;
};
// "http://HOST[:PORT]", to which "/v1/traces" is added, or with a path of its own.
// INVALID_ARGUMENT naming `field`.
Result<Collector> ParseCollector(const std::string& url, const std::string& field);

// The lines of a file, "NAME: VALUE" each, such as a collector's API key. Empty ones, and those
// that begin with #, mean nothing. No path, no headers. FAILED_PRECONDITION: it cannot be read.
// INVALID_ARGUMENT, which names `field` and the line, and does not show what is in it.
Result<std::vector<http::Header>> ReadHeaders(const std::string& path, const std::string& field);

// Thread-safe.
class Exporter {
 public:
  struct Options {
    Collector collector;
    Resource resource;
    std::vector<http::Header> headers = {};  // Further ones of each call.
    size_t most_waiting = 2048;              // Spans. With the bounds of their texts, 2 MiB.
    size_t most_at_once = 512;
    Duration interval = std::chrono::seconds(1);    // Between calls that are not full.
    Duration patience = std::chrono::seconds(10);   // Without a byte of the answer.
    Duration last_words = std::chrono::seconds(1);  // For what waits when it ends.
  };
  Exporter(Options options, std::unique_ptr<http::Client> client);
  // Tries to send what waits, for a moment.
  ~Exporter();

  // Never blocks. Drops the span if too many wait. Long texts in it are cut.
  void Add(Span span);

  struct Stats {
    uint64_t sent = 0;
    uint64_t dropped = 0;  // There was no room for them.
    uint64_t failed = 0;   // The collector did not take them.
  };
  Stats GetStats() const;

 private:
  class Answer;

  // Sends a batch, or waits for the next turn. One turn at a time.
  void Turn();
  void Later();
  void Ended(size_t spans, const Status& status);

  const Options options_;
  std::atomic<uint64_t> sent_{0}, dropped_{0}, failed_{0};
  Mutex mu_;
  CondVar idle_;
  std::vector<Span> waiting_ ABSL_GUARDED_BY(mu_);
  bool sending_ ABSL_GUARDED_BY(mu_) = false;   // A call is under way, or begins.
  bool starting_ ABSL_GUARDED_BY(mu_) = false;  // It is being handed to the client.
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;     // Nothing more is handed to the client.
  bool failing_ ABSL_GUARDED_BY(mu_) = false;  // It was logged.
  // Last, so that its end, which waits for all callbacks, comes first.
  const std::unique_ptr<http::Client> client_;
};

}  // namespace cairn::tracing
