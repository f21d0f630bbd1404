#include "services/cache/store/tier/prefault.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/concurrency/thread_priority.h"
#include "common/log/log.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kChunk = 4 << 20;
constexpr size_t kMaxWaiting = 8;  // Segments with new memory.

// Makes fresh pages of `memory` present. Also through the descriptor, if there is one, for kernels
// before 5.14.
int Populate(std::span<std::byte> memory, int fd, uint64_t offset) {
#ifdef MADV_POPULATE_WRITE
  constexpr int kAdvice = MADV_POPULATE_WRITE;
#else
  constexpr int kAdvice = 23;
#endif
  int error = 0;
  do {
    error = madvise(memory.data(), memory.size(), kAdvice) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error != EINVAL || fd < 0) return error;
  do {
    error = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(memory.size())) == 0
                ? 0
                : errno;
  } while (error == EINTR);
  return error;
}

}  // namespace

void Prefault::Start(std::vector<Segment> segments) {
  segments_ = std::move(segments);
  first_over_ = false;
  thread_ = std::thread([this] { Run(); });
}

void Prefault::Stop() {
  {
    MutexLock lock(mu_);
    stop_.store(true, std::memory_order_relaxed);
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Prefault::TouchAll() {
  uint64_t before = 0;
  for (const Segment& segment : segments_) {
    for (uint64_t at = 0; at < segment.memory.size(); at += kChunk) {
      if (stop_.load(std::memory_order_relaxed)) return;
      const uint64_t bytes = std::min<uint64_t>(kChunk, segment.memory.size() - at);
      const int error = Populate(segment.memory.subspan(at, bytes), segment.fd, at);
      if (error != 0) {
        log::Warn("host_arena_prefault_stopped",
                  {{"at", log::Num(before + at)}, {"reason", std::strerror(error)}});
        stop_.store(true, std::memory_order_relaxed);
        return;
      }
      bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
    before += segment.memory.size();
  }
}

void Prefault::Run() {
  pthread_setname_np(pthread_self(), "cairn-prefault");
  // Requests go first. Only a hint, so a refusal does not matter.
  (void)SetThreadNiceness(10);
  TouchAll();
  {
    MutexLock lock(mu_);
    first_over_.store(true, std::memory_order_release);
  }
  over_.NotifyAll();
  for (;;) {
    uint32_t index;
    {
      MutexLock lock(mu_);
      wake_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return !wanted_.empty() || stop_.load(std::memory_order_relaxed);
      });
      if (stop_.load(std::memory_order_relaxed)) return;
      index = wanted_.front();
      wanted_.pop_front();
    }
    // The memory may be replaced once more meanwhile: only the addresses are used, and to touch
    // them is right whatever lies there.
    const std::span<std::byte> memory = segments_[index].memory;
    for (uint64_t at = 0; at < memory.size(); at += kChunk) {
      if (stop_.load(std::memory_order_relaxed)) return;
      if (Populate(memory.subspan(at, std::min<uint64_t>(kChunk, memory.size() - at)), -1, 0) !=
          0) {
        break;
      }
    }
  }
}

void Prefault::Again(uint32_t segment) {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mu_);
    // An owner that gives segments away faster than this can touch them gains nothing by a queue.
    if (wanted_.size() >= kMaxWaiting) return;
    wanted_.push_back(segment);
  }
  wake_.NotifyOne();
}

void Prefault::WaitForFirst() {
  MutexLock lock(mu_);
  over_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return first_over_.load(); });
}

}  // namespace cairn::cache
