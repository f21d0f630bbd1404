#pragma once
// Memory of GPUs in which a node on this machine keeps blocks. The caller of Connect gives the
// client what it needs to read there (ConnectOptions::devices), so the client knows no driver.
//
// Whoever imported a chunk can write to all of it, other clients of the tenant too. So nothing that
// is read from a chunk is right before it was verified.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::client {

// A piece of a GPU's memory that the node shares, mapped into this process. The destructor unmaps
// it. Thread-safe.
class DeviceChunk {
 public:
  virtual ~DeviceChunk() = default;
  // In the GPU's address space of this process.
  virtual uint64_t address() const = 0;
  virtual uint64_t bytes() const = 0;

  struct Piece {
    uint64_t offset = 0;
    std::span<std::byte> to;
  };
  // Copies pieces of it to the host's memory, and waits for them. After an error the bytes in `to`
  // mean nothing. DEADLINE_EXCEEDED, UNAVAILABLE: the GPU does not answer, or is lost. REQUIRES:
  // the pieces lie in the chunk.
  virtual Status Read(std::span<const Piece> pieces, TimePoint deadline) const = 0;
};

// Thread-safe.
class DeviceImporter {
 public:
  virtual ~DeviceImporter() = default;
  // The ids of the GPUs whose memory it imports, as NVIDIA's tools write them: "GPU-" and 32 digits
  // with hyphens. Constant, 1 to 16.
  virtual std::vector<std::string> uuids() const = 0;
  // Maps memory of one of these GPUs. The descriptor stays the caller's. An error is no failure of
  // the client: what lies in the chunk comes another way.
  virtual Result<std::shared_ptr<const DeviceChunk>> Import(const std::string& uuid, int descriptor,
                                                            uint64_t bytes) = 0;
};

}  // namespace cairn::client
