#pragma once
// The room that fetches take of the node's memory for their records of blocks (kFetchHeaders),
// shared out so that a fetch that has begun always goes on:
//
//   0                 1/2                3/4                 bound
//   ├─ further blocks ─┤                  │                    │
//   ├─ new fetches ───────────────────────┤                    │
//   └─ the first block of a window ────────────────────────────┘
//
// Fetches that began leave a quarter free, and what windows hold comes back when they are sent. So
// the first block of a window, which has at most a quarter, finds room in the end, whatever others
// began.

#include <algorithm>
#include <cstdint>

#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

// For a new fetch. RESOURCE_EXHAUSTED, which names fetch_headers: there is no room now.
inline Result<MemoryCharge> ChargeFetch(MemoryAccount* account, uint64_t bytes) {
  return account->Charge(MemoryItem::kFetchHeaders, bytes,
                         account->bound(MemoryItem::kFetchHeaders) / 4);
}

// The room of the slots of a window. Not thread-safe.
class WindowRoom {
 public:
  // `floor` bytes are charged already, for this window alone.
  WindowRoom(MemoryAccount* account, uint64_t floor)
      : account_(account), bound_(account->bound(MemoryItem::kFetchHeaders)), floor_(floor) {}

  enum class Took : uint8_t {
    kTaken,
    kFull,   // Not now. The window ends here; if it has no block yet, it waits for others.
    kNever,  // No block of the size is ever taken.
  };
  // For one block more.
  Took Take(uint64_t bytes);
  // The window's blocks take no more than this from now on.
  void ShrinkTo(uint64_t bytes);
  uint64_t used() const { return used_; }
  // Others have less because of it.
  bool holds_charge() const { return charge_.bytes() > 0; }

 private:
  MemoryAccount* account_;
  uint64_t bound_;
  uint64_t floor_;
  uint64_t used_ = 0;
  MemoryCharge charge_;  // The charge of all room above the floor.
};

}  // namespace cairn::cache
