#include "services/cache/serve/node/engine_metrics.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/metrics/memory_metrics.h"
#include "common/metrics/statistic_metrics.h"
#include "services/cache/store/state/memory_account.h"
#include "services/cache/store/state/node_tenant.h"
#include "services/cache/store/tier/disk/disk_tier.h"

namespace cairn::cache {
namespace {

using metrics::Labels;
using metrics::Sink;

constexpr size_t kShownTenants = 32;
// The help text of metrics that several rows share, apart by a label.
constexpr metrics::SharedHelp kSharedMetrics[] = {
    {"cairn_transfer_bytes_total", "Bytes moved between two places."},
    {"cairn_prefetched_blocks_total", "Blocks that hints brought to the host tier, by outcome."},
    {"cairn_hinted_matches_total",
     "Matches whose client said what the conversation does next, by what it said."},
    {"cairn_declined_copies_total", "Committed blocks that were not copied to disk, by reason."},
    {"cairn_recoded_bytes_total",
     "Bytes that ladders encoded again on their way to disk, before and after."},
};

void Show(const Statistic& row, Labels labels, double value, Sink& sink) {
  metrics::Show(row, kSharedMetrics, std::move(labels), value, sink);
}

// The rows of a tier do not say where its bytes come from and go to. Shown without a disk, too.
void ShowMoves(const EngineStats& stats, Sink& sink) {
  const std::optional<TierState>& disk = stats.tiers[TierKind::kDisk];
  const std::optional<TierState>& device = stats.tiers[TierKind::kDevice];
  const auto show = [&](std::string_view labels, uint64_t bytes) {
    const Statistic row = {.kind = StatisticKind::kTotal,
                           .name = {},
                           .metric = "cairn_transfer_bytes_total",
                           .labels = labels,
                           .help = {}};
    Show(row, {}, metrics::Number(bytes), sink);
  };
  show("src=host,dst=disk", disk ? disk->written_bytes : 0);
  show("src=disk,dst=host", disk ? disk->read_bytes : 0);
  if (!device) return;
  show("src=host,dst=device", device->written_bytes);
  show("src=device,dst=host", device->read_bytes);
}

// The numbers that policies learned, over all namespaces. "all" is there even if nothing was
// learned.
void ShowLearned(const std::vector<NamespaceInfo>& namespaces, Sink& sink) {
  std::map<std::string, LearnedGroup> groups;
  groups["all"] = {};
  for (const NamespaceInfo& info : namespaces) {
    for (const LearnedGroup& learned : info.learned) {
      for (const std::string& name : {learned.name, std::string("all")}) {
        groups[name].uses += learned.uses;
        groups[name].block_seconds += learned.block_seconds;
        groups[name].blocks += learned.blocks;
      }
    }
  }
  for (const auto& [name, group] : groups) {
    const Labels labels = {{"group", name}};
    sink.Gauge("cairn_placement_uses",
               "Recent uses of blocks that the eviction policy learned from, by group.", labels,
               group.uses);
    sink.Gauge("cairn_placement_block_seconds",
               "Time that these blocks waited for a use meanwhile, by group.", labels,
               group.block_seconds);
    sink.Gauge("cairn_placement_blocks", "Blocks of the group, remembered ones included.", labels,
               metrics::Number(group.blocks));
  }
}

// The blocks of pools, over all namespaces that have some. Names of pools are their clients', and
// no labels: there is no bound to them.
void ShowPools(const std::vector<NamespaceInfo>& namespaces, Sink& sink) {
  PoolBlocks chained, alone;
  for (const NamespaceInfo& info : namespaces) {
    const auto pools = info.spec.layout.Pools();
    for (size_t p = 0; p < info.pools.size(); ++p) {
      PoolBlocks& total = pools[p].chained ? chained : alone;
      total.blocks += info.pools[p].blocks;
      total.bytes += info.pools[p].bytes;
    }
  }
  for (const auto& [kind, total] : {std::pair("chained", chained), std::pair("alone", alone)}) {
    const Labels labels = {{"kind", kind}};
    sink.Gauge("cairn_pool_blocks",
               "Blocks of namespaces with pools. chained: of pools whose blocks follow each other; "
               "alone: of the others, such as windows and states.",
               labels, metrics::Number(total.blocks));
    sink.Gauge("cairn_pool_bytes", "Stored bytes of these blocks, each block once.", labels,
               metrics::Number(total.bytes));
  }
}

// The tenants with most bytes, and the others as one: nobody may make as many series as he can
// invent names.
void ShowTenants(const std::vector<NamespaceInfo>& namespaces, Sink& sink) {
  struct Usage {
    uint64_t bytes = 0, blocks = 0;
  };
  static const std::string kOther = "other";
  std::map<std::string_view, Usage> by_name;
  for (const NamespaceInfo& info : namespaces) {
    Usage& usage = by_name[info.spec.tenant];
    usage.bytes += info.bytes;
    usage.blocks += info.blocks;
  }
  std::vector<std::pair<std::string_view, Usage>> tenants(by_name.begin(), by_name.end());
  std::ranges::sort(tenants, std::greater(),
                    [](const auto& tenant) { return tenant.second.bytes; });
  Usage other;
  const auto show = [&sink](std::string_view name, const Usage& usage) {
    const Labels labels = {{"tenant", std::string(name)}};
    sink.Gauge("cairn_tenant_bytes",
               "Stored bytes of a tenant's blocks, each block once. other: all but the largest.",
               labels, metrics::Number(usage.bytes));
    sink.Gauge("cairn_tenant_blocks", "Stored blocks of a tenant. other: as of cairn_tenant_bytes.",
               labels, metrics::Number(usage.blocks));
  };
  for (size_t i = 0; i < tenants.size(); ++i) {
    const auto& [name, usage] = tenants[i];
    if (i < kShownTenants && name != kOther) {
      show(name, usage);
    } else {
      other.bytes += usage.bytes;
      other.blocks += usage.blocks;
    }
  }
  show(kOther, other);
}

// The tenants that a policy gives limits: those with most room.
void ShowLimits(std::vector<std::shared_ptr<const NodeTenant>> tenants, Sink& sink) {
  const auto is_limited = [](const NodeTenant& tenant, TierKind tier) {
    return tenant.most(tier) != UINT64_MAX || tenant.guaranteed(tier) > 0;
  };
  const auto room_of = [](const std::shared_ptr<const NodeTenant>& tenant) {
    return tenant->bytes(TierKind::kHost) + tenant->bytes(TierKind::kDisk);
  };
  std::erase_if(tenants, [&](const auto& tenant) {
    return tenant->name() == "other" ||
           (!is_limited(*tenant, TierKind::kHost) && !is_limited(*tenant, TierKind::kDisk));
  });
  std::ranges::sort(tenants, std::greater(), room_of);
  if (tenants.size() > kShownTenants) tenants.resize(kShownTenants);
  for (const auto& tenant : tenants) {
    for (const TierKind tier : {TierKind::kHost, TierKind::kDisk}) {
      if (!is_limited(*tenant, tier)) continue;
      const Labels labels = {{"tenant", tenant->name()}, {"tier", std::string(Name(tier))}};
      sink.Gauge("cairn_tenant_room_bytes",
                 "The room of a tenant to which the policy gives limits, in whole pages.", labels,
                 metrics::Number(tenant->bytes(tier)));
      if (tenant->most(tier) == UINT64_MAX) continue;
      sink.Gauge("cairn_tenant_limit_bytes", "The most room that the policy lets the tenant have.",
                 labels, metrics::Number(tenant->most(tier)));
    }
  }
}

void Collect(const EngineStats& stats, Sink& sink) {
  ForEachStatistic(stats, [&](const Statistic& row, auto value) {
    Show(row, {}, static_cast<double>(value), sink);
  });
  for (const TierKind kind : kTiersByRank) {
    if (!stats.tiers[kind]) continue;
    ForEachStatistic(*stats.tiers[kind], [&](const Statistic& row, auto value) {
      Show(row, {{"tier", std::string(Name(kind))}}, static_cast<double>(value), sink);
    });
  }
  ShowMoves(stats, sink);
  for (size_t i = 1; i < kNodeMissReasonCount; ++i) {
    sink.Counter("cairn_miss_blocks_total",
                 "Blocks that were asked for with a lease and not served, by reason.",
                 {{"reason", std::string(Name(static_cast<MissReason>(i)))}},
                 metrics::Number(stats.misses[i]));
  }
}

void ShowIo(const std::string& kind, const disk::IoTimeStats& io, Sink& sink) {
  const metrics::Labels labels = {{"io", kind}};
  sink.Counter("cairn_disk_io_total", "Accesses to the disk's device that ended.", labels,
               metrics::Number(io.ended));
  sink.Counter("cairn_disk_io_seconds_total", "Time that these took, added up.", labels,
               io.seconds);
}

}  // namespace

void ExportEngine(const CacheEngine* engine, metrics::Registry* registry) {
  registry->AddCollector([engine](Sink& sink) {
    Collect(engine->GetStats(), sink);
    const std::vector<NamespaceInfo> namespaces = engine->ListNamespaces("");
    ShowLearned(namespaces, sink);
    ShowPools(namespaces, sink);
    ShowTenants(namespaces, sink);
    ShowLimits(engine->GetTenants(), sink);
  });
}

void ExportMemory(MemoryAccount* account, const CacheEngine* engine, metrics::Registry* registry) {
  registry->AddCollector([account, engine](Sink& sink) {
    const EngineStats stats = engine->GetStats();
    // These two refuse by themselves.
    const uint64_t arena = stats.tiers[TierKind::kHost]->capacity_bytes;
    account->Measure(MemoryItem::kHost, arena + stats.retired_bytes);
    account->Measure(MemoryItem::kIndex, stats.index_bytes);
    metrics::ExportMemory(*account, "cairn_memory", sink);
  });
}

void ExportDiskTier(const DiskTier* tier, metrics::Registry* registry) {
  registry->AddCollector([tier](Sink& sink) {
    const DiskTierStats stats = tier->GetDiskStats();
    ShowIo("read", stats.reads, sink);
    ShowIo("write", stats.writes, sink);
    ShowIo("sync", stats.syncs, sink);
    sink.Gauge("cairn_disk_segments", "Segment files of the disk tier.", {},
               metrics::Number(stats.segments));
    sink.Gauge("cairn_disk_free_segments", "Segment files without a stored byte.", {},
               metrics::Number(stats.free_segments));
    sink.Counter("cairn_disk_moved_bytes_total", "Bytes written a second time to free a segment.",
                 {}, metrics::Number(stats.moved_bytes));
    sink.Counter("cairn_disk_scrubbed_bytes_total",
                 "Stored bytes that were verified in the background.", {},
                 metrics::Number(stats.scrubbed_bytes));
    sink.Counter("cairn_disk_scrub_failures_total", "Extents found damaged by scrubbing or moving.",
                 {}, metrics::Number(stats.scrub_failures));
    sink.Counter("cairn_disk_corrupt_records_total",
                 "Records that were damaged or pointed nowhere when the node started.", {},
                 metrics::Number(stats.corrupt_records));
    sink.Counter("cairn_disk_trimmed_extents_total",
                 "Extents that were dropped at the start because disk.capacity became smaller.", {},
                 metrics::Number(stats.trimmed_extents));
  });
}

}  // namespace cairn::cache
