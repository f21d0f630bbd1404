// A few threads that read and write: works everywhere, and is the best there is for buffered files.

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/io_backend.h"

namespace cairn::cache::disk {
namespace {

constexpr size_t kMaxThreads = 16;

class ThreadBackend final : public IoBackend {
 public:
  explicit ThreadBackend(const IoBackendOptions& options) {
    for (size_t i = 0; i < std::clamp<size_t>(options.depth, 1, kMaxThreads); ++i) {
      threads_.emplace_back([this, name = options.name] {
        pthread_setname_np(pthread_self(), name);
        Run();
      });
    }
  }
  ~ThreadBackend() override {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  IoKind kind() const override { return IoKind::kThreads; }

  void Submit(IoRequest* request) override {
    {
      MutexLock lock(mu_);
      request->next = nullptr;
      (last_ == nullptr ? first_ : last_->next) = request;
      last_ = request;
    }
    wake_.NotifyOne();
  }

 private:
  void Run() {
    for (;;) {
      IoRequest* request;
      {
        MutexLock lock(mu_);
        wake_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return first_ != nullptr || stopping_;
        });
        if (first_ == nullptr) return;
        request = first_;
        first_ = request->next;
        if (first_ == nullptr) last_ = nullptr;
      }
      const auto offset = static_cast<off_t>(request->offset);
      ssize_t moved;
      do {
        moved = request->write ? pwritev(request->fd, request->iov, request->iov_count, offset)
                               : preadv(request->fd, request->iov, request->iov_count, offset);
      } while (moved < 0 && errno == EINTR);
      request->done(request, moved < 0 ? -errno : moved);
    }
  }

  Mutex mu_;
  CondVar wake_;
  IoRequest* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  IoRequest* last_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> MakeThreadBackend(const IoBackendOptions& options) {
  return std::unique_ptr<IoBackend>(new ThreadBackend(options));
}

}  // namespace cairn::cache::disk
