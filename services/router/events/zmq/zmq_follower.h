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

  // The numbers of engines that are no longer followed.
  struct Past {
    EngineFeed::Numbers feed = {};
    EngineView::Numbers view = {};  // No blocks.
  };

  // `index` must outlive it. UNAVAILABLE: the system gives no sockets, or an endpoint cannot be
  // used. An engine that is not there is waited for.
  static Result<std::unique_ptr<ZmqFollower>> Start(const Options& options, PrefixIndex* index);
  ~ZmqFollower();
  ZmqFollower(const ZmqFollower&) = delete;
  ZmqFollower& operator=(const ZmqFollower&) = delete;

  // Follows these engines from now on. One that leaves holds nothing any more. An endpoint that
  // cannot be used is logged.
  void SetSources(std::vector<EventSource> sources);
  bool Follows(const std::string& worker) const;

  std::vector<Engine> engines() const;
  Past past() const;

 private:
  class Sockets;
  class Source;

  ZmqFollower(const Options& options, PrefixIndex* index);
  Status Open();
  // Throws zmq::error_t.
  void Add(const EventSource& source);
  // Lets those go that are not wanted, and adds those that are.
  void Follow(const std::vector<EventSource>& wanted);
  void Run();
  void Round();
  void Publish();

  const Options options_;  // Its sources: those of the beginning.
  PrefixIndex* const index_;
  std::unique_ptr<Sockets> sockets_;
  // Used by the thread alone.
  std::vector<std::unique_ptr<Source>> sources_;
  size_t added_ = 0;  // Names the sockets within the process.
  Past left_;
  mutable Mutex mu_;
  std::vector<EventSource> wanted_ ABSL_GUARDED_BY(mu_);
  bool wants_others_ ABSL_GUARDED_BY(mu_) = false;  // The thread has not seen them yet.
  std::vector<Engine> engines_ ABSL_GUARDED_BY(mu_);
  Past past_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn::router
