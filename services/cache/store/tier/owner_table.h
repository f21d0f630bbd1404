#pragma once
// The owners of segments: names with users. An owner without users stays until its name's place is
// needed. Ids are not used again. Thread-compatible.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/status.h"

namespace cairn::cache {

using OwnerId = uint32_t;
inline constexpr OwnerId kCommon = 0;  // Its extents are never handed out.

class OwnerTable {
 public:
  explicit OwnerTable(uint32_t max) : max_(max) {}

  // One user more. nullopt: there is none of this name.
  std::optional<OwnerId> Use(std::string_view name) {
    const auto it = ids_.find(name);
    if (it == ids_.end()) return std::nullopt;
    ++owners_.at(it->second).users;
    return it->second;
  }
  // A new one, with one user. REQUIRES: none of this name, and not full.
  OwnerId Add(std::string_view name) {
    const OwnerId id = next_++;
    owners_[id] = {.name = std::string(name), .users = 1};
    ids_.emplace(name, id);
    return id;
  }
  // One user less. True: that was the last one. Aborts on an id that has no users.
  bool Leave(OwnerId id) {
    const auto it = owners_.find(id);
    CAIRN_CHECK(it != owners_.end() && it->second.users > 0);
    if (--it->second.users > 0) return false;
    it->second.idle_since = ++idle_clock_;
    return true;
  }
  // The one that has had no users for the longest time.
  std::optional<OwnerId> LongestIdle() const {
    std::optional<std::pair<uint64_t, OwnerId>> longest;
    for (const auto& [id, owner] : owners_) {
      const std::pair<uint64_t, OwnerId> idle{owner.idle_since, id};
      if (owner.users == 0 && (!longest || idle < *longest)) longest = idle;
    }
    return longest ? std::optional(longest->second) : std::nullopt;
  }
  void Erase(OwnerId id) {
    const auto it = owners_.find(id);
    ids_.erase(it->second.name);
    owners_.erase(it);
  }
  // kCommon when there is none of this name.
  OwnerId Find(std::string_view name) const {
    const auto it = ids_.find(name);
    return it == ids_.end() ? kCommon : it->second;
  }
  bool Has(OwnerId id) const { return owners_.contains(id); }
  bool full() const { return owners_.size() >= max_; }
  uint32_t max() const { return max_; }
  size_t size() const { return owners_.size(); }

 private:
  struct Owner {
    std::string name;
    uint32_t users = 0;
    uint64_t idle_since = 0;  // By idle_clock_, while there are no users.
  };

  const uint32_t max_;
  std::map<OwnerId, Owner> owners_;  // Without kCommon.
  std::map<std::string, OwnerId, std::less<>> ids_;
  OwnerId next_ = kCommon + 1;
  uint64_t idle_clock_ = 0;
};

}  // namespace cairn::cache
