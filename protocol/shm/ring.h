#pragma once
// The two queues of a session's ring, seen from each side.
//
// Each direction has a single producer and a single consumer. A side keeps its own counters in
// private memory and publishes them. It reads only the counter of the other side, and checks it.
// Every read is inside the mapping, and the reader copies the bytes before it looks at them. A peer
// that writes nonsense therefore breaks only its own session.
//
// Sleeping: the node sets `node_asleep` before it waits in epoll. A client that finds it set sends
// a Doorbell over the socket. A client that waits sets `client_waiting` and sleeps on the futex
// `completion_tail`.
//
// Thread-compatible: one thread at a time on each side, except for threads that wait on
// CompletionTail.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "protocol/shm/protocol.h"

namespace cairn::shm {

// Lies in shared memory. Counters run freely and wrap around. The index of an entry is its counter
// mod entries.
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

// A mapping of a ring's memory. The destructor unmaps it. Movable.
class RingMemory {
 public:
  RingMemory() = default;
  ~RingMemory();
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&& other) noexcept;

  // Node: a new memfd of zeros, sealed against resizing. The caller owns the descriptor.
  static Result<RingMemory> Create(const RingShape& shape, int* fd);
  // Client: maps the node's memory. FAILED_PRECONDITION unless the descriptor has the size of the
  // shape and cannot shrink.
  static Result<RingMemory> Map(int fd, const RingShape& shape);
  // Uses the caller's memory, which must be page-aligned and shape.bytes() long. For tests and
  // fuzzing.
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
  // Copies the next submission out. At most `entries` submissions may be taken and not yet
  // completed.
  Take TakeOne(Submission* out);
  // True when TakeOne would return kOne or kBroken. Cheap: for polling.
  bool HasWork() const;
  // REQUIRES: its submission was taken. Publish makes all completions visible and wakes the client
  // if it waits.
  void Complete(const Completion& completion);
  void Publish();
  // Taken, not completed.
  uint32_t in_work() const { return taken_ - completed_; }

  // The node calls it before it sleeps: from now on clients ring the doorbell. True: there is
  // already work, do not sleep.
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

  // False: the queue is full, so reap first. At most `entries` submissions may be under way.
  bool Submit(const Submission& submission);
  // True when the node sleeps and this caller must send the Doorbell. Call it after Submit.
  bool MustRing();

  enum class Reap : uint8_t { kNone, kOne, kBroken };
  Reap ReapOne(Completion* out);
  // Waits until there is something to reap: looks again and again for `spin`, then sleeps on the
  // futex. False: the deadline came first.
  bool Wait(Duration spin, TimePoint deadline);

  uint32_t under_way() const { return submitted_ - reaped_; }
  std::span<std::byte> scratch() const { return memory_.scratch(); }
  const RingShape& shape() const { return memory_.shape(); }

 private:
  RingMemory memory_;
  uint32_t submitted_ = 0;
  uint32_t reaped_ = 0;
};

// How long a waiting side spins before it sleeps. This is longer than it takes to wake a sleeping
// thread on a virtual machine, and longer than the other side needs to copy 1 MiB between two
// messages. While it spins it lets other threads run on its CPU, so it only uses time that no other
// thread wants. `asked` < 0: 150 us on a machine with more than one CPU, otherwise 0.
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
