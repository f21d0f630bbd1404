#pragma once
// Which block leaves a tier first. A policy only ranks; the index keeps the order leaf first and
// respects pins.

#include <cstdint>

namespace cairn::cache {

// What a policy may look at.
struct BlockUse {
  uint32_t last_use = 0;        // UseTicks of the last match or store.
  uint16_t uses = 0;            // Matches since the block was stored; saturates.
  uint32_t bytes = 0;           // All parts.
  float recompute_seconds = 0;  // As the writer measured it; 0 if unknown.
};

// Thread-safe: const and without state.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The lowest rank goes first. ENSURES: a use never lowers a block's rank. The heaps depend on
  // this, because they keep old ranks as lower bounds.
  virtual uint64_t Rank(const BlockUse& use) const = 0;
};

// Least recently used first.
class LruPolicy final : public EvictionPolicy {
 public:
  uint64_t Rank(const BlockUse& use) const override { return use.last_use; }
};

}  // namespace cairn::cache
