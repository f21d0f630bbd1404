#include "cairn/client/types.h"

#include "cairn/client/cache_client.h"

namespace cairn::client {

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
