#pragma once
// The messages by which two processes agree to move bytes between their devices, without their form
// on the wire (proto/cairn/v1/link.proto). The reader wants bytes that the holder has.
//
//   Open   the reader has a new communicator of two ranks; the holder joins it as rank 1
//   Move   the bytes of one plan, from the holder's memories into the reader's
//   Close  the communicator of this epoch is over
//
// Values. Thread-compatible.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::link {

// By it two ranks find each other (ncclUniqueId). Whoever knows it can join: it is a secret of the
// two.
using UniqueId = std::array<char, 128>;

// Bytes that move from one memory to another one. Memories are numbers that their own process gave
// (memories.h).
struct Piece {
  uint32_t source = 0;         // A memory of the holder.
  uint64_t source_offset = 0;  // Bytes, as all that follow.
  uint32_t target = 0;         // A memory of the reader.
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Piece&) const = default;
};

// Both sides issue the pieces in this order.
struct Plan {
  static constexpr size_t kMostPieces = 4096;
  static constexpr uint64_t kMostBytes = 16ull << 30;  // Bytes of all pieces together.

  std::vector<Piece> pieces = {};
  // REQUIRES: Check was OK.
  uint64_t bytes() const;
  // INVALID_ARGUMENT, which names the field: no piece or too many, an empty one, too many bytes,
  // ends beyond 64 bits, or targets that overlap.
  Status Check() const;
};

// How bytes go.
enum class Way : uint8_t {
  kSend = 0,  // Both sides issue each piece: send and receive.
  kPut = 1,   // The holder writes into the reader's registered window, and the reader waits.
};

// A memory that can become a window, as its own process names it.
struct MemorySize {
  uint32_t number = 0;
  uint64_t bytes = 0;
  bool operator==(const MemorySize&) const = default;
};

struct OpenRequest {
  static constexpr size_t kMostMemories = 256;

  // The number of this communicator. It grows with each communicator of the pair. Not 0.
  uint64_t epoch = 0;
  UniqueId id{};
  std::string host = {};  // Processes with the same one reach each other without a network.
  int32_t version = 0;    // The version of the library, as its users write it: 22902 is 2.29.2.
  // Memories that may become windows. Empty: no puts.
  std::vector<MemorySize> memories = {};
};

struct OpenAnswer {
  std::string host = {};
  int32_t version = 0;
  // As in the request. If both name as many, the n-th of one and the n-th of the other are one
  // window; else there are none.
  std::vector<MemorySize> memories = {};
};

struct MoveRequest {
  uint64_t epoch = 0;
  uint64_t sequence = 0;  // 1, 2, 3, ...; numbers of refused ones are not used again.
  Way way = Way::kSend;
  Plan plan = {};
  Duration timeout{0};  // From the arrival on. More than 0.
};

// INVALID_ARGUMENT, which names the field.
Status Check(const OpenRequest& request);
Status Check(const OpenAnswer& answer);
Status Check(const MoveRequest& request);

}  // namespace cairn::link
