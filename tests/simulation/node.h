#pragma once
// A cache node with fake tiers in a simulation, and a client of it. Calls take time on the way, and
// a test decides what goes wrong.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cairn/client/cache_client.h"
#include "common/concurrency/timers.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/testing/fake_tier.h"
#include "tests/simulation/simulation.h"

namespace cairn::testing {

// The way to a node.
struct Link {
  // The latency of each call, before the node sees it.
  Duration latency = std::chrono::microseconds(200);
  double bytes_per_second = 1e9;
  // The node dies in the middle of a fetch, after this many slices.
  std::optional<uint64_t> dies_after_slices = {};
  // The node sends nothing more in a fetch after this many slices, and the connection stays.
  std::optional<uint64_t> silent_after_slices = {};
  // That the node takes for each push.
  Duration push_time{0};
};

struct NodeOptions {
  uint64_t host_bytes = 32 << 20;
  bool disk = true;
};

// The cores of a node. Its disk outlives its death, and its memory does not. Not
// thread-safe. All functions are for tasks of the simulation.
class Node {
 public:
  explicit Node(Simulation& simulation, const NodeOptions& options = {})
      : simulation_(simulation), options_(options) {}
  ~Node() { Stop(); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Starts it, or starts it again.
  void Start();
  // As kill -9: calls under way and later ones fail.
  void Die();
  // Returns when everything that was pushed is on disk.
  void Flush();

  // A call is inside the node while one of these exists.
  class Visit {
   public:
    explicit Visit(Node& node) : node_(node) { ++node_.visits_; }
    ~Visit() { --node_.visits_; }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Node& node_;
  };
  bool alive() const { return alive_; }
  // Starts so far. Sessions of an earlier one are gone.
  uint64_t epoch() const { return epoch_; }
  cache::CacheEngine& engine() { return *engine_; }
  Link& link() { return link_; }
  Simulation& simulation() { return simulation_; }

 private:
  // Dies, and waits until nothing runs in it any more.
  void Stop();
  // Waits until `ready`, at most for `time`.
  void Wait(Duration time, const std::function<bool()>& ready);

  Simulation& simulation_;
  const NodeOptions options_;
  Link link_;
  bool alive_ = false;
  uint64_t epoch_ = 0;
  int visits_ = 0;
  cache::testing::FakeTier disk_{{.capacity_bytes = 256 << 20}};
  std::unique_ptr<cache::HostTier> host_;
  std::unique_ptr<SimulatedPool> pool_;
  std::unique_ptr<Timers> timers_;
  std::unique_ptr<cache::CacheEngine> engine_;
};

// The node must outlive it.
std::unique_ptr<client::CacheClient> NewClient(Node& node);

}  // namespace cairn::testing
