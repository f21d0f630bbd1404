#include "services/cache/store/placement/policies.h"

#include "services/cache/store/placement/cairn/cairn_policy.h"
#include "services/cache/store/placement/gdsf_policy.h"
#include "services/cache/store/placement/s3fifo_policy.h"

namespace cairn::cache {

std::optional<EvictionKind> ParseEvictionKind(std::string_view name) {
  for (const EvictionKind kind : kEvictionKinds) {
    if (Name(kind) == name) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<EvictionPolicy> MakePolicy(EvictionKind kind, uint64_t seed) {
  switch (kind) {
    case EvictionKind::kLru:
      return nullptr;
    case EvictionKind::kS3Fifo:
      return std::make_unique<S3FifoPolicy>(seed);
    case EvictionKind::kGdsf:
      return std::make_unique<GdsfPolicy>();
    case EvictionKind::kCairn:
      return std::make_unique<CairnPolicy>(seed);
  }
  return nullptr;
}

}  // namespace cairn::cache
