#pragma once
// Brings bytes to the device and back. Callers hand in reads and writes and are told when they are
// done. Nothing here knows extents or segments.
//
// Three ways, best first: io_uring; Linux's native asynchronous I/O (for machines whose seccomp
// profile forbids io_uring); a few threads (works everywhere). Each passes the suite in
// tests/conformance/cache/tier/io_backend_test.cc.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cache::disk {

enum class IoKind : uint8_t { kUring, kAio, kThreads };
std::string_view Name(IoKind kind);  // "io_uring", "aio", "threads".

// One vectored read or write. The owner keeps it, and the memory that `iov` points to, until `done`
// has run.
struct IoRequest {
  bool write = false;
  int fd = -1;
  uint64_t offset = 0;
  const iovec* iov = nullptr;
  int iov_count = 0;
  // Runs once, on a thread of the backend, with the number of bytes moved, which may be smaller
  // than requested, or -errno. It may submit. It must not block for long, because later completions
  // wait for it.
  void (*done)(IoRequest* request, int64_t result) = nullptr;
  void* owner = nullptr;  // For `done`.

  IoRequest* next = nullptr;  // For the backend, while the request waits for its turn.
};

// Thread-safe. Requests start in the order of their submission and end in any order.
class IoBackend {
 public:
  virtual ~IoBackend() = default;  // REQUIRES: every request is done. Ends the threads.
  virtual IoKind kind() const = 0;
  // Never blocks on I/O: requests beyond the depth wait inside. Callers must bound their number.
  virtual void Submit(IoRequest* request) = 0;
};

struct IoBackendOptions {
  size_t depth = 8;              // Requests at the device at the same time; 1 to 256.
  const char* name = "disk-io";  // The name of the threads.
};
// UNAVAILABLE: this machine does not have it or does not permit it.
Result<std::unique_ptr<IoBackend>> MakeUringBackend(const IoBackendOptions& options);
Result<std::unique_ptr<IoBackend>> MakeAioBackend(const IoBackendOptions& options);
Result<std::unique_ptr<IoBackend>> MakeThreadBackend(const IoBackendOptions& options);
Result<std::unique_ptr<IoBackend>> MakeIoBackend(IoKind kind, const IoBackendOptions& options);

// One backend for writes, some for reads, and one for reads of ranges. These are small: a device
// takes many of them in the time of a large one, and they do not wait behind large ones here.
struct IoLanes {
  IoKind kind = IoKind::kThreads;
  std::unique_ptr<IoBackend> writer;
  std::vector<std::unique_ptr<IoBackend>> readers;
  std::unique_ptr<IoBackend> ranges;
  // The reader of the extent.
  IoBackend* reader(uint64_t id) const { return readers[id % readers.size()].get(); }
};
struct IoLanesOptions {
  // For ranges, eight times as many requests, but at most 64, and as many if they take threads.
  size_t depth = 8;
  size_t readers = 1;  // At most `depth`.
  // Makes one backend.
  std::function<Result<std::unique_ptr<IoBackend>>(IoKind, const IoBackendOptions&)> make =
      MakeIoBackend;
};
// All of them are of the first of `kinds` of which every one could be made: that one ring works
// does not mean that there is memory for several. `reason` gets why others did not work. The error
// is the last kind's.
Result<IoLanes> MakeIoLanes(std::span<const IoKind> kinds, const IoLanesOptions& options,
                            std::string* reason);

// Returns the best kind that works here: it was made, and one read was done. `reason` gets the
// reason why better ones do not work, or stays empty.
IoKind ProbeIoKind(std::string* reason);

}  // namespace cairn::cache::disk
