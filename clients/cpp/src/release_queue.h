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

// One call to the node at a time; what comes meanwhile waits and goes together in the next one. Bounded: beyond kCapacity ids are dropped,
// and end at the node when their time is up. Thread-safe. Made with std::make_shared: a call under way keeps it alive.
class ReleaseQueue : public std::enable_shared_from_this<ReleaseQueue> {
 public:
  static constexpr size_t kCapacity = 8192;

  explicit ReleaseQueue(std::shared_ptr<v1::Cache::Stub> stub) : stub_(std::move(stub)) {}

  void ReleaseLease(const std::string& session, uint64_t lease);
  void AbortReservations(const std::string& session, const std::vector<uint64_t>& reservations);
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Waiting {
    std::vector<uint64_t> leases;
    std::vector<uint64_t> reservations;
  };
  struct ReleaseCall;
  struct AbortCall;

  // Forgets what waits for another session: the node has forgotten it too.
  void EnterSession(const std::string& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendNext();
  void Sent();

  const std::shared_ptr<v1::Cache::Stub> stub_;
  std::atomic<uint64_t> dropped_{0};
  Mutex mu_;
  std::string session_ ABSL_GUARDED_BY(mu_);
  Waiting waiting_ ABSL_GUARDED_BY(mu_);
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::client
