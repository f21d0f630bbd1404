#pragma once
// Converts between the messages of proto/cairn/v1 and plain C++. Clients and the node's rpc/ both
// use it, so that they read the wire in the same way. Statuses of calls: common/rpc/status.h.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/next_use.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"
#include "cairn/v1/cache.pb.h"
#include "cairn/v1/common.pb.h"
#include "common/keys/call_limits.h"

namespace cairn::wire {

// Always possible. The spec does not need to be valid.
void ToProto(const NamespaceSpec& spec, v1::NamespaceSpec* out);
// INVALID_ARGUMENT: the plain form cannot hold the value (no form of layout, an unknown enum
// value). Does not validate the fields: a node may list namespaces that this version cannot use.
Result<NamespaceSpec> FromProto(const v1::NamespaceSpec& proto);
// The same without the layout, which is that of an empty NamespaceSpec: always possible.
NamespaceSpec WithoutLayout(const v1::NamespaceSpec& proto);

void ToProto(const format::PartRect& rect, v1::PartRect* out);
// INVALID_ARGUMENT, which names `field`: the rectangle is empty or goes beyond 65535. CheckInGrid
// checks whether it lies in the grid of a layout.
Result<format::PartRect> FromProto(const v1::PartRect& proto, std::string_view field);
Status CheckInGrid(const format::PartRect& rect, const Layout& layout, std::string_view field);

v1::Codec ToProto(format::Codec codec);
// INVALID_ARGUMENT: this version does not know the codec, which decides how bytes are read.
Result<format::Codec> FromProto(v1::Codec codec, std::string_view field);

// UNSPECIFIED: no tier.
inline v1::TierKind TierToProto(std::optional<TierKind> kind) {
  static_assert(TierCode(TierKind::kHost) == v1::TIER_KIND_HOST);
  static_assert(TierCode(TierKind::kDisk) == v1::TIER_KIND_DISK);
  static_assert(TierCode(TierKind::kDevice) == v1::TIER_KIND_DEVICE);
  return static_cast<v1::TierKind>(TierCode(kind));
}
// nullopt: UNSPECIFIED, or a tier that this version does not know.
inline std::optional<TierKind> TierFromProto(int tier) { return TierFromCode(tier); }

inline v1::MissReason MissReasonToProto(MissReason reason) {
  static_assert(static_cast<int>(MissReason::kNone) == v1::MISS_REASON_NONE);
  static_assert(static_cast<int>(MissReason::kUnavailable) == v1::MISS_REASON_UNAVAILABLE);
  static_assert(static_cast<int>(MissReason::kExpired) == v1::MISS_REASON_EXPIRED);
  return static_cast<v1::MissReason>(reason);
}
// A reason that a node gave. Reads one that this version does not know as kAbsent, which is still a
// miss.
inline MissReason MissReasonFromProto(int reason) {
  return reason >= 0 && reason < static_cast<int>(kNodeMissReasonCount)
             ? static_cast<MissReason>(reason)
             : MissReason::kAbsent;
}

void ToProto(const FieldDifference& difference, uint64_t stored_blocks, v1::FieldDifference* out);
// Without the values of salts, which older nodes tell: they would go into logs.
FieldDifference FromProto(const v1::FieldDifference& proto);

// Block keys as 32 bytes each, concatenated.
inline constexpr size_t kMaxKeys = kMaxKeysPerCall;
std::string KeysToProto(std::span<const BlockKey> keys);
// INVALID_ARGUMENT, which names 'keys', unless there are 1 to kMaxKeys whole keys.
Result<std::vector<BlockKey>> KeysFromProto(std::string_view bytes);

// Fills in code and message. An OK status has code 0.
void ToProto(const Status& status, v1::PartResult* out);
// The status of one part. Reads a code beyond google.rpc.Code as UNKNOWN.
Status FromProto(const v1::PartResult& proto);
// The NextUse for a number of v1::NextUse. INVALID_ARGUMENT: it is none of them.
Result<NextUse> ToNextUse(int number, std::string_view field);

}  // namespace cairn::wire
