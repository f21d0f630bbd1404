#include "cairn/client/types.h"

#include "cairn/client/cache_client.h"

namespace cairn::client {

std::string_view Name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kAbsent:
      return "absent";
    case MissReason::kIncomplete:
      return "incomplete";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kCorrupt:
      return "corrupt";
    case MissReason::kDeadline:
      return "deadline";
    case MissReason::kRefused:
      return "refused";
    case MissReason::kFingerprint:
      return "fingerprint";
    case MissReason::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

std::string_view Name(Path path) { return path == Path::kLocal ? "local" : "grpc"; }

std::string_view Name(BreakerState state) {
  switch (state) {
    case BreakerState::kClosed:
      return "closed";
    case BreakerState::kOpen:
      return "open";
    case BreakerState::kHalfOpen:
      return "half_open";
  }
  return "unknown";
}

}  // namespace cairn::client
