// io_uring: one ring, and one thread that does everything with it.
//
// One thread submits and reaps, for the kernel ends requests with the thread that submitted them,
// and callers come and go. It sleeps in the ring; a read of an eventfd that is always in the ring
// wakes it when a request comes while it sleeps.

#include <liburing.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "cairn/common/status.h"
#include "services/cache/store/tier/disk/request_line.h"

namespace cairn::cache::disk {
namespace {

class UringBackend final : public IoBackend {
 public:
  static Result<std::unique_ptr<IoBackend>> Make(const IoBackendOptions& options) {
    std::unique_ptr<UringBackend> backend(new UringBackend(options));
    CAIRN_RETURN_IF_ERROR(backend->Start(options.name));
    return std::unique_ptr<IoBackend>(std::move(backend));
  }

  ~UringBackend() override {
    if (!thread_.joinable()) return;
    line_.Stop();
    thread_.join();
  }

  IoKind kind() const override { return IoKind::kUring; }
  void Submit(IoRequest* request) override { line_.Push(request); }

 private:
  struct Done {
    IoRequest* request;
    int64_t result;
  };

  explicit UringBackend(const IoBackendOptions& options) : depth_(options.depth) {}

  // The ring is made on its own thread: with SINGLE_ISSUER only its maker may use it.
  Status Start(const char* name) {
    if (line_.event_fd() < 0) {
      return Errorf(StatusCode::kUnavailable, "eventfd: {}", std::strerror(errno));
    }
    Mutex mu;
    CondVar made;
    int result = 1;
    thread_ = std::thread([this, name, &mu, &made, &result] {
      pthread_setname_np(pthread_self(), name);
      const int error = MakeRing();
      {
        // Notified under the lock: both end with the function that waits.
        MutexLock lock(mu);
        result = error;
        made.NotifyAll();
      }
      if (error == 0) Run();
    });
    {
      MutexLock lock(mu);
      made.Wait(mu, [&] { return result != 1; });
    }
    if (result == 0) return OkStatus();
    thread_.join();
    return Errorf(StatusCode::kUnavailable, "io_uring: {}", std::strerror(-result));
  }

  int MakeRing() {
    const auto entries = static_cast<unsigned>(depth_ + 1);
    // Completions wait until the thread asks for them, instead of interrupting it. Since Linux 6.1;
    // older ones get a plain ring.
    io_uring_params params{};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    int error = io_uring_queue_init_params(entries, &ring_, &params);
    if (error == -EINVAL) {
      params = {};
      error = io_uring_queue_init_params(entries, &ring_, &params);
    }
    return error;
  }

  void Arm() {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    CAIRN_CHECK(sqe != nullptr);
    io_uring_prep_read(sqe, line_.event_fd(), &event_value_, sizeof(event_value_), 0);
    io_uring_sqe_set_data(sqe, nullptr);
    armed_ = true;
  }

  // Puts what waits into the ring, as far as the depth allows.
  bool Fill() {
    bool any = false;
    while (in_flight_ < depth_) {
      IoRequest* const request = line_.Pop();
      if (request == nullptr) break;
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      CAIRN_CHECK(sqe != nullptr);  // The ring has room for the depth and the eventfd.
      const auto count = static_cast<unsigned>(request->iov_count);
      if (request->write) {
        io_uring_prep_writev(sqe, request->fd, request->iov, count, request->offset);
      } else {
        io_uring_prep_readv(sqe, request->fd, request->iov, count, request->offset);
      }
      io_uring_sqe_set_data(sqe, request);
      ++in_flight_;
      any = true;
    }
    return any;
  }

  void Reap(std::vector<Done>* done) {
    io_uring_cqe* cqe = nullptr;
    unsigned head = 0;
    unsigned count = 0;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      ++count;
      auto* const request = static_cast<IoRequest*>(io_uring_cqe_get_data(cqe));
      if (request == nullptr) {
        armed_ = false;
      } else {
        --in_flight_;
        done->push_back({request, cqe->res});
      }
    }
    io_uring_cq_advance(&ring_, count);
  }

  void Run() {
    std::vector<Done> done;
    for (;;) {
      if (!armed_) Arm();
      Fill();
      if (in_flight_ == 0 && line_.stopping()) break;
      if (line_.MaySleep(/*takes=*/in_flight_ < depth_)) {
        const int error = io_uring_submit_and_wait(&ring_, 1);
        line_.Awake();
        // EBUSY, EAGAIN: completions are to be taken first; EINTR: again.
        CAIRN_CHECK(error >= 0 || error == -EINTR || error == -EAGAIN || error == -EBUSY);
      }
      done.clear();
      Reap(&done);
      // The device gets its next work before the last one's is looked at.
      if (!done.empty() && Fill()) io_uring_submit(&ring_);
      for (const Done& d : done) {
        d.request->done(d.request, d.result);
        if (in_flight_ < depth_ && Fill()) io_uring_submit(&ring_);
      }
    }
    // The read of the eventfd ends with the ring.
    io_uring_queue_exit(&ring_);
  }

  const size_t depth_;
  RequestLine line_;
  std::thread thread_;
  // The thread's own.
  io_uring ring_{};
  size_t in_flight_ = 0;
  bool armed_ = false;
  uint64_t event_value_ = 0;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> MakeUringBackend(const IoBackendOptions& options) {
  return UringBackend::Make(options);
}

}  // namespace cairn::cache::disk
