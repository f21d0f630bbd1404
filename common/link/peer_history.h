#pragma once
// The memory of a peer after its link is gone: its epochs, and how long it is left alone.

#include <algorithm>
#include <map>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn::link {

// Thread-safe. It remembers at most kMostPeers and forgets those first that may be called again.
class PeerHistory {
 public:
  static constexpr size_t kMostPeers = 4096;
  struct Options {
    Duration first_pause = std::chrono::seconds(1);  // After a link broke; doubles each time.
    Duration longest_pause = std::chrono::seconds(60);
    // Epochs of this process begin above it. It grows with each start of the process, so that a
    // holder can tell an old message: some clock's milliseconds, times 2^16.
    uint64_t epoch_base = 0;
  };
  PeerHistory(Options options, const Clock* clock) : options_(options), clock_(*clock) {}

  // UNAVAILABLE: the peer is left alone for a while.
  Status MayCall(const std::string& peer) const {
    MutexLock lock(mu_);
    const auto it = peers_.find(peer);
    const TimePoint now = clock_.Now();
    if (it == peers_.end() || now >= it->second.until) return OkStatus();
    return Errorf(StatusCode::kUnavailable, "the link to '{}' broke; it is left alone for {:.1f} s",
                  peer, Seconds(it->second.until - now));
  }
  // A link to it broke.
  void Broke(const std::string& peer) {
    MutexLock lock(mu_);
    Peer& entry = Entry(peer);
    entry.pause = entry.pause == Duration(0) ? options_.first_pause
                                             : std::min(2 * entry.pause, options_.longest_pause);
    entry.until = clock_.Now() + entry.pause;
  }
  // A move ended well.
  void Worked(const std::string& peer) {
    MutexLock lock(mu_);
    const auto it = peers_.find(peer);
    if (it == peers_.end()) return;
    it->second.pause = Duration(0);
    it->second.until = {};
  }
  // Puts failed there: later links send. For as long as the peer is remembered.
  void RefusedPuts(const std::string& peer) {
    MutexLock lock(mu_);
    Entry(peer).puts = false;
  }
  bool MayPut(const std::string& peer) const {
    MutexLock lock(mu_);
    const auto it = peers_.find(peer);
    return it == peers_.end() || it->second.puts;
  }

  // An epoch that this process has never used.
  uint64_t NextEpoch() {
    MutexLock lock(mu_);
    return options_.epoch_base + ++epochs_;
  }
  // The peer opens a link. FAILED_PRECONDITION: the epoch is not above those that it used before.
  Status Admit(const std::string& peer, uint64_t epoch) {
    MutexLock lock(mu_);
    Peer& entry = Entry(peer);
    if (epoch <= entry.epoch) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "epoch: got {}, expected more than {}, which '{}' has used", epoch, entry.epoch,
                    peer);
    }
    entry.epoch = epoch;
    return OkStatus();
  }
  size_t quarantined() const {
    MutexLock lock(mu_);
    const TimePoint now = clock_.Now();
    return static_cast<size_t>(std::count_if(
        peers_.begin(), peers_.end(), [now](const auto& peer) { return peer.second.until > now; }));
  }

 private:
  struct Peer {
    Duration pause{0};
    TimePoint until{};
    uint64_t epoch = 0;
    bool puts = true;
  };
  Peer& Entry(const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (peers_.size() >= kMostPeers && peers_.find(peer) == peers_.end()) {
      peers_.erase(std::min_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
        return a.second.until < b.second.until;
      }));
    }
    return peers_[peer];
  }

  const Options options_;
  const Clock& clock_;
  mutable Mutex mu_;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mu_);
  uint64_t epochs_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::link
