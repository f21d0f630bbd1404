#pragma once
// The shares of bytes that wait for their copy to a slower tier. Such bytes are not
// evicted, so without a bound a fast writer fills its room with them, and then nobody stores
// anything there until the disk is done.
//
// A room is the memory that blocks share: the segments of one owner, or the common ones. At most
// half of each room may wait, and a tenant may have as many bytes of that half as are left for
// others: one greedy tenant takes a quarter of the room, n leave 1/(n+1) of the half. A tenant that
// reaches its share gets nothing more until it has fallen to two thirds of it. So blocks that are
// evicted in between lie in long runs, in which larger blocks of others find room.
//
// The rule is that of FairBudget. It is no such budget, because the room grows and shrinks, the
// first block of a tenant passes also if nothing is left, and nobody waits: what finds no room is
// copied when there is time.
//
// Thread-compatible.

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/memory/fair_budget.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {

class WaitingShares {
 public:
  // The bytes of one block; `bytes` 0: none.
  struct Share {
    OwnerId room = kCommon;
    uint64_t bytes = 0;
  };

  // False: the tenant has its share of the room, which has `room_bytes` now. A tenant always gets
  // its first request, or the copy of a large block would never be waited for.
  bool Take(const Share& share, const std::string& tenant, uint64_t room_bytes) {
    Room& room = rooms_[share.room];
    Tenant& own = room.by_tenant[tenant];
    const uint64_t limit = room_bytes / 2;
    const uint64_t left = limit - std::min(limit, room.bytes);
    own.full = FairBudget::HasItsShare(own.bytes, share.bytes, own.full ? left / 2 : left);
    if (own.full) return false;
    own.bytes += share.bytes;
    room.bytes += share.bytes;
    return true;
  }
  void GiveBack(const Share& share, const std::string& tenant) {
    if (share.bytes == 0) return;
    Room& room = rooms_.at(share.room);
    room.bytes -= share.bytes;
    const auto own = room.by_tenant.find(tenant);
    if ((own->second.bytes -= share.bytes) == 0) room.by_tenant.erase(own);
    if (room.bytes == 0) rooms_.erase(share.room);
  }
  uint64_t bytes(OwnerId room) const {
    const auto it = rooms_.find(room);
    return it == rooms_.end() ? 0 : it->second.bytes;
  }
  size_t rooms() const { return rooms_.size(); }

 private:
  struct Tenant {
    uint64_t bytes = 0;
    bool full = false;  // It has reached its share.
  };
  struct Room {
    uint64_t bytes = 0;
    absl::flat_hash_map<std::string, Tenant> by_tenant;  // Those with some.
  };
  absl::flat_hash_map<OwnerId, Room> rooms_;  // Those with some.
};

}  // namespace cairn::cache
