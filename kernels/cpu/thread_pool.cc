#include "cairn/kernels/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace cairn::kernels {
namespace {

// About 30 us: longer than what a thread does alone between two sections, shorter than what a
// neighbour on the CPU would notice.
constexpr int kSpins = 1000;

// Tells the processor that this is a busy loop.
void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

// Returns when *word is no longer `value`.
void WaitWhile(std::atomic<uint32_t>* word, uint32_t value) {
  for (int i = 0; i < kSpins; ++i) {
    if (word->load(std::memory_order_acquire) != value) return;
    Pause();
  }
  while (word->load(std::memory_order_acquire) == value) FutexWait(word, value);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : shares_(static_cast<size_t>(threads)) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  FutexWake(&job_);
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::Work(int thread) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[(static_cast<size_t>(thread) + i) % shares_.size()];
    while (true) {
      const int64_t piece = share.next.fetch_add(1, std::memory_order_relaxed);
      if (piece >= share.end) break;
      function_(context_, piece, thread);
    }
  }
}

void ThreadPool::Run(int64_t pieces, Function function, void* context) {
  if (pieces <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < pieces; ++i) function(context, i, 0);
    return;
  }
  function_ = function;
  context_ = context;
  const auto n = static_cast<int64_t>(shares_.size());
  for (int64_t t = 0; t < n; ++t) {
    Share& share = shares_[static_cast<size_t>(t)];
    share.next.store(pieces * t / n, std::memory_order_relaxed);
    share.end = pieces * (t + 1) / n;
  }
  busy_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  // Sequentially consistent with the worker's sleeping_ and job_: one of the two sees the other, so
  // no wake-up is lost.
  job_.fetch_add(1, std::memory_order_seq_cst);
  // Costs a system call only when somebody sleeps.
  if (sleeping_.load(std::memory_order_seq_cst) != 0) FutexWake(&job_);
  Work(0);
  // Every worker must have left: the job's fields and the caller's context are about to go.
  uint32_t left = busy_.load(std::memory_order_acquire);
  while (left != 0) {
    WaitWhile(&busy_, left);
    left = busy_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  while (true) {
    bool started = false;
    for (int i = 0; i < kSpins && !started; ++i) {
      started = job_.load(std::memory_order_acquire) != seen;
      if (!started) Pause();
    }
    if (!started) {
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      while (job_.load(std::memory_order_seq_cst) == seen) FutexWait(&job_, seen);
      sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
    // Run waits for all workers, so a worker is never more than one job behind.
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    Work(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) FutexWake(&busy_);
  }
}

}  // namespace cairn::kernels
