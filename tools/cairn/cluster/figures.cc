#include "tools/cairn/cluster/figures.h"

#include <fmt/format.h>

#include "tools/cairn/output/units.h"

namespace cairn::cli {

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

const client::TierStat* TierOf(const client::NodeStats& stats, client::TierKind kind) {
  for (const client::TierStat& tier : stats.tiers) {
    if (tier.tier == kind) return &tier;
  }
  return nullptr;
}

std::string TierFill(const client::NodeStats& stats, client::TierKind kind) {
  const client::TierStat* const tier = TierOf(stats, kind);
  if (tier == nullptr) return "-";
  return fmt::format("{} of {}", HumanBytes(tier->used_bytes), HumanBytes(tier->capacity_bytes));
}

Json TierFillJson(const client::NodeStats& stats) {
  Json tiers = Json::object();
  for (const client::TierStat& tier : stats.tiers) {
    tiers[std::string(Name(tier.tier))] = {{"capacity_bytes", tier.capacity_bytes},
                                           {"used_bytes", tier.used_bytes},
                                           {"blocks", tier.blocks}};
  }
  return tiers;
}

}  // namespace cairn::cli
