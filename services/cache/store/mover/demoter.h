#pragma once
// Brings blocks back to host whose only copy lies in a tier that is faster than host, before that
// tier makes room for others. Such a block came to be when host let its copy go: nobody had written
// it to disk, or the node has none.
//
//   host evicts, no slower tier has it ─► dirty in the faster tier: not evicted there
//   the faster tier is nearly full ─► copied to host, at the cost of what is worth less there
//                                  ─► clean: evicted like others
//
// At most half of the faster tier is dirty: beyond that, and for what finds no room in host, the
// last copy may go. Thread-safe.

#include <deque>

#include "common/concurrency/mutex.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class Promoters;

class Demoter {
 public:
  static constexpr int kMaxAttempts = 3;
  static constexpr size_t kAtOnce = 64;  // Looked at by one Tick.

  explicit Demoter(NodeContext* context);

  // Host evicted its copy of the block, and no slower tier has one. REQUIRES: ns.mu is held.
  void Note(NamespaceState& ns, const BlockKey& key);
  // Asks for copies where they are needed. Forgets what is no last copy any more.
  void Tick(Promoters* promoters);

  uint64_t bytes() const {
    MutexLock lock(mu_);
    return bytes_;
  }

 private:
  struct Entry {
    Fingerprint fingerprint;
    BlockKey key;
    uint32_t bytes = 0;
    int attempts = 0;
  };
  // Whether the block is still a last copy, and asks for a copy of it. `now`: there is need.
  bool Look(Entry* entry, bool now, Promoters* promoters);

  NodeContext& context_;
  Tier* const fast_;  // nullptr: the node has none.
  mutable Mutex mu_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache
