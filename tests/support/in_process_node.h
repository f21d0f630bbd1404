#pragma once
// A cache node and its clients in one process and, if wanted, in one thread: the engine of the node
// and the core of the client, with no gRPC, no sockets and no threads between them. Time is a fake
// clock. A call that waits lets time pass, and meanwhile does the node's work.
//
//   FakeClock clock;
//   ManualExecutor executor;
//   auto host = *HostTier::Create({.capacity_bytes = 4 << 20, .prefault = false,
//                                  .check_memory = false});
//   cache::testing::FakeTier disk;
//   cache::Tiers tiers(host.get());
//   tiers.Add(&disk);
//   auto engine = *cache::CacheEngine::Create({}, {.tiers = tiers, .clock = &clock,
//                                                  .executor = &executor,
//                                                  .node_id = "node", .node_epoch = 1});
//
//   InProcessNode node(&clock, [&] { return executor.RunOne() || disk.RunOneHeld(); });
//   node.Start(engine.get());
//   std::unique_ptr<client::CacheClient> client = node.NewClient();
//   client->OpenNamespace(spec);  // Every call of CacheClient works, except that nothing is lent.
//   node.Advance(seconds(2));     // Time passes, and the node works.
//   node.SetFaults({.latency = milliseconds(80)});  // A match with its 50 ms now comes too late.
//   node.Die();                   // Then engine.reset(), a new engine, and node.Start(it).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/client/connect.h"
#include "cairn/common/clock.h"
#include "clients/cpp/src/core/node_client.h"
#include "clients/cpp/src/core/transport.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::testing {

// The faults between client and node.
struct InProcessFaults {
  // From the call to its answer, and in a fetch to the first slice. The node has done its work even
  // if the caller no longer waits for the answer.
  Duration latency{0};
  Duration slice_latency{0};  // From each slice of a fetch to the next.
  // The node dies (Die) in the middle of the next fetch that delivers more slices than this.
  std::optional<uint64_t> die_after_slices = {};
  bool refuse_sessions = false;  // RESOURCE_EXHAUSTED.
  bool draining = false;         // The node says that it is shutting down.
};

struct InProcessClientOptions {
  std::string name = "client";
  client::BreakerOptions breaker = {};
  Duration max_reconnect_backoff = std::chrono::seconds(1);
  std::vector<client::KnownNamespace> namespaces = {};  // To open in each session.
};

// Thread-safe, except that Die must not run at the same time as a call of another thread. It must
// outlive its clients.
class InProcessNode {
 public:
  // `work` does one thing that waits in the node, such as a task of its executor or an operation of
  // a fake tier. It returns false if nothing waits. Empty: the node has an InlineExecutor and
  // nothing ever waits.
  explicit InProcessNode(FakeClock* clock, std::function<bool()> work = {})
      : clock_(clock), work_(std::move(work)) {}

  // The node is there. The engine must live until Die, or must outlive the node and its clients.
  void Start(cache::CacheEngine* engine);
  // The node is gone: sessions, watches and fetches end, and calls are UNAVAILABLE until Start. The
  // engine may be destroyed when no call is running.
  void Die();
  void SetFaults(const InProcessFaults& faults);

  // A client with the core of every client. Its breaker and its reconnecting use the fake clock. It
  // opens its session in the first call that needs one.
  std::unique_ptr<client::NodeClient> NewClient(const InProcessClientOptions& options = {});

  // The node's answer about itself when a session opens.
  void SetPlace(client::NodePlace place);

  // Moves the clock, in steps of at most 100 ms. After each the engine ticks and does all its work.
  void Advance(Duration by);
  // Does everything that waits in the node. Time does not pass.
  void RunAll();

 private:
  friend class InProcessTransport;
  friend class InProcessLink;
  friend class InProcessWatch;
  struct Watch {
    std::unique_ptr<cache::EventQueue> queue;  // nullptr: the node is gone.
    uint64_t node_epoch = 0;
  };
  struct Peer {
    cache::CacheEngine* engine = nullptr;
    cache::SessionId session = 0;
  };

  // UNAVAILABLE: the node is not there.
  Result<cache::CacheEngine*> Engine() const;
  // NOT_FOUND: the session has ended.
  Result<Peer> Find(const std::string& session) const;
  Result<client::SessionInfo> OpenSession(const std::string& client, TimePoint deadline);
  void CloseSession(const std::string& session);
  // The answer of a call is on its way. DEADLINE_EXCEEDED: it comes too late.
  Status Arrive(TimePoint deadline);
  // One thing that may end a wait: some work, or else a little time. DEADLINE_EXCEEDED at `until`.
  Status Wait(TimePoint until);
  std::shared_ptr<Watch> AddWatch(std::unique_ptr<cache::EventQueue> queue);
  Result<std::vector<CacheEvent>> NextEvent(Watch& watch);
  InProcessFaults faults() const;

  FakeClock* const clock_;
  const std::function<bool()> work_;
  mutable Mutex mu_;
  cache::CacheEngine* engine_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;  // The epoch of engine_.
  uint64_t next_session_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::string, cache::SessionId> sessions_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Watch>> watches_ ABSL_GUARDED_BY(mu_);
  InProcessFaults faults_ ABSL_GUARDED_BY(mu_);
  client::NodePlace place_ ABSL_GUARDED_BY(mu_) = {.node_id = "in-process"};
};

}  // namespace cairn::testing
