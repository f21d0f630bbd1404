#pragma once
// The KV of a request that gave its pages to others, in memory of its own.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cairn/common/status.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

// Exact whatever the recipe is, and also what decode steps wrote: a copy of the bytes. Immutable.
class ParkedKv {
 public:
  // A copy of all tokens of the sequence. nullopt: memory that the cache node had lent was taken
  // back, so the bytes mean nothing. REQUIRES: the sequence has no ragged prefix.
  static std::optional<ParkedKv> Of(const KvSequence& sequence);

  // Into a sequence that is empty and has room for these tokens.
  void Restore(KvSequence& sequence) const;
  size_t bytes() const { return bytes_.size(); }
  // Bytes that a copy of `tokens` tokens takes.
  static size_t Bytes(const KvLayout& layout, int64_t tokens);

 private:
  ParkedKv() = default;

  int64_t tokens_ = 0;
  std::vector<std::byte> bytes_;  // Whole pages, one after the other.
};

}  // namespace cairn::worker
