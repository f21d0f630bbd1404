#pragma once
// A bare client of the same-node path: it speaks the ring by hand, maps every segment that the node
// sends, and looks into all of it.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/v1/cache.pb.h"
#include "protocol/shm/protocol.h"
#include "protocol/shm/ring.h"
#include "protocol/shm/socket.h"

namespace cairn::fault {

// The bytes that hostile tenants store: a 16-byte marker of the tenant, again and again. Whoever
// finds another tenant's marker in memory that the node gave to him has found foreign bytes.
std::string MarkedBytes(const std::string& tenant, size_t bytes);
// Markers in `memory` that are not this tenant's.
uint64_t CountForeignMarkers(std::span<const std::byte> memory, const std::string& tenant);
// True when `bytes` are the marked bytes of this tenant, and nothing else.
bool IsMarked(const std::string& bytes, const std::string& tenant);

// Not thread-safe.
class LocalClient {
 public:
  // Says Hello with the token of this gRPC session. RESOURCE_EXHAUSTED and others: the node's
  // answer.
  static Result<std::unique_ptr<LocalClient>> Open(const v1::SessionEvent& session,
                                                   const std::string& tenant);
  ~LocalClient();

  // Takes the messages that have come: segments to map. Segments that are gone stay mapped, as a
  // client does that never unmaps.
  void Poll();
  uint64_t ForeignMarkers() const;
  // Bytes of memory behind all segments that this client was ever given, without the files that
  // `counted` names, to which it adds its own.
  uint64_t HeldBytes(std::set<uint64_t>* counted) const;
  // Flips a bit in each of `pages` pages of memory that the node lent for writing. Returns how many
  // it flipped.
  uint64_t FlipLentBytes(uint64_t first, uint64_t pages);

  struct Answer {
    shm::Completion completion;
    std::vector<std::byte> output;
  };
  // One call through the ring, waiting up to 5 s.
  Result<Answer> Call(shm::Op op, uint8_t flags, std::span<const std::byte> input,
                      uint32_t output_bytes, const std::string& body = "", uint32_t argument = 0);
  // Takes room for one opaque part of `bytes` bytes and never fills it. OK: the node granted it.
  Status Squat(const std::string& fingerprint, const std::string& key, uint64_t bytes);
  // The same, and stores `part` there.
  Status StoreInPlace(const std::string& fingerprint, const std::string& key,
                      const std::string& part);
  // Writes into the ring whatever comes.
  void Submit(const shm::Submission& submission);
  std::span<std::byte> ring_bytes();

 private:
  struct Segment {
    uint32_t flags = 0;
    std::span<std::byte> memory;
    shm::Descriptor fd;
  };
  LocalClient(std::string tenant, shm::Descriptor socket, shm::RingMemory memory);
  Status Take(shm::Received received);
  Result<shm::Grant> Reserve(const std::string& fingerprint, const std::string& key,
                             uint64_t bytes);

  const std::string tenant_;
  shm::Descriptor socket_;
  std::byte* ring_base_;
  uint64_t ring_size_;
  shm::ClientRing ring_;
  uint64_t next_cookie_ = 1;
  Status closed_;  // Not OK: the node has closed the session, and says why.
  std::map<uint32_t, Segment> segments_;
};

}  // namespace cairn::fault
