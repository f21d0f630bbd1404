#pragma once
// One same-node session: takes descriptors out of its ring, asks the engine, writes answers back.
//
// The server's thread owns it. Not thread-safe. It knows no socket: segments go out through
// ArenaSegmentSender. Whatever a client writes into its ring, it can at worst end this session
// (docs/inside/formats/local.md).

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/concurrency/executor.h"
#include "protocol/shm/decode.h"
#include "protocol/shm/ring.h"
#include "services/cache/serve/local/late_match.h"
#include "services/cache/serve/local/local_stats.h"
#include "services/cache/serve/local/session_chunks.h"
#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/state/memory_account.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {

// Sends a segment's descriptor to the client. RESOURCE_EXHAUSTED: the client does not read its
// socket.
class ArenaSegmentSender {
 public:
  virtual ~ArenaSegmentSender() = default;
  virtual Status SendSegments(const shm::Segments& message, std::span<const int> descriptors) = 0;
  // The same for chunks of devices.
  virtual Status SendChunks(const shm::Chunks& message, std::span<const int> descriptors) = 0;
};

// Told of answers. Called on the server's thread.
class LocalObserver {
 public:
  virtual ~LocalObserver() = default;
  // A call was answered so long after it was taken out of its ring.
  virtual void OnAnswer(shm::Op op, Duration took) = 0;
  virtual void OnMatch(const MatchResult& result, size_t asked, uint32_t block_tokens) = 0;
  // The same of a match over pools, whose keys stand for `asked_tokens`.
  virtual void OnMatchPools(const MatchResult& result, const JointQuestion& question,
                            uint64_t asked_tokens) = 0;
};

// Working memory of the server's thread, which its sessions share. It grows to the size of the
// largest call.
struct LocalBuffers {
  std::vector<BlockKey> keys;
  std::vector<std::optional<TierKind>> tiers;
  std::vector<uint8_t> codes;
  std::vector<uint64_t> ids;
  std::vector<PlacedPart> placed;
  std::vector<shm::PlaceEntry> places;
  std::vector<shm::ReserveEntry> entries;
  std::vector<ReservePartRequest> parts;
  std::vector<shm::Grant> grants;
};

struct LocalServerSessionOptions {
  SessionId session = 0;  // The session of the engine.
  OwnerId owner = kCommon;
  std::string tenant;
  bool may_write = true;
  uint64_t quota_bytes = 0;  // Leased and reserved bytes together. At most half of it reserved.
};

class LocalServerSession {
 public:
  // A match over pools looks at the blocks of all its pools, and one of more keys would hold the
  // server's thread for milliseconds.
  static constexpr size_t kPoolKeysHere = 8192;

  struct Services {
    CacheEngine* engine = nullptr;  // With an in-place side.
    HostTier* host = nullptr;
    const Clock* clock = nullptr;
    LocalStats* stats = nullptr;
    LocalBuffers* buffers = nullptr;
    LocalObserver* observer = nullptr;  // Or none.
    DeviceTier* devices = nullptr;      // Or none.
    LeftChunks* left = nullptr;         // With devices.
    // Looks at many keys, one call of a session at a time. The engine outlives its tasks. nullptr:
    // the server's thread does.
    Executor* executor = nullptr;
    MemoryAccount* memory = nullptr;  // These keys are charged to it. Or none.
  };

  LocalServerSession(const Services& services, LocalServerSessionOptions options,
                     shm::NodeRing ring, ArenaSegmentSender* sink);
  // Releases what the session holds.
  ~LocalServerSession();
  LocalServerSession(const LocalServerSession&) = delete;
  LocalServerSession& operator=(const LocalServerSession&) = delete;

  // Serves at most `max` descriptors. False: the ring holds something that is not valid. Then `why`
  // says what, and Serve must not be called again.
  bool Serve(int max, Status* why);
  // True when the last Serve served some descriptors, or some are waiting.
  bool busy() const { return busy_; }
  // Looks again for what descriptors wait for: answers of a source, and at most `max` times for
  // blocks that are due for a look. Returns how often it looked for blocks. Call it at next_look().
  //
  // A look walks the lease's blocks under the lock of their namespace. So each call is looked at
  // after 1/8 of the time that it has waited already: about a hundred looks in a minute, and an
  // answer that comes at most 1/8 late.
  size_t RetryWaiting(size_t max = SIZE_MAX);
  bool has_waiting() const { return !waiting_.empty() || !waiting_matches_.empty(); }
  // When RetryWaiting has something to do; TimePoint::max(): nothing waits.
  TimePoint next_look() const;

  // The client can import memory of these GPUs: from now on it gets places there. Once.
  // `process`: of the client, as shm::PeerProcess.
  void CanImport(std::span<const std::string> uuids, shm::Descriptor process);
  // Sends what the owner has now. For the beginning.
  void SendAllSegments();
  // Returns, and forgets, the ids of segments that were sent and whose memory is gone.
  std::vector<uint32_t> TakeGone();

  shm::NodeRing& ring() { return ring_; }
  uint64_t held_bytes() const { return leased_bytes_ + reserved_bytes_; }

 private:
  struct HeldLease {
    uint64_t bytes = 0;
    // The blocks that were counted as read, if some of its blocks were pending.
    std::vector<bool> told = {};
  };
  struct Waiting {
    uint64_t cookie = 0;
    shm::DecodedSubmission call;
    TimePoint since;
    TimePoint deadline;
    TimePoint next_look = {};
  };

