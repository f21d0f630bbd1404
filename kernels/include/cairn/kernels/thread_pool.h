#pragma once
// A few threads that share short pieces of work.
//
// A forward pass of a small model has some 150 parallel sections of 20 to 500 us. Waiting for one
// therefore starts with a short spin, then sleeps. Each thread goes through a run of neighbouring
// pieces, so that it prefetches for itself, and then helps the others with theirs. So a thread that
// loses its CPU to another process delays at most one piece.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace cairn::kernels {

class ThreadPool {
 public:
  // `threads` >= 1, the caller of ParallelFor included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(piece, thread) for each piece of 0..pieces-1, thread in 0..threads()-1, and returns
  // when all are done. Everything that a piece wrote is then visible to the caller. One call at a
  // time, and not from inside `work`.
  template <typename Work>
  void ParallelFor(int64_t pieces, Work&& work) {
    using Type = std::remove_reference_t<Work>;
    Run(
        pieces,
        [](void* context, int64_t piece, int thread) {
          (*static_cast<Type*>(context))(piece, thread);
        },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

 private:
  using Function = void (*)(void* context, int64_t piece, int thread);

  void Run(int64_t pieces, Function function, void* context);
  void Work(int thread);
  void WorkerLoop(int thread);

  // Written by Run before it announces a job, constant until all workers have left it.
  Function function_ = nullptr;
  void* context_ = nullptr;

  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares_;  // By thread.
  // Number of the job; futex word.
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<uint32_t> busy_{0};  // Workers that have not left the job.
  std::atomic<uint32_t> sleeping_{0};          // Workers that must be woken.
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace cairn::kernels
