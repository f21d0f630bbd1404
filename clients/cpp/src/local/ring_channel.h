#pragma once
// Calls over a ring: many threads, each waiting for its own answer.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "clients/cpp/src/local/scratch.h"
#include "common/concurrency/mutex.h"
#include "protocol/shm/ring.h"
#include "protocol/shm/socket.h"

namespace cairn::client::local {

// One thread at a time waits on the ring, for all: what it reaps it hands to the others. With one
// calling thread that costs two uncontended locks a call.
//
// Every call ends by its deadline. A submission that nobody waits for any more keeps its place and
// its scratch until the node has answered it; then `Request::undo` says what to do with what it
// brought. Once the ring is broken (the node hung up, said Closing, or wrote nonsense) every call
// is UNAVAILABLE. Thread-safe.
class RingChannel {
 public:
  struct Request {
    shm::Op op = shm::Op::kMatch;
    uint8_t flags = 0;
    uint32_t argument = 0;
    std::span<const std::byte> input = {};
    uint32_t output_bytes = 0;
    std::span<const std::byte> body = {};  // At most 32 bytes.
    // Takes back the resources of an answer whose caller had left. Runs under the channel's lock:
    // must only take note.
    std::function<void(const shm::Completion&, std::span<const std::byte> output)> undo = {};
  };
  struct Answer {
    shm::Completion completion = {};  // Checked against the submission; code 0.
    std::vector<std::byte> output = {};
  };

  // `on_message` takes each message of the socket, on the thread of some call; DATA_LOSS breaks the
  // channel. It must not call the channel.
  using OnMessage = std::function<Status(shm::Received message)>;
  // `clock` must outlive it.
  RingChannel(shm::ClientRing ring, shm::Descriptor socket, Duration spin, const Clock* clock,
              OnMessage on_message);

  // The node's error if it answered with one. DEADLINE_EXCEEDED; UNAVAILABLE when broken;
  // RESOURCE_EXHAUSTED when the scratch can never hold input and output.
  Result<Answer> Run(const Request& request, TimePoint deadline);
  // Submits without waiting; the answer is dropped. False when there is no room now, or it is
  // broken.
  bool Post(const Request& request);

  // Tells the node which GPUs' memory this process imports; once, before the first call.
  Status SayDevices(std::span<const std::string> uuids);
  // Handles what the socket has. False once the channel is broken.
  bool Poll();
  // Ends all calls. `why` is told to them.
  void Break(const Status& why);
  // OK while it works.
  Status broken() const;
  uint32_t scratch_bytes() const { return scratch_bytes_; }

 private:
  enum class State : uint8_t { kFree, kWaiting, kDone, kLeft };
  struct Slot {
    State state = State::kFree;
    shm::Submission submission = {};
    Answer answer = {};
    Status status = {};
    std::function<void(const shm::Completion&, std::span<const std::byte>)> undo = {};
  };

  // A free slot with the request submitted from it, or nullptr. `ring`: the node must be woken.
  Slot* Submit(const Request& request, bool* ring) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReapAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(Slot& slot, const shm::Completion& completion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Free(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BreakLocked(const Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until something was reaped, `until`, or a time to look at the socket. Lets go of the lock
  // meanwhile.
  void WaitForNode(TimePoint until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False if nothing came. REQUIRES: the caller is the leader (leading_).
  bool WaitAsLeader(TimePoint until);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake();

  const uint32_t scratch_bytes_;
  const Duration spin_;
  const Clock* const clock_;
  const OnMessage on_message_;
  const shm::Descriptor socket_;

  mutable Mutex mu_;
  CondVar changed_;
  shm::ClientRing ring_ ABSL_GUARDED_BY(mu_);  // But for Wait, which the leader calls without it.
  Scratch scratch_ ABSL_GUARDED_BY(mu_);
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  bool leading_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t followers_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;  // Reaps, freed slots, ends of leading.
  Status broken_ ABSL_GUARDED_BY(mu_);

  Mutex socket_mu_;  // The lock of reading. Never taken with mu_ held.
};

}  // namespace cairn::client::local
