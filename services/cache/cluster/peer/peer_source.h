#pragma once
// Blocks that other members of the cluster hold.
//
//   Locate   members that are known to have the first key, if any ─► their Match
//            ─► for what is left the directory (holder_search.h) ─► the best holder's Match says
//            how far it reaches ─► the next one's from there on
//   Read     the block from the member that Locate named; the next one if it fails or falls silent.
//            A member may lend it instead, and a GPU of this node fetches it (block_moves.h)
//
// The directory only gives a hint: only a Match of the holder counts.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/concurrency/timers.h"
#include "services/cache/cluster/peer/holder_search.h"
#include "services/cache/cluster/peer/plan_table.h"

namespace cairn::cache {

// Thread-safe.
class PeerSource final : public BlockSource {
 public:
  struct Options {
    std::string self = {};  // The id of this member.
    // For all look-ups of one Locate, at most seven eighths of what its caller has left. A member
    // that has so much time for one answer, and gives none, has failed, whatever the caller has.
    Duration lookup_deadline = std::chrono::milliseconds(15);
    // How long a read may be silent until another holder is asked.
    Duration silence = std::chrono::milliseconds(250);
    Duration busy_pause = std::chrono::milliseconds(5);
    // After members changed, both owners are asked.
    Duration settling = std::chrono::seconds(30);
    Duration wrong_pause = PeerHealth::kWrongPause;  // The pause of a member that sent wrong bytes.
    size_t max_holders = 3;  // Holders that one Locate asks for a Match, and one Read for a block.
    size_t remembered_blocks = 262'144;
  };
  // The state of a namespace at this node.
  struct Known {
    uint32_t block_tokens = 0;  // 0: it does not know the namespace.
    uint64_t bumps_digest = 0;
  };
  struct Dependencies {
    PeerLinks* links = nullptr;
    const Directory* directory = nullptr;  // This member's own part.
    std::function<Known(const Digest& fingerprint)> known;
    // Told of a member that knows other bumps of a namespace. Short.
    std::function<void(const std::string& member)> bumps_differ = [](const std::string&) {};
    Timers* timers = nullptr;
    const Clock* clock = nullptr;
    BlockFetcher* fetcher = nullptr;  // nullptr: blocks come as streams alone.
  };
  // All must outlive it. `links` and `fetcher` let go of its callbacks before it is destroyed.
  PeerSource(Options options, Dependencies dependencies);

  // As HolderSearch's.
  void SetOwners(std::shared_ptr<const OwnerMap> owners) { search_.SetOwners(std::move(owners)); }

  void Locate(const Digest& fingerprint, std::span<const BlockKey> keys, TimePoint deadline,
              LocateDone done) override;
  void LocateAt(const Digest& fingerprint, std::span<const BlockKey> keys,
                std::span<const std::string> holders, TimePoint deadline, const std::string& trace,
                LocateDone done) override;
  void Read(const Digest& fingerprint, const BlockKey& key, TimePoint deadline, BlockSink* sink,
            ReadDone done) override;

  // The memory for its records.
  uint64_t bytes() const { return plans_.bytes() + search_.health().bytes(); }
  const PeerHealth& health() const { return search_.health(); }
  // A member has come, or come back: what failed before says nothing.
  void Renew(const std::string& member) { search_.health().Renew(member); }
  // For others that look for holders, and that call members.
  HolderSearch& search() { return search_; }
  // Totals since start.
  struct Counts {
    uint64_t found_blocks = 0;  // Blocks that Locate told.
    uint64_t read_blocks = 0, read_bytes = 0;
    uint64_t failed_reads = 0;  // Blocks.
    uint64_t wrong_reads = 0;   // Times that a member sent wrong bytes.
    uint64_t busy_answers = 0;
    // The blocks and bytes of these reads that came from GPU to GPU. Failed moves: blocks that were
    // lent, but had to be streamed; wrong moves: those of them that came with wrong bytes.
    uint64_t moved_blocks = 0, moved_bytes = 0, failed_moves = 0, wrong_moves = 0;
  };
  Counts counts() const {
    return {.found_blocks = found_blocks_.load(),
            .read_blocks = read_blocks_.load(),
            .read_bytes = read_bytes_.load(),
            .failed_reads = failed_reads_.load(),
            .wrong_reads = wrong_reads_.load(),
            .busy_answers = busy_answers_.load(),
            .moved_blocks = moved_blocks_.load(),
            .moved_bytes = moved_bytes_.load(),
            .failed_moves = failed_moves_.load(),
            .wrong_moves = wrong_moves_.load()};
  }

 private:
  class Lookup;
  class BlockRead;

  // A member sent bytes that are not those of the block.
  void NoteWrong(const std::string& member, const Status& status);

  const Options options_;
  const Dependencies dependencies_;
  PeerLinks& links_;
  Timers& timers_;
  const Clock& clock_;
  HolderSearch search_;
  PlanTable plans_;
  std::atomic<uint64_t> found_blocks_{0}, read_blocks_{0}, read_bytes_{0}, failed_reads_{0},
      wrong_reads_{0}, busy_answers_{0}, moved_blocks_{0}, moved_bytes_{0}, failed_moves_{0},
      wrong_moves_{0};
};

}  // namespace cairn::cache
