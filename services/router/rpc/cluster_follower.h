#pragma once
// Feeds the events of all cache nodes to the index, on a thread of its own.

#include <memory>
#include <thread>

#include "cairn/client/cluster_events.h"
#include "services/router/index/prefix_index.h"

namespace cairn::router {

class ClusterFollower {
 public:
  // `index` must outlive it.
  ClusterFollower(std::unique_ptr<client::ClusterEvents> events, PrefixIndex* index)
      : events_(std::move(events)), thread_([this, index] { Run(index); }) {}
  ~ClusterFollower() {
    events_->Cancel();
    thread_.join();
  }
  ClusterFollower(const ClusterFollower&) = delete;
  ClusterFollower& operator=(const ClusterFollower&) = delete;

 private:
  void Run(PrefixIndex* index) {
    for (;;) {
      const auto event = events_->Next(std::chrono::seconds(1));
      if (!event.ok()) return;  // Cancelled.
      if (*event) index->Apply(**event);
    }
  }

  const std::unique_ptr<client::ClusterEvents> events_;
  std::thread thread_;
};

}  // namespace cairn::router
