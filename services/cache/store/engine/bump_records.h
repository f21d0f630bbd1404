#pragma once
// Keeps the bumps that a node knows in its persistent tier, if it has one (../state/bump_record.h).
// Not thread-safe.
//
// A bump is appended only after what it hides is hidden on disk. So a node that dies in between
// does not know the bump, and hides once more when it hears of it: nothing is shown again.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "services/cache/store/state/bump_log.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

class BumpRecords {
 public:
  // nullptr: there is no such tier, and nothing is kept. It outlives this.
  explicit BumpRecords(PersistentTier* disk) : disk_(disk) {}

  // Adds what is kept, oldest first. Once, before the others. A record that cannot be read is
  // passed over: other members tell its bumps again.
  Status Load(BumpLog* log);
  // Durable when it returns OK. Blocks. REQUIRES: at most BumpPage::kMost.
  Status Append(std::span<const Bump> bumps);

 private:
  struct Record {
    uint64_t sequence = 0;
    size_t bumps = 0;
  };

  // Deletes records of which every bump is forgotten.
  void DeleteOld();

  PersistentTier* const disk_;
  std::deque<Record> records_;
  size_t bumps_ = 0;  // In all of them.
  uint64_t next_ = 1;
};

}  // namespace cairn::cache
