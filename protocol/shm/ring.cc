#include "protocol/shm/ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>
#include <utility>

namespace cairn::shm {
namespace {

int* FutexWord(std::atomic<uint32_t>& word) { return reinterpret_cast<int*>(&word); }

void FutexWake(std::atomic<uint32_t>& word) {
  // Not private: the waiter is another process.
  syscall(SYS_futex, FutexWord(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns on a wake-up, a changed word, a signal, or after `timeout`.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, Duration timeout) {
  timespec relative;
  relative.tv_sec = timeout.count() / 1'000'000'000;
  relative.tv_nsec = timeout.count() % 1'000'000'000;
  syscall(SYS_futex, FutexWord(word), FUTEX_WAIT, seen, &relative, nullptr, 0);
}

Result<std::byte*> MapShared(int fd, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return Errorf(StatusCode::kResourceExhausted, "ring: mapping {} bytes: {}", bytes,
                  std::strerror(errno));
  }
  return static_cast<std::byte*>(base);
}

}  // namespace

RingMemory::~RingMemory() {
  if (owned_ && base_ != nullptr) munmap(base_, shape_.bytes());
}

RingMemory::RingMemory(RingMemory&& other) noexcept { *this = std::move(other); }

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(shape_, other.shape_);
  std::swap(owned_, other.owned_);
  return *this;
}

Result<RingMemory> RingMemory::Create(const RingShape& shape, int* fd) {
  CAIRN_CHECK(shape.valid());
  const int created = memfd_create("cairn-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (created < 0) {
    return Errorf(StatusCode::kResourceExhausted, "ring: memfd of {} bytes: {}", shape.bytes(),
                  std::strerror(errno));
  }
  // A client that could shrink the file would turn the node's next read into SIGBUS.
  if (ftruncate(created, static_cast<off_t>(shape.bytes())) != 0 ||
      fcntl(created, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    close(created);
    return Errorf(StatusCode::kResourceExhausted, "ring: {} bytes: {}", shape.bytes(),
                  std::strerror(error));
  }
  const auto base = MapShared(created, shape.bytes());
  if (!base.ok()) {
    close(created);
    return base.status();
  }
  RingMemory memory;
  memory.base_ = *base;
  memory.shape_ = shape;
  memory.owned_ = true;
  *fd = created;
  return memory;
}

Result<RingMemory> RingMemory::Map(int fd, const RingShape& shape) {
  if (!shape.valid()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "ring: got {} entries and {} bytes of scratch, expected a power of two up to {} "
                  "and whole pages up to {}",
                  shape.entries, shape.scratch_bytes, kMaxEntries, kMaxScratchBytes);
  }
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &file) != 0 || static_cast<uint64_t>(file.st_size) != shape.bytes() || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "ring: got {} bytes with seals {}, expected {} bytes that cannot shrink",
                  file.st_size, seals, shape.bytes());
  }
  CAIRN_ASSIGN_OR_RETURN(std::byte * base, MapShared(fd, shape.bytes()));
  RingMemory memory;
  memory.base_ = base;
  memory.shape_ = shape;
  memory.owned_ = true;
  return memory;
}

RingMemory RingMemory::Borrow(std::byte* base, const RingShape& shape) {
  RingMemory memory;
  memory.base_ = base;
  memory.shape_ = shape;
  return memory;
}

bool NodeRing::RoomForCompletion() const {
  // Completions that the client has not reaped, and those that are owed.
  const uint32_t unread =
      completed_ - memory_.header().completion_head.load(std::memory_order_acquire);
  return unread <= shape().entries && unread + in_work() < shape().entries;
}

bool NodeRing::HasWork() const {
  return memory_.header().submission_tail.load(std::memory_order_relaxed) != taken_ &&
         RoomForCompletion();
}

NodeRing::Take NodeRing::TakeOne(Submission* out) {
  const uint32_t tail = memory_.header().submission_tail.load(std::memory_order_acquire);
  if (tail == taken_) return Take::kNone;
  if (tail - taken_ > shape().entries) return Take::kBroken;
  const uint32_t unread =
      completed_ - memory_.header().completion_head.load(std::memory_order_acquire);
  if (unread > shape().entries) return Take::kBroken;
  if (unread + in_work() >= shape().entries) return Take::kNone;
  std::memcpy(out, memory_.submission(taken_), sizeof(*out));
  ++taken_;
  memory_.header().submission_head.store(taken_, std::memory_order_release);
  return Take::kOne;
}

void NodeRing::Complete(const Completion& completion) {
  CAIRN_CHECK(in_work() > 0);
  std::memcpy(memory_.completion(completed_), &completion, sizeof(completion));
  ++completed_;
}

void NodeRing::Publish() {
  if (published_ == completed_) return;
  published_ = completed_;
  RingHeader& header = memory_.header();
  // Ordered before the look at client_waiting, as the client sets that before it looks at the tail
  // again.
  header.completion_tail.store(completed_, std::memory_order_seq_cst);
  if (header.client_waiting.load(std::memory_order_seq_cst) != 0) {
    FutexWake(header.completion_tail);
  }
}

bool NodeRing::GoToSleep() {
  memory_.header().node_asleep.store(1, std::memory_order_seq_cst);
  const bool work = memory_.header().submission_tail.load(std::memory_order_seq_cst) != taken_ &&
                    RoomForCompletion();
  if (work) WakeUp();
  return work;
}

bool ClientRing::Submit(const Submission& submission) {
  if (under_way() >= shape().entries) return false;
  std::memcpy(memory_.submission(submitted_), &submission, sizeof(submission));
  ++submitted_;
  memory_.header().submission_tail.store(submitted_, std::memory_order_seq_cst);
  return true;
}

bool ClientRing::MustRing() {
  std::atomic<uint32_t>& asleep = memory_.header().node_asleep;
  return asleep.load(std::memory_order_seq_cst) != 0 && asleep.exchange(0) != 0;
}

ClientRing::Reap ClientRing::ReapOne(Completion* out) {
  const uint32_t tail = memory_.header().completion_tail.load(std::memory_order_acquire);
  if (tail == reaped_) return Reap::kNone;
  if (tail - reaped_ > under_way()) return Reap::kBroken;
  std::memcpy(out, memory_.completion(reaped_), sizeof(*out));
  ++reaped_;
  memory_.header().completion_head.store(reaped_, std::memory_order_release);
  return Reap::kOne;
}

bool ClientRing::Wait(Duration spin, TimePoint deadline) {
  RingHeader& header = memory_.header();
  const auto ready = [&](std::memory_order order) {
    return header.completion_tail.load(order) != reaped_;
  };
  if (ready(std::memory_order_acquire)) return true;
  if (spin > Duration(0)) {
    // A look at the clock costs as much as ten looks at the ring.
    const TimePoint until = std::min(deadline, std::chrono::steady_clock::now() + spin);
    do {
      for (int i = 0; i < 32; ++i) {
        if (ready(std::memory_order_acquire)) return true;
        CpuRelax();
      }
      // The other side may be waiting for this very CPU.
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < until);
  }
  header.client_waiting.fetch_add(1, std::memory_order_seq_cst);
  bool found = false;
  while (!(found = ready(std::memory_order_seq_cst))) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration(0)) break;
    FutexWait(header.completion_tail, reaped_, left);
  }
  header.client_waiting.fetch_sub(1, std::memory_order_seq_cst);
  return found;
}

Duration SpinTime(Duration asked) {
  if (asked >= Duration(0)) return asked;
  return std::thread::hardware_concurrency() > 1 ? Duration(std::chrono::microseconds(150))
                                                 : Duration(0);
}

}  // namespace cairn::shm
