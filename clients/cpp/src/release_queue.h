#pragma once
// Gives leases and reservations back without making anybody wait.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cairn/v1/cache.grpc.pb.h"
#include "services/common/concurrency/mutex.h"

namespace cairn::client {

// One call to the node at a time; what comes meanwhile waits and goes together in the next one.
// Bounded: beyond kCapacity ids are dropped, and end at the node when their time is up.
// Thread-safe.
class ReleaseQueue {
 public:
  static constexpr size_t kCapacity = 8192;

  // The stub outlives the queue.
  explicit ReleaseQueue(v1::Cache::Stub* stub) : stub_(stub) {}
  // Cancels the call under way and waits for its end, so that none of gRPC's threads is left with a
  // reference to the channel: one that drops the last of them would have to wait for itself.
  ~ReleaseQueue();

  void ReleaseLease(const std::string& session, uint64_t lease);
  void AbortReservations(const std::string& session, const std::vector<uint64_t>& reservations);
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::ReleaseRequest release;
    v1::ReleaseResponse released;
    v1::AbortRequest abort;
    v1::AbortResponse aborted;
  };

  // Takes as many of the ids as there is room for in `to`.
  void Add(const std::string& session, std::vector<uint64_t>& to, const std::vector<uint64_t>& ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next call to start, outside the lock (its answer may come inside the call); nullptr when
  // there is nothing to send.
  Call* NextCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(Call* call);
  void Sent();

  v1::Cache::Stub* const stub_;
  std::atomic<uint64_t> dropped_{0};
  Mutex mu_;
  CondVar idle_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string session_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> leases_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> reservations_ ABSL_GUARDED_BY(mu_);
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mu_);  // The last one; under way while sending_.
};

}  // namespace cairn::client
