#pragma once
// Follows the KV events of engines over ZeroMQ, on one thread for all of them.
//
//   engine's PUB ────► SUB ──┐
//   engine's ROUTER ◄► DEALER┼─► EngineFeed ─► EngineView ─► PrefixIndex::Apply
//   state of the connection ─┘
//
// While a replay comes, the engine's live batches wait in the SUB socket. When that is full,
// ZeroMQ drops batches, which the feed notices by their numbers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/router/events/engine_feed.h"
#include "services/router/events/engine_view.h"
#include "services/router/events/event_source.h"
#include "services/router/index/prefix_index.h"

namespace cairn::router {

// Thread-safe.
class ZmqFollower {
 public:
  struct Options {
    std::vector<EventSource> sources = {};
    EngineNamespace space = {};
    uint32_t max_blocks = 262'144;  // Limit for one engine.
    EngineFeed::Options feed = {};  // But for `replays`.
  };
  // The state of one engine.
  struct Engine {
    std::string worker = {};
    bool connected = false;
    std::optional<Duration> silent = {};  // Since its last batch. nullopt: none has come.
    EngineFeed::Numbers feed = {};
    EngineView::Numbers view = {};
  };

  // `index` must outlive it. UNAVAILABLE: the system gives no sockets, or an endpoint cannot be
  // used. An engine that is not there is waited for.
  static Result<std::unique_ptr<ZmqFollower>> Start(const Options& options, PrefixIndex* index);
  ~ZmqFollower();
  ZmqFollower(const ZmqFollower&) = delete;
  ZmqFollower& operator=(const ZmqFollower&) = delete;

  std::vector<Engine> engines() const;

 private:
  class Sockets;
  class Source;

  ZmqFollower();
  Status Open(const Options& options, PrefixIndex* index);
  void Run();
  void Round();
  void Publish();

  std::unique_ptr<Sockets> sockets_;
  std::vector<std::unique_ptr<Source>> sources_;  // Used by the thread alone.
  mutable Mutex mu_;
  std::vector<Engine> engines_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn::router
