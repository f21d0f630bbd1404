#pragma once
// Between the messages of proto/cairn/v1 and plain C++. Used by clients and by the node's rpc/, so
// that both read the wire alike. Statuses of calls: common/rpc/status.h.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"
#include "cairn/v1/cache.pb.h"
#include "cairn/v1/common.pb.h"
#include "common/keys/limits.h"

namespace cairn::wire {

// Always possible; the spec need not be valid.
void ToProto(const NamespaceSpec& spec, v1::NamespaceSpec* out);
// INVALID_ARGUMENT for what the plain form cannot hold (no layout form, an unknown enum value), and
// for everything that Validate refuses.
Result<NamespaceSpec> FromProto(const v1::NamespaceSpec& proto);

void ToProto(const format::PartRect& rect, v1::PartRect* out);
// INVALID_ARGUMENT naming `field`, for an empty rectangle or one beyond 65535. Whether it lies in a
// layout's grid is CheckInGrid.
Result<format::PartRect> FromProto(const v1::PartRect& proto, std::string_view field);
Status CheckInGrid(const format::PartRect& rect, const Layout& layout, std::string_view field);

v1::Codec ToProto(format::Codec codec);
// INVALID_ARGUMENT for a codec that this version does not know: it decides how bytes are read.
Result<format::Codec> FromProto(v1::Codec codec, std::string_view field);

// UNSPECIFIED for no tier.
inline v1::TierKind TierToProto(std::optional<TierKind> kind) {
  static_assert(TierCode(TierKind::kHost) == v1::TIER_KIND_HOST);
  static_assert(TierCode(TierKind::kDisk) == v1::TIER_KIND_DISK);
  static_assert(TierCode(TierKind::kDevice) == v1::TIER_KIND_DEVICE);
  return static_cast<v1::TierKind>(TierCode(kind));
}
// nullopt for UNSPECIFIED and for tiers that this version does not know.
inline std::optional<TierKind> TierFromProto(int tier) { return TierFromCode(tier); }

// `Reason` is any enum with the numbers of v1::MissReason.
template <typename Reason>
v1::MissReason MissReasonToProto(Reason reason) {
  static_assert(static_cast<int>(Reason::kNone) == v1::MISS_REASON_NONE);
  static_assert(static_cast<int>(Reason::kFingerprint) == v1::MISS_REASON_FINGERPRINT);
  return static_cast<v1::MissReason>(reason);
}
// A reason that this version does not know reads as kAbsent: still a miss.
template <typename Reason>
Reason MissReasonFromProto(int reason) {
  return reason >= 0 && reason <= v1::MISS_REASON_FINGERPRINT ? static_cast<Reason>(reason)
                                                              : Reason::kAbsent;
}

void ToProto(const FieldDifference& difference, uint64_t stored_blocks, v1::FieldDifference* out);

// Block keys as 32 bytes each, concatenated.
inline constexpr size_t kMaxKeys = kMaxKeysPerCall;
std::string KeysToProto(std::span<const BlockKey> keys);
// INVALID_ARGUMENT naming 'keys' unless there are 1 to kMaxKeys whole keys.
Result<std::vector<BlockKey>> KeysFromProto(std::string_view bytes);

// Fills in code and message. OK statuses have code 0.
void ToProto(const Status& status, v1::PartResult* out);
// The status of one part. A code beyond google.rpc.Code reads as UNKNOWN.
Status FromProto(const v1::PartResult& proto);

}  // namespace cairn::wire
