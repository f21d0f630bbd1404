#include "protocol/wire/node_statistics.h"

#include "protocol/wire/convert.h"

namespace cairn::wire {

#define CAIRN_SET(kind, name, ...) out->set_##name(stats.name);
#define CAIRN_GET(kind, name, ...) out->name = proto.name();

void ToProto(const NodeStatistics& stats, v1::StatResponse* out) {
  out->set_node_id(stats.node_id);
  out->set_node_epoch(stats.node_epoch);
  out->set_uptime_seconds(stats.uptime_seconds);
  out->set_disk_io_mode(stats.disk_io_mode);
  CAIRN_NODE_STATISTICS(CAIRN_SET)
  for (size_t i = 1; i < kNodeMissReasonCount; ++i) {
    v1::MissCount* to = out->add_misses();
    to->set_reason(MissReasonToProto(static_cast<MissReason>(i)));
    to->set_blocks(stats.misses[i]);
  }
}

void FromProto(const v1::StatResponse& proto, NodeStatistics* out) {
  out->node_id = proto.node_id();
  out->node_epoch = proto.node_epoch();
  out->uptime_seconds = proto.uptime_seconds();
  out->disk_io_mode = proto.disk_io_mode();
  CAIRN_NODE_STATISTICS(CAIRN_GET)
  for (const v1::MissCount& miss : proto.misses()) {
    out->misses[static_cast<size_t>(MissReasonFromProto(miss.reason()))] += miss.blocks();
  }
}

void ToProto(const TierStat& stats, v1::TierStat* out) {
  out->set_tier(TierToProto(stats.tier));
  CAIRN_TIER_STATISTICS(CAIRN_SET)
}

std::optional<TierStat> FromProto(const v1::TierStat& proto) {
  const std::optional<TierKind> tier = TierFromProto(proto.tier());
  if (!tier) return std::nullopt;
  TierStat stat{.tier = *tier};
  TierStat* const out = &stat;
  CAIRN_TIER_STATISTICS(CAIRN_GET)
  return stat;
}

}  // namespace cairn::wire
