#pragma once
// Between the messages of proto/cairn/v1 and plain C++. Used by clients and by the node's rpc/, so
// that both read the wire alike. Statuses of calls are in status.h beside this file.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/v1/cache.pb.h"
#include "cairn/v1/common.pb.h"
#include "services/common/format/part.h"
#include "services/common/keys/limits.h"
#include "services/common/keys/namespace_spec.h"
#include "services/common/status/status.h"

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

// `Kind` is any enum with kHost and kDisk: node and clients have their own.
template <typename Kind>
v1::TierKind TierToProto(Kind kind) {
  return kind == Kind::kHost ? v1::TIER_KIND_HOST : v1::TIER_KIND_DISK;
}
template <typename Kind>
v1::TierKind TierToProto(const std::optional<Kind>& kind) {
  return kind ? TierToProto(*kind) : v1::TIER_KIND_UNSPECIFIED;
}
// nullopt for UNSPECIFIED and for tiers that this version does not know.
template <typename Kind>
std::optional<Kind> TierFromProto(int tier) {
  if (tier == v1::TIER_KIND_HOST) return Kind::kHost;
  if (tier == v1::TIER_KIND_DISK) return Kind::kDisk;
  return std::nullopt;
}

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

// Request metadata with the trace id, and its limits: 1 to 64 characters of [A-Za-z0-9-].
inline constexpr char kTraceMetadata[] = "x-cairn-trace";
bool IsTrace(std::string_view trace);

}  // namespace cairn::wire
