#pragma once
// All communicators of this process, and the bound on them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/link/link.h"

namespace cairn::link {

// Thread-safe. Reader and holder share it.
class LinkTable {
 public:
  struct Options {
    size_t most = 16;           // Links at a time, those that end counted.
    Duration least_rest{};      // A link is closed for another one if it moved nothing for so long.
    size_t most_abandoned = 2;  // Communicators that do not end; then no new one is made.
  };
  // Totals since start, but for the first four.
  struct Stats {
    size_t links = 0, joining = 0, ending = 0;
    size_t abandoned = 0;  // They take memory of the device until the process ends.
    uint64_t opened = 0, closed = 0, broken = 0;
  };
  explicit LinkTable(Options options) : options_(options) {}

  // Room for a link that was just made. RESOURCE_EXHAUSTED: there is none; then the least used one
  // that moves nothing, and has not for `least_rest`, is closed, so that a later call finds room.
  // UNAVAILABLE: too many communicators are abandoned.
  Status Add(const std::shared_ptr<Link>& link) {
    std::shared_ptr<Link> closed;
    Status status;
    {
      MutexLock lock(mu_);
      if (stats_.abandoned >= options_.most_abandoned) {
        return Errorf(StatusCode::kUnavailable,
                      "{} communicators did not end when they were aborted; no more are made",
                      stats_.abandoned);
      }
      if (links_.size() < options_.most) {
        links_.push_back(link);
        ++stats_.opened;
        return OkStatus();
      }
      for (const std::shared_ptr<Link>& other : links_) {
        if (other->state() != Link::State::kIdle) continue;
        if (link->used() - other->used() < options_.least_rest) continue;
        if (closed == nullptr || other->used() < closed->used()) closed = other;
      }
      status =
          Errorf(StatusCode::kResourceExhausted, "links: got {} at a time, expected at most {}",
                 links_.size() + 1, options_.most);
    }
    if (closed != nullptr) closed->End(OkStatus());
    return status;
  }
  void Ending(const Status& why) {
    MutexLock lock(mu_);
    ++(why.ok() ? stats_.closed : stats_.broken);
  }
  void Remove(const Link* link, bool abandoned) {
    std::shared_ptr<Link> removed;
    MutexLock lock(mu_);
    const auto it = std::find_if(links_.begin(), links_.end(),
                                 [link](const auto& entry) { return entry.get() == link; });
    if (it == links_.end()) return;
    removed = std::move(*it);
    links_.erase(it);
    if (abandoned) ++stats_.abandoned;
    changed_.NotifyAll();
  }
  void EndAll() {
    std::vector<std::shared_ptr<Link>> links;
    {
      MutexLock lock(mu_);
      links = links_;
    }
    for (const std::shared_ptr<Link>& link : links) link->End(OkStatus());
  }
  // At the end of a process, after EndAll. False: links are left at `deadline`. That of the links'
  // own deadlines is grace + revoke + abort.
  bool WaitUntilEmpty(const Clock& clock, TimePoint deadline) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, clock, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return links_.empty();
    });
  }
  Stats stats() const {
    MutexLock lock(mu_);
    Stats stats = stats_;
    stats.links = links_.size();
    for (const std::shared_ptr<Link>& link : links_) {
      const Link::State state = link->state();
      if (state <= Link::State::kJoining) ++stats.joining;
      if (state >= Link::State::kEnding) ++stats.ending;
    }
    return stats;
  }

 private:
  const Options options_;
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  Stats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::link
