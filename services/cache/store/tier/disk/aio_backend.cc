// Linux's native asynchronous I/O, by its system calls: older than io_uring, asynchronous only with
// O_DIRECT, and rarely forbidden.
//
// One thread submits, and sleeps on an eventfd that both completions and new requests signal.

#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "cairn/common/status.h"
#include "services/cache/store/tier/disk/request_line.h"

namespace cairn::cache::disk {
namespace {

class AioBackend final : public IoBackend {
 public:
  static Result<std::unique_ptr<IoBackend>> Make(const IoBackendOptions& options) {
    std::unique_ptr<AioBackend> backend(new AioBackend(options.depth));
    if (backend->line_.event_fd() < 0) {
      return Errorf(StatusCode::kUnavailable, "eventfd: {}", std::strerror(errno));
    }
    if (syscall(SYS_io_setup, static_cast<long>(options.depth), &backend->context_) != 0) {
      return Errorf(StatusCode::kUnavailable, "io_setup: {}", std::strerror(errno));
    }
    backend->thread_ = std::thread([self = backend.get(), name = options.name] {
      pthread_setname_np(pthread_self(), name);
      self->Run();
    });
    return std::unique_ptr<IoBackend>(std::move(backend));
  }

  ~AioBackend() override {
    if (thread_.joinable()) {
      line_.Stop();
      thread_.join();
    }
    if (context_ != 0) syscall(SYS_io_destroy, context_);
  }

  IoKind kind() const override { return IoKind::kAio; }
  void Submit(IoRequest* request) override { line_.Push(request); }

 private:
  explicit AioBackend(size_t depth) : depth_(depth) {}

  void Start(IoRequest* request) {
    iocb control{};
    control.aio_data = reinterpret_cast<uint64_t>(request);
    control.aio_lio_opcode = request->write ? IOCB_CMD_PWRITEV : IOCB_CMD_PREADV;
    control.aio_fildes = static_cast<uint32_t>(request->fd);
    control.aio_buf = reinterpret_cast<uint64_t>(request->iov);
    control.aio_nbytes = static_cast<uint64_t>(request->iov_count);
    control.aio_offset = static_cast<int64_t>(request->offset);
    control.aio_flags = IOCB_FLAG_RESFD;
    control.aio_resfd = static_cast<uint32_t>(line_.event_fd());
    iocb* list[1] = {&control};
    // The kernel copies the control block. EAGAIN: its own tables are full; few requests at a time
    // are under way, so they empty soon.
    long started;
    do {
      started = syscall(SYS_io_submit, context_, 1L, list);
    } while (started < 0 && (errno == EINTR || errno == EAGAIN));
    if (started == 1) {
      ++in_flight_;
    } else {
      request->done(request, -errno);
    }
  }

  void Fill() {
    while (in_flight_ < depth_) {
      IoRequest* const request = line_.Pop();
      if (request == nullptr) return;
      Start(request);
    }
  }

  void Run() {
    std::array<io_event, 64> events;
    for (;;) {
      Fill();
      if (in_flight_ == 0 && line_.stopping()) return;
      if (line_.MaySleep(/*takes=*/in_flight_ < depth_)) {
        uint64_t value;
        (void)!read(line_.event_fd(), &value, sizeof(value));
        line_.Awake();
      }
      for (;;) {
        timespec none{};
        const long count = syscall(SYS_io_getevents, context_, 0L, static_cast<long>(events.size()),
                                   events.data(), &none);
        if (count <= 0) break;
        in_flight_ -= static_cast<size_t>(count);
        Fill();
        for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
          auto* const request = reinterpret_cast<IoRequest*>(events[i].data);
          request->done(request, events[i].res);
          Fill();
        }
      }
    }
  }

  const size_t depth_;
  RequestLine line_;
  std::thread thread_;
  aio_context_t context_ = 0;
  size_t in_flight_ = 0;  // The thread's own.
};

}  // namespace

Result<std::unique_ptr<IoBackend>> MakeAioBackend(const IoBackendOptions& options) {
  return AioBackend::Make(options);
}

}  // namespace cairn::cache::disk
