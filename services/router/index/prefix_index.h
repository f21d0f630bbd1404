#pragma once
// Which cache node holds how much of a prompt, from the events of the nodes; and what was sent to
// workers whose node sends no events.
//
//   client::ClusterEvents ── MemberEvent ──► Apply ─┐
//   what the router sent ─────────────────► Sent ───┼─► Lookup: how much of a prompt, and where
//                                                   │
//                     evicts what was used least recently at max_bytes
//
// Models with windows or states in some layers can go on behind a block only if the holder has
// these layers' last blocks before it, too (docs/inside/formats/pools.md).
//
// One entry for each key, with a bit for each place that holds the block: a member's memory, its
// disk. Entries lie in one list in the order of their last use, a block behind the one that it
// builds on, so a prompt's last blocks leave before its first ones. Entries that were lost (of a
// member, of a namespace, or because a snapshot no longer has them) are gone from all answers at
// once; later calls sweep them a few at a time, so that no call takes long.
//
// The table knows 64 bits of a keyed hash (SipHash) of each key: an answer is wrong with a chance
// of entries / 2^64, and nobody can choose keys that collide. A wrong answer costs time only.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/client/cluster_events.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/tier_kind.h"

namespace cairn::router {

// A holder of the beginning of a prompt.
struct Holder {
  std::string id = {};  // The id of the node, or the address of the worker (approximate).
  // Derived from requests that were sent to a worker, not from a node's events.
  bool approximate = false;
  // Blocks that it holds without a gap from the first one on, so that it can go on behind them. At
  // least 1.
  uint32_t blocks = 0;
  // How many of them are in memory (host or device); the others are on disk.
  uint32_t memory_blocks = 0;
  // The `blocks` by where they are; a block may be in several places. Only LookupTiers fills it,
  // and not for approximate holders: blocks that were sent to a worker are in its own memory.
  ByTier<uint32_t> tier_blocks = {};
};

struct HeldPrefix {
  std::vector<Holder> holders = {};  // Most blocks first.
  uint32_t any_blocks = 0;  // From the first one on, each held by some node. Not by workers alone.
};

// Thread-safe: one mutex. A lookup holds it for as long as it takes (docs/operate/router.md).
class PrefixIndex {
 public:
  struct Options {
    // Limit for the memory of the whole index. At most so much, whatever the nodes send. It is
    // taken as it is used.
    size_t max_bytes = size_t{256} << 20;
    // How many blocks a worker without events is believed to hold. At least the last half of these
    // count, of all blocks that were sent to it, and at most all of these.
    uint32_t sent_blocks = 65'536;
  };

  explicit PrefixIndex(const Options& options);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Events that make no sense are ignored and counted.
  //
  // With `tail_blocks` the event is about layers that need only this number of blocks before a
  // prompt's end: a window, or a state. Their tier is not looked at. As soon as a holder has such
  // an event, its answers end where it has these, too. Up to 4 numbers for each holder.
  void Apply(const client::MemberEvent& event, uint32_t tail_blocks = 0);

  // The worker, whose node sends no events, was sent a prompt with these keys, in order.
  void Sent(std::string_view worker, const Digest& fingerprint, std::span<const BlockKey> keys);
  // The worker has restarted, or has gone.
  void Forget(std::string_view worker);

  // The holders of a prompt with these keys, in order. Counts as a use.
  HeldPrefix Lookup(const Digest& fingerprint, std::span<const BlockKey> keys);
  // The same with Holder::tier_blocks, which takes longer.
  HeldPrefix LookupTiers(const Digest& fingerprint, std::span<const BlockKey> keys);

  // A node that holds something or is followed.
  bool KnowsNode(std::string_view id) const;

  struct Numbers {
    uint64_t entries = 0;  // Blocks, each once however many hold it. Those to be swept included.
    uint64_t bytes = 0;    // Memory of the entries.
    uint64_t max_bytes = 0;
    uint64_t evicted = 0;  // Entries that left for others since the start.
    uint64_t ignored = 0;  // Events that made no sense, or for which there was no room.
    uint64_t members = 0;  // Nodes that hold something or are followed.
    uint64_t workers = 0;  // Workers among the approximate holders.
    uint64_t namespaces = 0;
  };
  Numbers numbers() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::router
