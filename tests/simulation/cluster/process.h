#pragma once
// A process of a node: the real cores of the cluster, and the real engine or a light one.

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "common/membership/dns_discovery.h"
#include "services/cache/cluster/members/cluster.h"
#include "tests/simulation/cluster/agenda.h"
#include "tests/simulation/cluster/light_engine.h"
#include "tests/simulation/cluster/simulated_links.h"
#include "tests/simulation/cluster/whole_engine.h"

namespace cairn::testing {

class ClusterWorld;

// Everything of a process happens in Enter. While it is paused, that waits.
class Process {
 public:
  struct Options {
    std::string id;
    std::string address;
    size_t machine = 0;
    uint64_t life = 0;
    uint64_t epoch = 0, incarnation = 0;
    uint32_t newest_version = cache::kNewestPeerVersion;
    Duration clock_offset{0};
    double clock_rate = 1;
    Duration tick = std::chrono::milliseconds(20);
    bool dns = true;     // Otherwise the simulation hands out the views.
    bool whole = false;  // The engine of a node. Otherwise the light one.
    LightEngine::Options engine;
    WholeEngine::Options whole_engine;
    cache::MemberList::Options members;
    cache::Directory::Options directory;
    cache::PeerSource::Options source;
  };
  Process(ClusterWorld* world, Options options, const SimulatedDisk& disk);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Start();
  // Runs this in the process: now, or when it goes on.
  void Enter(std::function<void()> task);
  // At a time of its own clock.
  void Later(TimePoint local, std::function<void()> task);
  void Pause() { paused_ = true; }
  void Resume();
  bool paused() const { return paused_; }
  TimePoint last_resumed() const { return resumed_; }

  // It serves clients: it knows about bumps, or nobody answers.
  bool ready() const;
  cache::Cluster& cluster() { return *cluster_; }
  SimulatedEngine& engine() { return *engine_; }
  SimulatedLinks& links() { return links_; }
  ProcessClock& clock() { return clock_; }
  // Timers run at the new rate, too, also one that was armed before.
  void SetClockRate(double rate);
  const Options& options() const { return options_; }
  std::map<uint64_t, SimulatedLinks::Serving>& serving() { return serving_; }
  uint64_t NextServing() { return ++servings_; }
  bool lies = false;  // It damages what it sends.

 private:
  class TaskQueue;
  class NameServer;
  class CheckedSource;

  std::unique_ptr<SimulatedEngine> MakeEngine(const SimulatedDisk& disk);
  void Tick();
  void ArmTimers();
  // Everything that waits for a time comes to its end now.
  void RunAllTimers();

  ClusterWorld& world_;
  const Options options_;
  ProcessClock clock_;
  const TimePoint started_;
  Timers timers_{&clock_};
  std::unique_ptr<TaskQueue> executor_, mover_;
  std::unique_ptr<NameServer> names_;
  SimulatedLinks links_;
  std::unique_ptr<cache::Cluster> cluster_;
  std::unique_ptr<CheckedSource> source_;
  std::unique_ptr<SimulatedEngine> engine_;
  std::unique_ptr<membership::DnsDiscovery> discovery_;
  std::map<uint64_t, SimulatedLinks::Serving> serving_;
  bool paused_ = false, dies_ = false;
  TimePoint resumed_{};  // A time of the world.
  std::deque<std::function<void()>> inbox_;
  TimePoint armed_ = TimePoint::max();
  uint64_t ticks_ = 0, servings_ = 0;
};

}  // namespace cairn::testing
