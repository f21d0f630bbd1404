#pragma once
// Calls to other members of the cluster, as an injected dependency.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "services/cache/cluster/directory/directory.h"
#include "services/cache/cluster/peer/block_moves.h"
#include "services/cache/cluster/peer/peer_health.h"
#include "services/cache/cluster/peer/peer_messages.h"
#include "services/cache/store/source/block_source.h"
#include "services/cache/store/state/bump.h"

namespace cairn::cache {

struct FoundHolders {
  std::vector<std::vector<Holder>> holders;  // By waymark, in the order of the question.
  bool young = false;                        // The owner may not know all yet.
};

// A namespace as a call names it.
struct PeerNamespace {
  Digest fingerprint;
  uint64_t bumps_digest = 0;  // The digest of the bumps that the caller knows.
};

// The blocks that a member has in its own tiers, of the keys that it was asked for: the first ones.
struct PeerMatch {
  uint32_t blocks = 0;
  uint64_t bytes = 0;
  double seconds = 0;  // Until the last byte could be on its way.
  // The part of `blocks` and `bytes` that is in memory. The others are on disk.
  uint32_t memory_blocks = 0;
  uint64_t memory_bytes = 0;
};

// Whether a Match keeps the blocks that it told for a few seconds.
enum class PeerLease : uint8_t { kTake, kNone };

// How a member may give a block: as a stream alone, or by lending it too (block_moves.h).
enum class PeerBytes : uint8_t { kStreamed, kMayBeLent };

// The answer to a read, in addition to its status.
struct PeerReadAnswer {
  static constexpr size_t kMostOthers = 4;
  // If the member is busy: the members that have just taken the block from it, as it says. At
  // most kMostOthers.
  std::vector<std::string> others = {};
  // DEADLINE_EXCEEDED because no byte came for `silence`. Otherwise the deadline was too early for
  // what came, and the member may be as well as ever.
  bool silent = false;
  // The member has lent the block: nothing came into the sink.
  std::optional<LentBlock> lent = {};
};

// Thread-safe. As BlockSource: no call blocks, each callback runs at most once, on any thread,
// possibly inside the call, and links that go away destroy the callbacks that they have not run.
// Errors: UNAVAILABLE: the member cannot be reached. DEADLINE_EXCEEDED: it did not answer in time.
//
// Calls on behalf of a client take a Patience, which only a member gets (peer_health.h).
class PeerLinks {
 public:
  using HelloDone = std::function<void(Result<PeerHelloAnswer>)>;
  using AnnounceDone = std::function<void(Status)>;
  using BumpsDone = std::function<void(Result<BumpPage>)>;
  using FindDone = std::function<void(Result<FoundHolders>)>;
  using MatchDone = std::function<void(Result<PeerMatch>)>;
  using ReadDone = std::function<void(Status status, PeerReadAnswer answer)>;

  virtual ~PeerLinks() = default;

  // Where members listen, by id. Calls to others fail with UNAVAILABLE.
  virtual void SetAddresses(const std::map<std::string, std::string>& addresses) = 0;

  // Who is there? `address`: "host:port".
  virtual void Hello(const std::string& address, const PeerHello& hello, TimePoint deadline,
                     HelloDone done) = 0;
  // Errors as Directory::Apply.
  virtual void Announce(const std::string& member, const Announcement& message, TimePoint deadline,
                        AnnounceDone done) = 0;
  // Tells the member bumps, and brings a page of its own.
  virtual void ExchangeBumps(const std::string& member, const BumpPage& page, TimePoint deadline,
                             BumpsDone done) = 0;
  // Asks an owner who holds these waymarks.
  virtual void Find(const std::string& member, const std::vector<WaymarkHash>& waymarks,
                    const Patience& patience, FindDone done) = 0;
  // `keys` are valid until `done` has run or is destroyed. FAILED_PRECONDITION: the member knows
  // other bumps of the namespace.
  virtual void Match(const std::string& member, const PeerNamespace& ns,
                     std::span<const BlockKey> keys, PeerLease lease, const Patience& patience,
                     MatchDone done) = 0;
  // As BlockSource::Read. DEADLINE_EXCEEDED also when no byte came for `silence`, which the answer
  // then says. DATA_LOSS: what came is not the block; a member that says itself that its copy is
  // damaged has none, NOT_FOUND.
  virtual void Read(const std::string& member, const PeerNamespace& ns, const BlockKey& key,
                    PeerBytes bytes, const Patience& patience, Duration silence, BlockSink* sink,
                    ReadDone done) = 0;
};

}  // namespace cairn::cache
