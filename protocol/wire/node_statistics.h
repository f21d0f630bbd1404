#pragma once
// The statistics of a node as the message StatResponse, for both ends. A row of
// CAIRN_NODE_STATISTICS without a field of the same name does not compile.

#include <optional>

#include "cairn/common/kv/node_statistics.h"
#include "cairn/v1/cache.pb.h"

namespace cairn::wire {

// Everything but `version`, `tiers` and `draining`, which the caller fills in.
void ToProto(const NodeStatistics& stats, v1::StatResponse* out);
void FromProto(const v1::StatResponse& proto, NodeStatistics* out);

void ToProto(const TierStat& stats, v1::TierStat* out);
// nullopt: a tier that this version does not know.
std::optional<TierStat> FromProto(const v1::TierStat& proto);

}  // namespace cairn::wire
