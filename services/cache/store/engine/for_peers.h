#pragma once
// The engine's interface for other members of a cluster: blocks as they are stored, and the bumps
// that decide who may serve whom.
//
// Thread-safe. Errors as CacheEngine's.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/source/block_source.h"
#include "services/cache/store/source/device_block.h"
#include "services/cache/store/state/bump.h"

namespace cairn::cache {

// A block as it is stored: one span for each of `parts`, which stay valid as long as `hold`. The
// headers of the parts are checked, their slices are not: the reader compares them with their
// hashes.
struct StoredBlock : SourceBlock {
  std::vector<std::span<const std::byte>> bytes;
  std::shared_ptr<const void> hold;
};

// Not thread-safe: belongs to one reader. Destroying it ends the read.
class StoredBlockRead {
 public:
  virtual ~StoredBlockRead() = default;
  // Waits until the block can be read, never longer than until `deadline` on the engine's clock;
  // then DEADLINE_EXCEEDED, and Next may be called again. Once it has returned a block it is not
  // called again. NOT_FOUND: no tier has it. DATA_LOSS: it was damaged. RESOURCE_EXHAUSTED: there
  // is no room to read it.
  virtual Result<StoredBlock> Next(TimePoint deadline) = 0;
  // Where the block lies in the device tier, whatever other tiers have it. nullopt: it is not
  // there. Before Next, if at all. Nothing of it is checked: the reader compares with its hashes.
  virtual std::optional<DeviceBlock> OnDevice() { return std::nullopt; }
};

class PeerEngine {
 public:
  virtual ~PeerEngine() = default;

  // A block from the node's own tiers; a source is never asked. NOT_FOUND: the namespace or the
  // block is not here.
  virtual Result<std::unique_ptr<StoredBlockRead>> ReadStored(const Fingerprint& fingerprint,
                                                              const BlockKey& key) = 0;

  // Equal on two members if and only if (but for collisions) they know the same bumps of the
  // namespace, or of all. 0: none. While a bump hides a namespace, the namespace's digest is one
  // that no other member has. So what is read from a namespace belongs to the digest that the
  // namespace had both before and after; a copy belongs to the digest that it was asked for with.
  virtual uint64_t BumpsDigestOf(const Fingerprint& fingerprint) const = 0;
  virtual uint64_t BumpsDigest() const = 0;
  // A page of the bumps that are known, in an order that changes only at its end while none is
  // forgotten.
  virtual BumpPage Bumps(uint64_t begin, size_t most) const = 0;
  // Takes over those that are not known: hides what the namespaces have, and remembers the bumps.
  // Blocks: both are on disk, if there is one, when it returns OK. Returns how many were new. After
  // an error none of them is known, though some namespaces may have been hidden: ask again.
  // RESOURCE_EXHAUSTED: there is no memory to remember them. INVALID_ARGUMENT: more than
  // BumpPage::kMost.
  virtual Result<size_t> TakeOverBumps(std::span<const Bump> bumps) = 0;
};

}  // namespace cairn::cache
