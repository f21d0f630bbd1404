#pragma once
// The policies by name. Thread-safe.

#include <memory>
#include <optional>
#include <string_view>

#include "services/cache/store/placement/eviction_policy.h"

namespace cairn::cache {

enum class EvictionKind : uint8_t { kLru, kS3Fifo, kGdsf, kCairn };
inline constexpr EvictionKind kEvictionKinds[] = {EvictionKind::kLru, EvictionKind::kS3Fifo,
                                                  EvictionKind::kGdsf, EvictionKind::kCairn};

constexpr std::string_view Name(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::kLru:
      return "lru";
    case EvictionKind::kS3Fifo:
      return "s3fifo";
    case EvictionKind::kGdsf:
      return "gdsf";
    case EvictionKind::kCairn:
      return "cairn";
  }
  return "unknown";
}
// nullopt: none of the names.
std::optional<EvictionKind> ParseEvictionKind(std::string_view name);

// For one index. nullptr for kLru: that is the order of the index itself. `seed`: a secret, for
// tables of keys.
std::unique_ptr<EvictionPolicy> MakePolicy(EvictionKind kind, uint64_t seed);

}  // namespace cairn::cache
