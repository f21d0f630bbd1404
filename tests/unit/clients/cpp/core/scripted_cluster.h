#pragma once
// Nodes whose events and views a test writes down. Thread-safe.

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/client/cluster_events.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

// One node: what its next streams bring, and what it says of members.
struct ScriptedNode {
  // The events of a stream, one list for each stream; when a list is at its end, the stream is
  // quiet, or breaks if `breaks` says so.
  std::deque<std::vector<CacheEvent>> streams = {};
  bool breaks = false;
  Status watch_status = OkStatus();  // The status of opening a stream.
  Result<ClusterMembers> view = Errorf(StatusCode::kUnavailable, "no view");
  int watches = 0, questions = 0;
};

class ScriptedCluster {
 public:
  Mutex mu;
  CondVar changed;
  std::map<std::string, ScriptedNode> nodes ABSL_GUARDED_BY(mu);  // By address.

  std::unique_ptr<ClusterTransport> Transport() { return std::make_unique<View>(this); }

 private:
  class Stream final : public EventStream {
   public:
    Stream(ScriptedCluster* cluster, std::string address, std::vector<CacheEvent> events)
        : cluster_(*cluster), address_(std::move(address)), events_(std::move(events)) {}
    Result<std::optional<CacheEvent>> Next(Duration wait) override {
      const TimePoint end = SteadyClock::Get().Now() + wait;
      MutexLock lock(cluster_.mu);
      if (at_ < events_.size()) return std::optional<CacheEvent>(events_[at_++]);
      cluster_.changed.WaitUntil(cluster_.mu, end,
                                 [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cluster_.mu) {
                                   return cluster_.nodes[address_].breaks;
                                 });
      if (cluster_.nodes[address_].breaks) return Errorf(StatusCode::kUnavailable, "broke");
      return std::optional<CacheEvent>();
    }
    void Cancel() override {}

   private:
    ScriptedCluster& cluster_;
    const std::string address_;
    const std::vector<CacheEvent> events_;
    size_t at_ = 0;
  };
  class View final : public ClusterTransport {
   public:
    explicit View(ScriptedCluster* cluster) : cluster_(*cluster) {}
    Result<ClusterMembers> Members(const std::string& address, Duration) override {
      MutexLock lock(cluster_.mu);
      ScriptedNode& node = cluster_.nodes[address];
      ++node.questions;
      cluster_.changed.NotifyAll();
      return node.view;
    }
    Result<std::unique_ptr<EventStream>> Watch(const std::string& address,
                                               const WatchOptions& options) override {
      CAIRN_CHECK(options.snapshot);
      MutexLock lock(cluster_.mu);
      ScriptedNode& node = cluster_.nodes[address];
      ++node.watches;
      cluster_.changed.NotifyAll();
      if (!node.watch_status.ok()) return node.watch_status;
      std::vector<CacheEvent> events;
      if (!node.streams.empty()) {
        events = std::move(node.streams.front());
        node.streams.pop_front();
      }
      return std::unique_ptr<EventStream>(
          std::make_unique<Stream>(&cluster_, address, std::move(events)));
    }

   private:
    ScriptedCluster& cluster_;
  };
};

inline CacheEvent Happened(CacheEvent::Kind kind, uint64_t epoch, uint64_t sequence) {
  CacheEvent event;
  event.kind = kind;
  event.node_epoch = epoch;
  event.sequence = sequence;
  return event;
}
inline CacheEvent Stored(uint64_t epoch, uint64_t sequence) {
  return Happened(CacheEvent::Kind::kStored, epoch, sequence);
}
inline CacheEvent SnapshotEnd(uint64_t epoch, uint64_t sequence) {
  return Happened(CacheEvent::Kind::kSnapshotEnd, epoch, sequence);
}

// Short, for comparisons: "a begins", "a ends", "a lost", "a 7" for the event with number 7.
inline std::string Short(const MemberEvent& event) {
  switch (event.kind) {
    case MemberEvent::Kind::kSnapshotBegins:
      return event.node_id + " begins";
    case MemberEvent::Kind::kSnapshotEnds:
      return event.node_id + " ends";
    case MemberEvent::Kind::kMemberLost:
      return event.node_id + " lost";
    case MemberEvent::Kind::kEvent:
      break;
  }
  return event.node_id + " " + std::to_string(event.event.sequence);
}

}  // namespace cairn::client
