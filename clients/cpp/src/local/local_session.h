#pragma once
// A same-node session (docs/inside/formats/local.md): the client's end of socket, ring and
// segments.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/client/device_importer.h"
#include "clients/cpp/src/local/arena_map.h"
#include "clients/cpp/src/local/chunk_map.h"
#include "clients/cpp/src/local/local_rows.h"
#include "clients/cpp/src/local/ring_channel.h"
#include "common/concurrency/mutex.h"

namespace cairn::client::local {

class LocalSession;

// A lease of this path. Its last reference gives it back: the client's Lease, or what was lent
// under it. Thread-safe.
class LeasePin {
 public:
  LeasePin(std::shared_ptr<LocalSession> session, uint64_t lease,
           std::vector<shm::PlaceEntry> places, uint32_t located)
      : session_(std::move(session)),
        lease_(lease),
        places_(std::move(places)),
        located_(located) {}
  ~LeasePin();
  uint64_t lease() const { return lease_; }
  const std::shared_ptr<LocalSession>& session() const { return session_; }
  // Where the parts of the first `located` blocks lie, as the match said. Not checked.
  const std::vector<shm::PlaceEntry>& places() const { return places_; }
  uint32_t located() const { return located_; }
  // The state that fetches of rows keep about its blocks.
  LocalRows& rows() { return rows_; }

 private:
  const std::shared_ptr<LocalSession> session_;
  const uint64_t lease_;
  const std::vector<shm::PlaceEntry> places_;
  const uint32_t located_;
  LocalRows rows_;
};

// Room for one part at the node.
struct Room {
  Status status = {};  // ALREADY_EXISTS: nothing to write. RESOURCE_EXHAUSTED: try gRPC.
  uint64_t reservation = 0;
  std::shared_ptr<const ArenaSegment> segment = {};  // Keeps `bytes` mapped.
  std::span<std::byte> bytes = {};
};

// Thread-safe. Ends when the node says so, or with its last reference. Until then everything that
// it pins at the node stays pinned, because the node takes leases and reservations back only when
// the client hangs up.
class LocalSession : public std::enable_shared_from_this<LocalSession> {
 public:
  struct Options {
    std::string socket;  // Path.
    std::string token;   // 16 bytes.
    std::string tenant;  // The tenant of all its namespaces.
    std::string client;  // For the node's logs.
    // The epoch of the node that named the socket: another one behind it is refused.
    uint64_t node_epoch = 0;
    Duration spin{-1};                             // < 0: as shm::SpinTime chooses.
    std::shared_ptr<DeviceImporter> devices = {};  // Null: places lie in segments alone.
  };
  // UNAVAILABLE: nobody listens. DATA_LOSS: the node breaks the protocol. FAILED_PRECONDITION: it
  // is another node. Any other error is the node's refusal.
  // `clock` must outlive the session.
  static Result<std::shared_ptr<LocalSession>> Open(const Options& options, const Clock* clock,
                                                    TimePoint deadline);

  // As CacheClient::Match. Sets `pin` if the answer has a lease, and does not set the lease in the
  // outcome.
  struct Matched {
    MatchOutcome outcome = {};
    std::shared_ptr<LeasePin> pin = {};
  };
  Result<Matched> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                        const MatchOptions& options, TimePoint deadline);
  // A match over the pools of options.joint. Its lease knows no places yet.
  Result<Matched> MatchPools(const Digest& fingerprint, std::span<const BlockKey> keys,
                             const MatchOptions& options, TimePoint deadline);
  Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                      std::span<const BlockKey> keys,
                                                      TimePoint deadline);
  Status Renew(uint64_t lease, TimePoint deadline);

  // Where the parts of blocks [begin, end) lie now; `wait`: for blocks on their way from disk.
  // `located` blocks are answered, at least 1.
  struct Located {
    std::vector<shm::PlaceEntry> places = {};
    uint32_t located = 0;
  };
  Result<Located> Locate(uint64_t lease, uint32_t begin, uint32_t end, Duration wait,
                         TimePoint deadline);

  // One room per part, in order.
  Result<std::vector<Room>> Reserve(const Digest& fingerprint, std::span<const PartToWrite> parts,
                                    TimePoint deadline);
  // One status per reservation, in order.
  Result<std::vector<Status>> Commit(std::span<const uint64_t> reservations, TimePoint deadline);

  // Without waiting. An id that finds no room in the ring goes with the call that takes the room,
  // or the next one.
  void Release(uint64_t lease);
  void Abort(std::span<const uint64_t> reservations);
  // The block's bytes failed their hash here.
  void Report(uint64_t lease, uint32_t block);

  // The segment of a place, its bytes checked to lie in it. DATA_LOSS.
  Result<std::shared_ptr<const ArenaSegment>> SegmentOf(const shm::PlaceEntry& place);

  // The chunk of a place on a GPU, its bytes checked to lie in it. Null: this process could not
  // import the chunk. DATA_LOSS.
  Result<std::shared_ptr<const DeviceChunk>> ChunkOf(const shm::PlaceEntry& place);
  // False after the node has ended the session. Looks at the socket.
  bool Alive() { return channel_->Poll(); }
  Status broken() const { return channel_->broken(); }
  // Makes every call UNAVAILABLE. The socket stays open while something is lent.
  void Close();
  uint32_t max_part_bytes() const { return welcome_.max_part_bytes; }
  // The clock that measures deadlines of its calls.
  const Clock& clock() const { return *clock_; }

 private:
  explicit LocalSession(const Clock* clock) : clock_(clock) {}
  Status OnMessage(shm::Received message);
  Status OnChunks(const shm::Received& received);
  Result<std::shared_ptr<const ArenaSegment>> FindSegment(uint32_t id);
  // For a match whose caller has left: its lease is given back.
  std::function<void(const shm::Completion&, std::span<const std::byte>)> UndoOfLease();
  // One call, and what waits to be given back before and after it.
  Result<RingChannel::Answer> Run(const RingChannel::Request& request, TimePoint deadline);
  // Sends what waits to be given back, as far as there is room.
  void GiveBack();
  // The ids that wait for kRelease, or for kAbort.
  std::vector<uint64_t>& Owed(shm::Op op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return op == shm::Op::kRelease ? leases_ : reservations_;
  }

  const Clock* const clock_;
  shm::Welcome welcome_;
  ArenaMap segments_;
  std::unique_ptr<RingChannel> channel_;
  // Unmapped before the channel hangs up: the node gives chunks to others after that. nullopt: the
  // client said no Devices.
  std::optional<ChunkMap> chunks_;

  std::atomic<uint32_t> calls_{0};
  std::atomic<bool> owes_{false};  // Something below is not empty. A hint.
  Mutex mu_;
  std::vector<uint64_t> leases_ ABSL_GUARDED_BY(mu_);        // To be given back.
  std::vector<uint64_t> reservations_ ABSL_GUARDED_BY(mu_);  // The same.
};

}  // namespace cairn::client::local
