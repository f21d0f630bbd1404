#pragma once
// The bytes of a block's parts between Load and Store of a transfer (transfer.h): copied where
// clients can still change them, verified, and encoded again for a tier with another codec. One
// thread at a time.

#include <cstdint>
#include <optional>
#include <vector>

#include "services/cache/store/block/recoder.h"
#include "services/cache/store/mover/transfer.h"

namespace cairn::cache {

class CopiedParts {
 public:
  // The work that is left, in this order: the bytes that are verified must be the bytes that are
  // stored.
  struct Work {
    bool copy = false;        // Clients can still change some of the parts (AreLent).
    bool verify = false;      // Clients could, or the parts were read.
    bool recode = false;      // For the codec of the target.
    bool at_start = false;    // The block is the first of its sequence.
    uint64_t most_bytes = 0;  // The most bytes of a part, in the target.
  };

  // Parts that were written in place lie where every client of the tenant can change them, and
  // their commit has looked at their headers only. Other parts in memory were verified by it.
  static bool AreLent(const Tiers& tiers, const Transfer& transfer);

  // Replaces the bytes of `transfer`, whose parts are loaded. Once. Errors: RESOURCE_EXHAUSTED,
  // there is no memory; DATA_LOSS, some parts are damaged; those of Recoder::Recode.
  Status Prepare(const Work& work, Transfer& transfer, Counters* counters);
  // Gives the buffers back.
  void Clear();

  // In the source: bytes that no encoder wrote.
  const std::optional<uint64_t>& bad_extent() const { return bad_extent_; }
  // Numbers that the target's codec cannot store.
  bool unencodable() const { return unencodable_; }

 private:
  Status Copy(Transfer& transfer);
  Status Verify(const Transfer& transfer);
  Status Recode(const Work& work, Transfer& transfer, Counters* counters);

  std::vector<PartBuffer> copies_;
  std::vector<PartBuffer> recoded_;  // In the order of the parts; empty: stored as it was loaded.
  std::optional<uint64_t> bad_extent_;
  bool unencodable_ = false;
};

}  // namespace cairn::cache
