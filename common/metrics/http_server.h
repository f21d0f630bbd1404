#pragma once
// A small HTTP/1 server for GET requests: one thread, and as many connections as it has places for.
//
// Slow clients must not keep the probes out. A connection that says nothing takes a place, not a
// thread. It loses the place after `request_timeout`, or as soon as a newcomer needs one: then the
// connection goes that has been reading its request for longest.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::metrics {

struct HttpAnswer {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

inline HttpAnswer PlainAnswer(int code, std::string body) {
  return {.code = code, .body = std::move(body)};
}

struct HttpRoute {
  std::string path;
  std::function<HttpAnswer()> answer;
  // The answer takes time: a thread of its own makes it. At most HttpServer::kSlowAnswers of them
  // are made or sent at a time.
  bool slow = false;
};

// Thread-safe.
class HttpServer {
 public:
  static constexpr size_t kSlowAnswers = 8;
  struct Options {
    std::string listen;            // host:port, where port 0 picks a free one.
    size_t max_connections = 256;  // File descriptors.
    Duration request_timeout = std::chrono::seconds(2);
    Duration answer_timeout = std::chrono::seconds(10);
  };

  // UNAVAILABLE: the address cannot be bound.
  static Result<std::unique_ptr<HttpServer>> Start(Options options, std::vector<HttpRoute> routes);
  ~HttpServer();  // Waits for the answer that is being made.

  // With the port that was picked.
  const std::string& address() const;

 private:
  HttpServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::metrics
