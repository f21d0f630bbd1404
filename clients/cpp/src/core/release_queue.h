#pragma once
// Gives leases and reservations back without making anybody wait.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/concurrency/mutex.h"

namespace cairn::client {

// The ids that one call gives back: all of one kind.
struct ReleaseBatch {
  enum class Kind : uint8_t { kLeases, kReservations };
  Kind kind = Kind::kLeases;
  std::string session = {};
  std::vector<uint64_t> ids = {};
};

// Makes the calls of a ReleaseQueue, one at a time. Thread-safe.
class ReleaseSender {
 public:
  virtual ~ReleaseSender() = default;
  // Starts a call and returns. REQUIRES: Answered was true for the call before.
  virtual void Send(ReleaseBatch batch) = 0;
  // True, once, when the call under way has ended. Whether it failed does not matter: what was not
  // released ends by itself.
  virtual bool Answered() = 0;
};

// Has one call under way at a time, started by the thread that gives something back. Ids that come
// during a call wait and go together in the next one. Nobody waits for the answer: Look finds it.
// The queue is bounded: ids beyond kCapacity are dropped and end at the node when they expire.
// Thread-safe.
class ReleaseQueue {
 public:
  static constexpr size_t kCapacity = 8192;

  // The sender outlives the queue.
  explicit ReleaseQueue(ReleaseSender* sender) : sender_(sender) {}

  void ReleaseLease(const std::string& session, uint64_t lease);
  void AbortReservations(const std::string& session, std::span<const uint64_t> reservations);
  // Sends the waiting ids if the last call was answered. One thread at a time calls it, from time
  // to time. Cheap if there is nothing to do.
  void Look();
  uint64_t dropped() const;

 private:
  // Takes as many of the ids as there is room for in `to`.
  void Add(const std::string& session, std::vector<uint64_t>& to, std::span<const uint64_t> ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The ids to send now. nullopt: a call is under way, or nothing waits.
  std::optional<ReleaseBatch> NextBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ReleaseSender* const sender_;
  mutable Mutex mu_;
  bool under_way_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
  std::string session_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> leases_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> reservations_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client
