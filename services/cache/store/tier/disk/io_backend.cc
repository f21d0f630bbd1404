#include "services/cache/store/tier/disk/io_backend.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/concurrency/mutex.h"

namespace cairn::cache::disk {
namespace {

// Reads of ranges that are at the device at the same time. A thread of its own for each would cost
// more than it gains.
size_t RangesAtOnce(IoKind kind, size_t depth) {
  constexpr size_t kForOne = 8;
  constexpr size_t kMost = 64;
  return kind == IoKind::kThreads ? depth : std::max(depth, std::min(kForOne * depth, kMost));
}

// Some sandboxes let a ring be made and refuse its use: only a request that came back counts.
Status TryOneRead(IoBackend& backend) {
  struct Waiter {
    Mutex mu;
    CondVar cv;
    bool done = false;
    int64_t result = 0;
  } waiter;
  const int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return OkStatus();  // Nothing to try it on: what made it must do.
  std::byte bytes[512];
  const iovec iov{bytes, sizeof(bytes)};
  IoRequest request;
  request.fd = fd;
  request.iov = &iov;
  request.iov_count = 1;
  request.owner = &waiter;
  request.done = [](IoRequest* r, int64_t result) {
    auto& w = *static_cast<Waiter*>(r->owner);
    MutexLock lock(w.mu);
    w.result = result;
    w.done = true;
    w.cv.NotifyAll();
  };
  backend.Submit(&request);
  {
    MutexLock lock(waiter.mu);
    waiter.cv.Wait(waiter.mu, [&] { return waiter.done; });
  }
  close(fd);
  if (waiter.result == sizeof(bytes)) return OkStatus();
  return Errorf(StatusCode::kUnavailable, "a read gave {}", waiter.result);
}

}  // namespace

std::string_view Name(IoKind kind) {
  switch (kind) {
    case IoKind::kUring:
      return "io_uring";
    case IoKind::kAio:
      return "aio";
    case IoKind::kThreads:
      return "threads";
  }
  return "unknown";
}

Result<std::unique_ptr<IoBackend>> MakeIoBackend(IoKind kind, const IoBackendOptions& options) {
  switch (kind) {
    case IoKind::kUring:
      return MakeUringBackend(options);
    case IoKind::kAio:
      return MakeAioBackend(options);
    case IoKind::kThreads:
      return MakeThreadBackend(options);
  }
  return InvalidArgument("option 'io_kind': got {}, expected 0 to 2", static_cast<int>(kind));
}

Result<IoLanes> MakeIoLanes(std::span<const IoKind> kinds, const IoLanesOptions& options,
                            std::string* reason) {
  Status failure = InvalidArgument("option 'kinds': got none, expected at least one");
  for (const IoKind kind : kinds) {
    const auto make_all = [&]() -> Result<IoLanes> {
      IoLanes lanes{.kind = kind, .writer = nullptr, .readers = {}, .ranges = nullptr};
      CAIRN_ASSIGN_OR_RETURN(lanes.writer,
                             options.make(kind, {.depth = options.depth, .name = "disk-write"}));
      for (size_t i = 0; i < options.readers; ++i) {
        CAIRN_ASSIGN_OR_RETURN(
            auto reader,
            options.make(kind, {.depth = options.depth / options.readers, .name = "disk-read"}));
        lanes.readers.push_back(std::move(reader));
      }
      CAIRN_ASSIGN_OR_RETURN(
          lanes.ranges,
          options.make(kind, {.depth = RangesAtOnce(kind, options.depth), .name = "disk-ranges"}));
      return lanes;
    };
    Result<IoLanes> lanes = make_all();
    if (lanes.ok()) return lanes;
    failure = lanes.status();
    if (!reason->empty()) *reason += "; ";
    *reason += std::string(Name(kind)) + ": " + Message(failure);
  }
  return failure;
}

IoKind ProbeIoKind(std::string* reason) {
  for (const IoKind kind : {IoKind::kUring, IoKind::kAio}) {
    auto backend = MakeIoBackend(kind, {.depth = 1, .name = "disk-probe"});
    const Status status = backend.ok() ? TryOneRead(**backend) : backend.status();
    if (status.ok()) return kind;
    if (!reason->empty()) *reason += "; ";
    *reason += std::string(Name(kind)) + ": " + Message(status);
  }
  return IoKind::kThreads;
}

}  // namespace cairn::cache::disk
