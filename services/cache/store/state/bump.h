#pragma once
// The entry that hides the old blocks of a namespace, as the node stores it and as members of a
// cluster tell each other.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cairn/common/hash.h"

namespace cairn::cache {

// A bump hides the blocks of a namespace that were stored before it. A member that has not seen a
// bump has old blocks, so only members that know the same bumps of a namespace serve each other.
struct Bump {
  using Id = std::array<uint8_t, 16>;
  Digest fingerprint;
  Id id{};
  bool operator==(const Bump&) const = default;
};

struct BumpPage {
  static constexpr size_t kMost = 4096;
  std::vector<Bump> bumps = {};
  // In a question: the first one that the answer shall bring. In an answer: where the next page
  // begins. 0: there is none.
  uint64_t next = 0;
  // The digest of all bumps that the sender knows, before the question or after it. 0: none, or not
  // told.
  uint64_t digest = 0;
};

}  // namespace cairn::cache
