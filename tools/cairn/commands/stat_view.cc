#include "tools/cairn/commands/stat_view.h"

#include <fmt/format.h>

#include <map>

#include "common/config/config.h"
#include "tools/cairn/cluster/figures.h"
#include "tools/cairn/output/table.h"
#include "tools/cairn/output/units.h"

namespace cairn::cli {
namespace {

std::string Tiers(const client::NodeStats& stats, const Terminal& terminal) {
  Table table({{"tier", Align::kLeft},
               {"used", Align::kRight},
               {"capacity", Align::kRight},
               {"full", Align::kRight},
               {"blocks", Align::kRight},
               {"read", Align::kRight},
               {"written", Align::kRight},
               {"evicted blocks", Align::kRight}});
  for (const client::TierStat& tier : stats.tiers) {
    std::string name(Name(tier.tier));
    if (tier.tier == client::TierKind::kDisk && !stats.disk_io_mode.empty()) {
      name += " (" + stats.disk_io_mode + " I/O)";
    }
    // Blocks in RAM are used in place: the host tier has nothing to count there.
    const bool counts_io = tier.tier != client::TierKind::kHost;
    table.AddRow({name, HumanBytes(tier.used_bytes), HumanBytes(tier.capacity_bytes),
                  Percent(tier.used_bytes, tier.capacity_bytes), Grouped(tier.blocks),
                  counts_io ? HumanBytes(tier.read_bytes) : "-",
                  counts_io ? HumanBytes(tier.written_bytes) : "-", Grouped(tier.evicted_blocks)});
  }
  return table.Render(terminal);
}

std::string Totals(const client::NodeStats& stats, const Terminal& terminal) {
  Table table({{"since start", Align::kLeft},
               {"", Align::kRight},
               {"now", Align::kLeft},
               {"", Align::kRight}});
  const uint64_t asked = stats.matched_tokens + stats.missed_tokens;
  table.AddRow(
      {"hit tokens",
       fmt::format("{} ({})", Grouped(stats.matched_tokens), Percent(stats.matched_tokens, asked)),
       "blocks", Grouped(stats.blocks)});
  table.AddRow({"missed tokens", Grouped(stats.missed_tokens), "incomplete blocks",
                Grouped(stats.incomplete_blocks)});
  table.AddRow(
      {"sent to workers", HumanBytes(stats.fetched_bytes), "leases", Grouped(stats.leases)});
  table.AddRow(
      {"  from RAM", HumanBytes(stats.fetched_host_bytes), "reservations",
       fmt::format("{} ({})", Grouped(stats.reservations), HumanBytes(stats.reserved_bytes))});
  table.AddRow(
      {"  from disk", HumanBytes(stats.fetched_disk_bytes), "sessions", Grouped(stats.sessions)});
  const uint64_t known = stats.fetched_host_bytes + stats.fetched_disk_bytes;
  if (stats.fetched_bytes > known) {
    table.AddRow({"  from GPUs and members", HumanBytes(stats.fetched_bytes - known), "", ""});
  }
  table.AddRow({"taken from workers", HumanBytes(stats.pushed_bytes), "not yet on disk",
                HumanBytes(stats.unflushed_bytes)});
  table.AddRow(
      {"promoted blocks", Grouped(stats.promoted_blocks), "namespaces", Grouped(stats.namespaces)});
  // 0: no worker has said how fast it computes, as those of a single request do not.
  const double saved = stats.prefill_seconds_saved;
  table.AddRow({"prefill saved", saved > 0 ? HumanSeconds(saved) : "-", "index",
                HumanBytes(stats.index_bytes)});
  const Style corrupt = stats.corrupt_blocks > 0 ? Style::kRed : Style::kPlain;
  table.AddRow({"corrupt blocks", Cell(Grouped(stats.corrupt_blocks), corrupt), "", ""});
  return table.Render(terminal);
}

std::string Misses(const client::NodeStats& stats, const Terminal& terminal) {
  Table table({{"missed because", Align::kLeft}, {"blocks", Align::kRight}});
  bool any = false;
  for (size_t i = 1; i < client::kNodeMissReasonCount; ++i) {
    if (stats.misses[i] == 0) continue;
    any = true;
    table.AddRow({std::string(Name(static_cast<client::MissReason>(i))), Grouped(stats.misses[i])});
  }
  return any ? table.Render(terminal) : "";
}

std::string Namespaces(std::span<const client::NamespaceInfo> namespaces,
                       const Terminal& terminal) {
  if (namespaces.empty()) return "";
  Table table({{"namespace", Align::kLeft},
               {"tenant", Align::kLeft},
               {"model", Align::kLeft},
               {"numerics", Align::kLeft},
               {"recipe", Align::kLeft},
               {"blocks", Align::kRight},
               {"stored", Align::kRight},
               {"life of a block", Align::kRight}});
  for (const client::NamespaceInfo& ns : namespaces) {
    table.AddRow({ns.fingerprint.Hex().substr(0, 12), ns.spec.tenant, ns.spec.model,
                  ns.spec.numerics, ns.spec.recipe, Grouped(ns.blocks), HumanBytes(ns.bytes),
                  ns.block_life.count() == 0 ? "-" : config::FormatDuration(ns.block_life)});
  }
  return table.Render(terminal);
}

// The pools of namespaces that have some. A node of another version may list fewer than the layout.
std::string Pools(std::span<const client::NamespaceInfo> namespaces, const Terminal& terminal) {
  Table table({{"namespace", Align::kLeft},
               {"pool", Align::kLeft},
               {"blocks of", Align::kRight},
               {"blocks", Align::kRight},
               {"stored", Align::kRight}});
  bool any = false;
  for (const client::NamespaceInfo& ns : namespaces) {
    const auto pools = ns.spec.layout.Pools();
    for (size_t p = 0; p < std::min(pools.size(), ns.pools.size()); ++p) {
      any = true;
      table.AddRow({ns.fingerprint.Hex().substr(0, 12), pools[p].name,
                    fmt::format("{} tokens", pools[p].block_tokens), Grouped(ns.pools[p].blocks),
                    HumanBytes(ns.pools[p].bytes)});
    }
  }
  return any ? table.Render(terminal) : "";
}

Json PoolsJson(const client::NamespaceInfo& ns) {
  Json list = Json::array();
  const auto pools = ns.spec.layout.Pools();
  for (size_t p = 0; p < std::min(pools.size(), ns.pools.size()); ++p) {
    list.push_back({{"pool", pools[p].name},
                    {"block_tokens", pools[p].block_tokens},
                    {"blocks", ns.pools[p].blocks},
                    {"bytes", ns.pools[p].bytes}});
  }
  return list;
}

// The facts that the eviction policies have learned.
std::string Learned(std::span<const client::NamespaceInfo> namespaces, const Terminal& terminal) {
  Table table({{"namespace", Align::kLeft},
               {"learned group of blocks", Align::kLeft},
               {"blocks", Align::kRight},
               {"uses", Align::kRight},
               {"seconds per use", Align::kRight}});
  bool any = false;
  for (const client::NamespaceInfo& ns : namespaces) {
    for (const LearnedGroup& group : ns.learned) {
      any = true;
      table.AddRow(
          {ns.fingerprint.Hex().substr(0, 12), group.name, Grouped(group.blocks),
           fmt::format("{:.0f}", group.uses),
           group.uses < 0.5 ? "-" : fmt::format("{:.0f}", group.block_seconds / group.uses)});
    }
  }
  return any ? table.Render(terminal) : "";
}

Json LearnedJson(const client::NamespaceInfo& ns) {
  Json list = Json::array();
  for (const LearnedGroup& group : ns.learned) {
    list.push_back({{"group", group.name},
                    {"blocks", group.blocks},
                    {"uses", group.uses},
                    {"block_seconds", group.block_seconds}});
  }
  return list;
}

// The figures that an operator wants when one tenant complains about another. By tenant's name.
struct TenantFigures {
  uint64_t namespaces = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t host_blocks = 0;
  uint64_t host_bytes = 0;
  uint64_t evicted_blocks = 0;
  uint64_t evicted_bytes = 0;
  std::vector<client::TierRoom> room = {};
};

std::map<std::string, TenantFigures> ByTenant(std::span<const client::NamespaceInfo> namespaces) {
  std::map<std::string, TenantFigures> tenants;
  for (const client::NamespaceInfo& ns : namespaces) {
    TenantFigures& tenant = tenants[ns.spec.tenant];
    ++tenant.namespaces;
    tenant.blocks += ns.blocks;
    tenant.bytes += ns.bytes;
    tenant.host_blocks += ns.host_blocks;
    tenant.host_bytes = ns.tenant_host_bytes;
    tenant.evicted_blocks += ns.evicted_host_blocks;
    tenant.evicted_bytes += ns.evicted_host_bytes;
    tenant.room = ns.tenant_room;
  }
  return tenants;
}

std::string Tenants(std::span<const client::NamespaceInfo> namespaces, const Terminal& terminal) {
  const auto tenants = ByTenant(namespaces);
  if (tenants.size() < 2) return "";
  Table table({{"tenant", Align::kLeft},
               {"namespaces", Align::kRight},
               {"blocks", Align::kRight},
               {"stored", Align::kRight},
               {"in RAM", Align::kRight},
               {"own RAM", Align::kRight},
               {"evicted from RAM", Align::kRight}});
  for (const auto& [name, tenant] : tenants) {
    table.AddRow(
        {name, Grouped(tenant.namespaces), Grouped(tenant.blocks), HumanBytes(tenant.bytes),
         Grouped(tenant.host_blocks), HumanBytes(tenant.host_bytes),
         fmt::format("{} ({})", Grouped(tenant.evicted_blocks), HumanBytes(tenant.evicted_bytes))});
  }
  return table.Render(terminal);
}

// The tenants to which a policy gives limits or guarantees.
std::string Limits(std::span<const client::NamespaceInfo> namespaces, const Terminal& terminal) {
  Table table({{"tenant", Align::kLeft},
               {"tier", Align::kLeft},
               {"room", Align::kRight},
               {"limit", Align::kRight},
               {"guaranteed", Align::kRight}});
  bool any = false;
  for (const auto& [name, tenant] : ByTenant(namespaces)) {
    for (const client::TierRoom& room : tenant.room) {
      if (!room.most && room.guaranteed == 0) continue;
      any = true;
      table.AddRow({name, std::string(Name(room.tier)), HumanBytes(room.bytes),
                    room.most ? HumanBytes(*room.most) : "none",
                    room.guaranteed == 0 ? "" : HumanBytes(room.guaranteed)});
    }
  }
  return any ? table.Render(terminal) : "";
}

Json RoomJson(std::span<const client::TierRoom> tiers) {
  Json all = Json::object();
  for (const client::TierRoom& room : tiers) {
    all[std::string(Name(room.tier))] = {{"bytes", room.bytes},
                                         {"limit", room.most ? Json(*room.most) : Json()},
                                         {"guaranteed", room.guaranteed}};
  }
  return all;
}

Json TenantsJson(std::span<const client::NamespaceInfo> namespaces) {
  Json list = Json::array();
  for (const auto& [name, tenant] : ByTenant(namespaces)) {
    list.push_back({{"tenant", name},
                    {"namespaces", tenant.namespaces},
                    {"blocks", tenant.blocks},
                    {"bytes", tenant.bytes},
                    {"host_blocks", tenant.host_blocks},
                    {"own_host_bytes", tenant.host_bytes},
                    {"evicted_host_blocks", tenant.evicted_blocks},
                    {"evicted_host_bytes", tenant.evicted_bytes},
                    {"room", RoomJson(tenant.room)}});
  }
  return list;
}

}  // namespace

std::string StatText(const client::NodeStats& stats,
                     std::span<const client::NamespaceInfo> namespaces, const Terminal& terminal) {
  std::string out = fmt::format("node {}, version {}, epoch {}, up {}{}\n", stats.node_id,
                                stats.version, stats.node_epoch, HumanSeconds(stats.uptime_seconds),
                                stats.draining ? ", draining" : "");
  out += Tiers(stats, terminal);
  out += Totals(stats, terminal);
  out += Misses(stats, terminal);
  out += Tenants(namespaces, terminal);
  out += Limits(namespaces, terminal);
  out += Namespaces(namespaces, terminal);
  out += Pools(namespaces, terminal);
  out += Learned(namespaces, terminal);
  return out;
}

Json StatJson(const client::NodeStats& stats, std::span<const client::NamespaceInfo> namespaces) {
  Json tiers = Json::object();
  for (const client::TierStat& tier : stats.tiers) {
    Json& fields = tiers[std::string(Name(tier.tier))];
    ForEachStatistic(
        tier, [&](const Statistic& row, auto value) { fields[std::string(row.name)] = value; });
  }
  Json misses = Json::object();
  for (size_t i = 1; i < client::kNodeMissReasonCount; ++i) {
    misses[std::string(Name(static_cast<client::MissReason>(i)))] = stats.misses[i];
  }
  Json list = Json::array();
  for (const client::NamespaceInfo& ns : namespaces) {
    list.push_back({{"fingerprint", ns.fingerprint.Hex()},
                    {"tenant", ns.spec.tenant},
                    {"model", ns.spec.model},
                    {"revision", ns.spec.revision},
                    {"numerics", ns.spec.numerics},
                    {"recipe", ns.spec.recipe},
                    {"blocks", ns.blocks},
                    {"bytes", ns.bytes},
                    {"generation", ns.generation},
                    {"host_blocks", ns.host_blocks},
                    {"evicted_host_blocks", ns.evicted_host_blocks},
                    {"evicted_host_bytes", ns.evicted_host_bytes},
                    {"remembered_blocks", ns.remembered_blocks},
                    {"block_life_seconds", Seconds(ns.block_life)},
                    {"pools", PoolsJson(ns)},
                    {"learned", LearnedJson(ns)}});
  }
  Json out = {{"node_id", stats.node_id},           {"node_epoch", stats.node_epoch},
              {"version", stats.version},           {"uptime_seconds", stats.uptime_seconds},
              {"draining", stats.draining},         {"tiers", std::move(tiers)},
              {"disk_io_mode", stats.disk_io_mode}, {"misses", std::move(misses)}};
  ForEachStatistic(stats,
                   [&](const Statistic& row, auto value) { out[std::string(row.name)] = value; });
  // The namespaces themselves, instead of their number.
  out["namespaces"] = std::move(list);
  out["tenants"] = TenantsJson(namespaces);
  return out;
}

Json StatJsonWithout(const client::NodeStats& stats, const std::string& why) {
  Json out = StatJson(stats, {});
  out["namespaces"] = nullptr;
  out["tenants"] = nullptr;
  out["namespaces_left_out"] = why;
  return out;
}

}  // namespace cairn::cli
