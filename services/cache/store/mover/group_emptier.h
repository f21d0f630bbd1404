#pragma once
// Empties a group of extents of a tier that is divided among tenants (a chunk of a device), so that
// a tenant with less than its share gets it. The blocks there are evicted; nothing is moved.
//
// A group is emptied only if everything in it may go: nothing leased, dirty, or on its way. At most
// one try in a second, because a try looks at all blocks of the tenant that has the group.
// Thread-safe.

#include <atomic>
#include <string>
#include <vector>

#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class GroupEmptier {
 public:
  GroupEmptier(NodeContext* context, Evictor* evictor) : context_(*context), evictor_(*evictor) {}

  // True: a group is empty now, unless somebody was faster.
  bool EmptyFor(TierKind tier, const std::string& tenant);

 private:
  struct Found {
    NamespacePtr ns;
    BlockKey key;
  };
  // The blocks in the group. False: some of them have to stay.
  bool BlocksIn(TierKind tier, const TenantGroup& group, std::vector<Found>* found);
  bool Evict(TierKind tier, const TenantGroup& group, const Found& found);

  NodeContext& context_;
  Evictor& evictor_;
  std::atomic<bool> busy_{false};
  std::atomic<TimePoint> next_try_{};
};

}  // namespace cairn::cache
