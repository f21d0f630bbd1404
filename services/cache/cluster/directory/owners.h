#pragma once
// Which members keep the entries of a waymark: rendezvous hashing (Thaler and Ravishankar, "Using
// name-based mappings to increase hit rates", 1998). A member that joins or leaves changes only the
// waymarks that it owns.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "services/cache/cluster/directory/waymarks.h"

namespace cairn::cache {

// Numbers of members in their OwnerMap. Equal if there is only one member.
struct Owners {
  uint32_t first = 0, second = 0;
  bool operator==(const Owners&) const = default;
};

// Immutable; thread-safe.
class OwnerMap {
 public:
  OwnerMap() = default;
  // `ids` of the members, in any order, each once. They stand in order afterwards, so equal sets
  // make equal maps.
  explicit OwnerMap(std::vector<std::string> ids);

  const std::vector<std::string>& ids() const { return ids_; }
  bool empty() const { return ids_.empty(); }
  // In O(members). REQUIRES: !empty().
  Owners Of(WaymarkHash hash) const;
  // The two that own it, or the one.
  std::vector<std::string> IdsOf(WaymarkHash hash) const;

 private:
  std::vector<std::string> ids_;
  std::vector<uint64_t> hashes_;  // By number.
};

}  // namespace cairn::cache
