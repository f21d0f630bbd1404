#pragma once
// Gives leases and reservations back without making anybody wait.

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cairn/v1/cache.grpc.pb.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

// One call to the node at a time, sent by whoever gives something back; what comes meanwhile waits
// and goes together in the next one. No thread of its own, nor any of gRPC's, waits for the answer:
// Look finds it. Bounded: beyond kCapacity ids are dropped, and end at the node when their time is
// up. Thread-safe.
class ReleaseQueue {
 public:
  static constexpr size_t kCapacity = 8192;

  // The stub outlives the queue.
  explicit ReleaseQueue(v1::Cache::Stub* stub) : stub_(stub) {}
  // Cancels the call under way.
  ~ReleaseQueue();

  void ReleaseLease(const std::string& session, uint64_t lease);
  void AbortReservations(const std::string& session, const std::vector<uint64_t>& reservations);
  // Sends what has come meanwhile, if the last call was answered. To be called now and then, by one
  // thread; cheap where there is nothing to do.
  void Look();
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ReleaseResponse>> release;
    v1::ReleaseResponse released;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AbortResponse>> abort;
    v1::AbortResponse aborted;
  };

  // Takes as many of the ids as there is room for in `to`.
  void Add(const std::string& session, std::vector<uint64_t>& to, const std::vector<uint64_t>& ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next call to start, outside the lock; nullptr where one is under way or there is nothing.
  Call* NextCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(Call* call);

  v1::Cache::Stub* const stub_;
  std::atomic<uint64_t> dropped_{0};
  Mutex mu_;
  grpc::CompletionQueue answers_;
  std::string session_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> leases_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> reservations_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mu_);  // Under way.
};

}  // namespace cairn::client