  // `taken`: when it was taken out of the ring.
  Status Run(const shm::DecodedSubmission& call, uint64_t cookie, TimePoint taken,
             shm::Completion* done, bool* wait);
  // A match that asks a source, or the executor.
  struct WaitingMatch {
    uint64_t cookie = 0;
    shm::DecodedSubmission call;
    TimePoint since;
    uint32_t block_tokens = 0;
    std::optional<LeaseId> lease;       // On the blocks that are here.
    std::shared_ptr<LateMatch> answer;  // nullptr: it waits for another one of this session.
    std::optional<JointQuestion> question = {};  // For a match over pools.
  };

  // `wait`: set when it asks a source and is answered by RetryWaiting.
  Status Match(const shm::DecodedSubmission& call, uint64_t cookie, TimePoint taken,
               shm::Completion* done, bool* wait);
  // The tiers alone are asked. `wait`: set when it has many keys and is answered by RetryWaiting.
  Status MatchPools(const shm::DecodedSubmission& call, uint64_t cookie, TimePoint taken,
                    shm::Completion* done, bool* wait);
  void CopyPoolKeys(const shm::DecodedSubmission& call, std::vector<BlockKey>* keys);
  MatchRequest PoolsRequest(const shm::DecodedSubmission& call, const JointQuestion& question,
                            std::span<const BlockKey> keys) const;
  // Hands it to the executor. RESOURCE_EXHAUSTED: too much waits there, or sessions take too much.
  Status BeginPools(WaitingMatch* waiting);
  // Writes the answer, and keeps its lease.
  Status AnswerPools(const shm::DecodedSubmission& call, const JointQuestion& question,
                     uint32_t unit_tokens, const MatchResult& match, shm::Completion* done);
  // The lease of a match is the session's now. RESOURCE_EXHAUSTED: it holds too much; the lease is
  // given back.
  Status KeepLease(const MatchResult& match);
  // Writes the answer. buffers.placed has the places, if they are wanted.
  void AnswerMatch(const shm::DecodedSubmission& call, const MatchResult& match,
                   uint32_t block_tokens, shm::Completion* done);
  Status AnswerLate(const WaitingMatch& waiting, const Result<MatchResult>& match,
                    shm::Completion* done);
  void AnswerMatches();
  static TimePoint NextLook(const Waiting& call, TimePoint now);
  static bool WantsPlaces(const shm::DecodedSubmission& call) {
    return (call.flags & shm::kNoLease) == 0 && (call.flags & shm::kPlaces) != 0;
  }
  // One more than the output has room for: it tells at which block the room ends.
  static size_t MostPlaces(const shm::DecodedSubmission& call) { return size_t{call.capacity} + 1; }
  Status Exists(const shm::DecodedSubmission& call, shm::Completion* done);
  // `wait`: false when it must be answered now; set to whether it should be tried again.
  Status Locate(const shm::DecodedSubmission& call, shm::Completion* done, bool* wait);
  Status Release(const shm::DecodedSubmission& call);
  Status Reserve(const shm::DecodedSubmission& call, shm::Completion* done);
  Status Commit(const shm::DecodedSubmission& call, shm::Completion* done);
  Status Abort(const shm::DecodedSubmission& call);
  // Writes the answer to a call that was taken at `since`. Returns the time.
  TimePoint Finish(const shm::DecodedSubmission& call, TimePoint since, const Status& status,
                   shm::Completion* done);

  // Tokens of a block. PERMISSION_DENIED for another tenant's namespace.
  Result<uint32_t> CheckTenant(const Fingerprint& fingerprint);
  // Writes buffers.placed as places of the lease, as far as the output reaches.
  void WritePlaces(const shm::DecodedSubmission& call, LeaseId lease, shm::Completion* done);
  // Counts the bytes behind `places`, which the client reads now; `told`: of its lease. A client
  // asks again for a range in which blocks are pending, and gets the places of the others again.
  void CountRead(std::span<const shm::PlaceEntry> places, std::vector<bool>* told);
  // The client can see the segment, or will before it reads the answer.
  bool Expose(const HostTier::Place& place);
  // Fills in the segment and the offset. False: the client cannot see it.
  bool PlaceInHost(const PlacedPart& placed, shm::PlaceEntry* place);
  bool PlaceOnDevice(const PlacedPart& placed, shm::PlaceEntry* place);
  const DeviceReach* reach() const { return chunks_ == nullptr ? nullptr : chunks_.get(); }
  // False: it is not of this path.
  bool ForgetLease(LeaseId id);
  // NOT_FOUND unless the lease is of this path. Only those have no deadline: bytes that a lease
  // over gRPC pins may become another block's while a client still reads them in place.
  Status CheckLease(LeaseId id) const;
  std::span<const uint64_t> CopyIds(const shm::DecodedSubmission& call);

  const Services services_;
  InPlaceEngine& in_place_;
  const LocalServerSessionOptions options_;
  shm::NodeRing ring_;
  ArenaSegmentSender& sink_;
  bool busy_ = false;
  absl::flat_hash_map<LeaseId, HeldLease> leases_;
  absl::flat_hash_map<ReservationId, uint64_t> reservations_;
  uint64_t leased_bytes_ = 0;
  uint64_t reserved_bytes_ = 0;
  // Known to be the tenant's; tokens of a block.
  absl::flat_hash_map<Fingerprint, uint32_t> own_namespaces_;
  std::vector<uint32_t> exposed_;          // By segment index: id that was sent, or 0.
  std::unique_ptr<SessionChunks> chunks_;  // nullptr: the client imports nothing.
  std::deque<Waiting> waiting_;
  std::deque<WaitingMatch> waiting_matches_;
  bool pools_under_way_ = false;  // One of waiting_matches_ is with the executor.
  TimePoint matches_looked_;      // At waiting_matches_, last.
};

}  // namespace cairn::cache
