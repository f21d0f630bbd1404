#pragma once
// Knows which bytes of the ring's scratch area belong to which call.

#include <cstdint>
#include <map>
#include <optional>

#include "protocol/shm/protocol.h"

namespace cairn::client::local {

// First fit over free ranges in units of a cache line. Not thread-safe.
class Scratch {
 public:
  explicit Scratch(uint32_t bytes) : bytes_(bytes) { free_.emplace(0, bytes); }

  uint32_t bytes() const { return bytes_; }
  // True if an empty scratch area could hold both.
  bool CouldHold(uint64_t a, uint64_t b) const { return Rounded(a) + Rounded(b) <= bytes_; }

  // nullopt: no room now. An area of 0 bytes takes nothing.
  std::optional<shm::Area> Take(uint32_t bytes) {
    if (bytes == 0) return shm::Area{};
    const uint64_t room = Rounded(bytes);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < room) continue;
      const uint32_t at = it->first;
      const auto left = static_cast<uint32_t>(it->second - room);
      free_.erase(it);
      if (left > 0) free_.emplace(at + static_cast<uint32_t>(room), left);
      return shm::Area{at, bytes};
    }
    return std::nullopt;
  }

  void Give(const shm::Area& area) {
    if (area.bytes == 0) return;
    auto [it, added] = free_.emplace(area.offset, static_cast<uint32_t>(Rounded(area.bytes)));
    const auto next = std::next(it);
    if (next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it == free_.begin()) return;
    const auto before = std::prev(it);
    if (before->first + before->second != it->first) return;
    before->second += it->second;
    free_.erase(it);
  }

 private:
  static uint64_t Rounded(uint64_t bytes) {
    return (bytes + shm::kCacheLine - 1) / shm::kCacheLine * shm::kCacheLine;
  }

  const uint32_t bytes_;
  std::map<uint32_t, uint32_t> free_;  // Offset -> bytes; neighbours are merged.
};

}  // namespace cairn::client::local
