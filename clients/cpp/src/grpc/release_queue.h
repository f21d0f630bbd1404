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

// Makes one call to the node at a time, on the thread that gives something back. Ids that come
// during a call wait and go together in the next one. No thread waits for the answer: Look finds
// it. The queue is bounded: ids beyond kCapacity are dropped and end at the node when they expire.
// Thread-safe.
class ReleaseQueue {
 public:
  static constexpr size_t kCapacity = 8192;

  // The stub outlives the queue.
  explicit ReleaseQueue(v1::Cache::Stub* stub) : stub_(stub) {}
  // Cancels the call under way.
  ~ReleaseQueue();

  void ReleaseLease(const std::string& session, uint64_t lease);
  void AbortReservations(const std::string& session, const std::vector<uint64_t>& reservations);
  // Sends the waiting ids if the last call was answered. One thread calls it from time to time.
  // Cheap if there is nothing to do.
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
