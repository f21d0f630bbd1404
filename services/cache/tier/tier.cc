#include "services/cache/tier/tier.h"

namespace cairn::cache {

std::string_view Name(TierKind kind) {
  switch (kind) {
    case TierKind::kHost:
      return "host";
    case TierKind::kDisk:
      return "disk";
  }
  return "unknown";
}

}  // namespace cairn::cache
