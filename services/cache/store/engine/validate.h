#pragma once
// Checks of request fields that several calls share.

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::cache {

inline Status CheckCount(std::string_view field, size_t count, size_t max) {
  if (count >= 1 && count <= max) return OkStatus();
  return InvalidArgument("field '{}': got {} entries, expected 1 to {}", field, count, max);
}

// 0 means `fallback`.
inline Result<Duration> CheckTtl(std::string_view field, Duration ttl, Duration fallback,
                                 Duration max) {
  if (ttl.count() == 0) return fallback;
  if (ttl.count() > 0 && ttl <= max) return ttl;
  return InvalidArgument("field '{}': got {} s, expected 0 to {} s", field, Seconds(ttl),
                         Seconds(max));
}

}  // namespace cairn::cache
