#pragma once
// The speed that the machine has without us, measured in the same run: the only numbers with which
// ours can be compared.

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/bench/buffer.h"

namespace cairn::cli::bench {

// Not thread-safe.
class Yardstick {
 public:
  virtual ~Yardstick() = default;
  virtual std::string name() const = 0;         // "memref", "tcp".
  virtual std::string description() const = 0;  // For the report's reader.
  // GB/s (1e9 bytes) of one short measurement.
  virtual Result<double> Measure() = 0;
};

// Source and destination that are too large for any cache, shared by the yardsticks.
struct YardstickBuffers {
  Buffer source, destination;
  // RESOURCE_EXHAUSTED.
  static Result<YardstickBuffers> Allocate();
};

// One thread of libc's memcpy, 1 MiB a call, over two buffers of 256 MiB.
std::unique_ptr<Yardstick> NewMemcpyYardstick(const YardstickBuffers& buffers);

// TCP over loopback: requests for 1 MiB, 4 in flight, into a walk over 256 MiB.
// `congestion_control`: as in /proc/sys/net/ipv4/tcp_available_congestion_control; empty: the
// machine's default. Fails in Measure when the kernel does not have it.
std::unique_ptr<Yardstick> NewTcpYardstick(const YardstickBuffers& buffers,
                                           const std::string& congestion_control);

// io_uring with O_DIRECT on an unlinked file of 256 MiB in `directory`, 1 MiB blocks, 8 in flight:
// "uring_write" over extents that were written before, "uring_read" in random order. UNAVAILABLE
// where the kernel or a seccomp profile forbids io_uring, or the file system O_DIRECT.
Result<std::vector<std::unique_ptr<Yardstick>>> NewUringYardsticks(const YardstickBuffers& buffers,
                                                                   const std::string& directory);

}  // namespace cairn::cli::bench
