#pragma once
// Opens, lists and drops namespaces. Thread-safe.
//
// A namespace without blocks is worth nothing: its record is written with its first block, and when
// namespaces run out, in number or in memory, the ones that were not used for longest are given
// back. Clients open a namespace again that the node does not know.
//
// A namespace's record on disk carries its generation, and so does every block's. A drop writes the
// next generation first of all: blocks of an older one are never shown again, whatever is still to
// be reclaimed.
//
// Each drop and each new epoch is a bump with an id of its own, which the node remembers and tells
// to other members (../state/bump_log.h). Those of other members hide what is here in the same way.
// One after the other:
//
//   the digest is nobody's ─► hidden in memory ─► hidden on disk ─► bump on disk ─► bump known
//
// A node that dies in between does not know the bump, and hides once more when it hears of it.

#include <functional>
#include <span>

#include "services/cache/store/engine/bump_records.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/engine/read_path.h"
#include "services/cache/store/engine/reclaimer.h"
#include "services/cache/store/engine/write_path.h"
#include "services/cache/store/lease/session_table.h"
#include "services/cache/store/mover/write_back.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class NamespaceAdmin {
 public:
  struct Services {
    NodeContext* context;
    SessionTable* sessions;
    ReadPath* reads;
    WritePath* writes;
    WriteBack* write_back;
    Reclaimer* reclaimer;
    BumpRecords* bump_records;
    std::function<Bump::Id()> new_bump_id;
  };
  explicit NamespaceAdmin(Services services) : s_(std::move(services)) {}

  // As CacheEngine's.
  Result<OpenedNamespace> Open(const NamespaceSpec& spec, bool strict, Duration block_life,
                               LifeChange change);
  std::vector<NamespaceInfo> List(std::string_view tenant) const;
  Result<DropResult> Drop(const Fingerprint& fingerprint);
  Result<DropResult> DropTenant(std::string_view tenant);
  Result<DropResult> BumpEpoch(const Fingerprint& fingerprint);
  // As PeerEngine's.
  Result<size_t> TakeOver(std::span<const Bump> bumps);

 private:
  // Namespaces of the same tenant that differ in one field; those with most blocks, at most
  // kMaxSimilar.
  std::vector<NamespacePtr> Similar(const StoredNamespace& wanted) const;
  // Finds or adds the namespace. RESOURCE_EXHAUSTED: there are too many that are in use.
  // `life`: of the blocks of one that is new.
  Result<NamespaceRegistry::Opened> Add(const std::shared_ptr<const StoredNamespace>& wanted,
                                        Duration life);
  // Says how long its blocks live, if that may change so: on disk too, if its record is there.
  Status ChangeLife(NamespaceState& ns, Duration life, LifeChange change);
  // False: somebody uses it. Takes the caller's reference: its memory is free when the last goes.
  bool GiveBack(NamespacePtr ns);
  // Hides a generation for a bump of this node.
  Status Hide(const NamespacePtr& ns, bool keep, DropResult* result);
  // Replaces a generation by an empty one, or by nothing. Adds to `result`.
  Status HideGeneration(const NamespacePtr& ns, bool keep, DropResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(bumps_mu_);
  // The digest of namespaces under a change (BumpLog::Change).
  uint64_t NobodysDigest() const;

  const Services s_;
  // One bump after the other: held during I/O, before all other locks.
  Mutex bumps_mu_;
};

}  // namespace cairn::cache
