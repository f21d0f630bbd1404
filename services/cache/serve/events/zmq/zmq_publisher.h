#pragma once
// Publishes the node's events over ZeroMQ as vLLM's ZmqEventPublisher does, on one thread.
//
//   EventStream ─► XPUB    [topic, number, batch] to everybody who is connected
//   ROUTER ◄─► readers     [number] asks for a replay: [topic, number, batch] ..., [, -1, ]
//
// Numbers are of 8 bytes, the highest first. An event leaves within kRound. A reader that takes its
// messages too slowly loses some, which the numbers tell it, and asks for a replay.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "common/concurrency/mutex.h"
#include "services/cache/serve/events/event_stream.h"

namespace cairn::cache {

// Thread-safe.
class ZmqPublisher {
 public:
  static constexpr Duration kRound = std::chrono::milliseconds(20);

  struct Options {
    std::string endpoint;  // As ZeroMQ binds it: tcp://IP:PORT or ipc:///PATH.
    // A router listens at the endpoint. The stream begins again whenever it subscribes, since
    // such a router asks for no replays.
    bool connect = false;
    std::string replay_endpoint;  // The same. Empty: no replays.
    // Batches that wait for a reader that takes them slowly, at most. At least 1.
    int most_waiting = 1;
    EventStream::Options stream = {};
  };
  struct Stats {
    EventStream::Numbers stream = {};
    uint64_t readers = 0;          // Connections to the endpoint.
    uint64_t dropped_batches = 0;  // Batches that at least one reader did not get.
    uint64_t bad_requests = 0;     // Messages that ask for nothing.
  };

  // `engine` and `clock`, the engine's, must outlive it. A router that is not there is waited for.
  // UNAVAILABLE: an endpoint cannot be bound; the text names the setting. FAILED_PRECONDITION:
  // somebody else listens at a path.
  static Result<std::unique_ptr<ZmqPublisher>> Start(const Options& options, CacheEngine* engine,
                                                     const Clock* clock);
  ~ZmqPublisher();
  ZmqPublisher(const ZmqPublisher&) = delete;
  ZmqPublisher& operator=(const ZmqPublisher&) = delete;

  Stats stats() const;

 private:
  class Sockets;

  ZmqPublisher(const Options& options, CacheEngine* engine, const Clock* clock);
  void Run();
  void Round();

  // Used by the thread alone once it runs.
  std::unique_ptr<Sockets> sockets_;
  EventStream stream_;
  bool busy_ = false;  // The stream may have more.
  mutable Mutex mu_;
  Stats stats_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn::cache
