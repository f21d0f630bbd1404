#include "services/cache/state/miss_reason.h"

namespace cairn::cache {

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
  }
  return "unknown";
}

}  // namespace cairn::cache
