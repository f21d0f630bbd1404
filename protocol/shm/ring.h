#pragma once
// The two queues of a session's ring, seen from each side.
//
// Single producer, single consumer in each direction. A side keeps its own counters in private
// memory and publishes them; of the other side's it reads only the counter and checks it, so a peer
// that writes nonsense breaks its own session and nothing else: every read is inside the mapping,
// and is copied before it is looked at.
//
// Sleeping: the node sets `node_asleep` before it waits in epoll; a client that finds it set sends
// a Doorbell over the socket. A client that waits sets `client_waiting` and sleeps on the futex
// `completion_tail`.
//
// Thread-compatible: one thread at a time on each side (CompletionTail's waiters excepted).

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "protocol/shm/protocol.h"

namespace cairn::shm {

// In shared memory. Counters run freely and wrap; an entry's index is counter mod entries.
struct RingHeader {
  alignas(kCacheLine) std::atomic<uint32_t> submission_tail;  // Client writes.
  alignas(kCacheLine) std::atomic<uint32_t> submission_head;  // Node writes.
  alignas(kCacheLine) std::atomic<uint32_t> completion_tail;  // Node writes; futex.
  alignas(kCacheLine) std::atomic<uint32_t> completion_head;  // Client writes.
  alignas(kCacheLine) std::atomic<uint32_t> node_asleep;
  alignas(kCacheLine) std::atomic<uint32_t> client_waiting;
};
static_assert(sizeof(RingHeader) == kRingHeaderBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// A mapping of a ring's memory, unmapped at the end. Movable.
class RingMemory {
 public:
  RingMemory() = default;
  ~RingMemory();
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&& other) noexcept;

  // Node: a new memfd of zeros, sealed against resizing. The descriptor is the caller's.
  static Result<RingMemory> Create(const RingShape& shape, int* fd);
  // Client: maps the node's. FAILED_PRECONDITION unless the descriptor has the shape's size and
  // cannot shrink.
  static Result<RingMemory> Map(int fd, const RingShape& shape);
  // Over memory of the caller's, page-aligned, shape.bytes() long: for tests and fuzzing.
  static RingMemory Borrow(std::byte* base, const RingShape& shape);

  const RingShape& shape() const { return shape_; }
  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(base_); }
  std::span<std::byte> scratch() const {
    return {base_ + shape_.scratch_at(), shape_.scratch_bytes};
  }
  std::byte* submission(uint32_t counter) const {
    return base_ + shape_.submissions_at() +
           uint64_t{counter & (shape_.entries - 1)} * sizeof(Submission);
  }
  std::byte* completion(uint32_t counter) const {
    return base_ + shape_.completions_at() +
           uint64_t{counter & (shape_.entries - 1)} * sizeof(Completion);
  }
  bool mapped() const { return base_ != nullptr; }

 private:
  std::byte* base_ = nullptr;
  RingShape shape_;
  bool owned_ = false;
};

// The node's end.
class NodeRing {
 public:
  explicit NodeRing(RingMemory memory) : memory_(std::move(memory)) {}

  enum class Take : uint8_t {
    kNone,  // Nothing new, or no room for its completion.
    kOne,
    kBroken,  // A counter that no honest client can have.
  };
  // Copies the next submission out. At most `entries` may be taken and not completed.
  Take TakeOne(Submission* out);
  // True when TakeOne would return kOne or kBroken. Cheap: for polling.
  bool HasWork() const;
  // REQUIRES: a submission was taken for it. Publish makes all of them visible and wakes the client
  // if it waits.
  void Complete(const Completion& completion);
  void Publish();
  // Taken, not completed.
  uint32_t in_work() const { return taken_ - completed_; }

  // Before sleeping: from now on clients ring the doorbell. True when there is work already: do not
  // sleep.
  bool GoToSleep();
  void WakeUp() { memory_.header().node_asleep.store(0, std::memory_order_relaxed); }

  std::span<std::byte> scratch() const { return memory_.scratch(); }
  const RingShape& shape() const { return memory_.shape(); }

 private:
  bool RoomForCompletion() const;

  RingMemory memory_;
  uint32_t taken_ = 0;
  uint32_t completed_ = 0;
  uint32_t published_ = 0;
};

// The client's end.
class ClientRing {
 public:
  explicit ClientRing(RingMemory memory) : memory_(std::move(memory)) {}

  // False when the queue is full: reap first. At most `entries` may be under way.
  bool Submit(const Submission& submission);
  // True when the node sleeps and this call is the one that must send the Doorbell. Call after
  // Submit.
  bool MustRing();

  enum class Reap : uint8_t { kNone, kOne, kBroken };
  Reap ReapOne(Completion* out);
  // Waits until there is something to reap: first `spin` of looking, then the futex. False at the
  // deadline.
  bool Wait(Duration spin, TimePoint deadline);

  uint32_t under_way() const { return submitted_ - reaped_; }
  std::span<std::byte> scratch() const { return memory_.scratch(); }
  const RingShape& shape() const { return memory_.shape(); }

 private:
  RingMemory memory_;
  uint32_t submitted_ = 0;
  uint32_t reaped_ = 0;
};

// How long a waiting side looks before it sleeps: longer than waking a sleeper takes on a virtual
// machine, and than the other side copies 1 MiB between two messages. While it looks it lets others
// run on its CPU, so that it costs only time that nobody wants. `asked` < 0: 150 us where there is
// more than one CPU, else none.
Duration SpinTime(Duration asked);

// One turn of a busy loop.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace cairn::shm
