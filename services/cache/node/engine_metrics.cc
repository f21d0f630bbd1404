#include "services/cache/node/engine_metrics.h"

#include "services/cache/tier/disk/disk_tier.h"

namespace cairn::cache {
namespace {

using metrics::Labels;
using metrics::Sink;

double D(uint64_t value) { return static_cast<double>(value); }

void CollectTiers(const EngineStats& stats, Sink& sink) {
  for (const TierKind kind : kTiersByRank) {
    if (!stats.tiers[kind]) continue;
    const TierState& tier = *stats.tiers[kind];
    const Labels labels = {{"tier", std::string(Name(kind))}};
    sink.Gauge("cairn_tier_capacity_bytes", "Capacity of the tier.", labels,
               D(tier.stats.capacity_bytes));
    sink.Gauge("cairn_tier_used_bytes", "Bytes allocated in the tier, including rounding.", labels,
               D(tier.stats.used_bytes));
    sink.Gauge("cairn_tier_blocks", "Complete blocks in the tier.", labels, D(tier.blocks));
    sink.Counter("cairn_evicted_blocks_total", "Blocks that left the tier to make room.", labels,
                 D(tier.evicted_blocks));
    sink.Counter("cairn_evicted_bytes_total", "Bytes of blocks that left the tier to make room.",
                 labels, D(tier.evicted_bytes));
    sink.Counter("cairn_tier_io_errors_total", "Reads and writes of the tier that failed.", labels,
                 D(tier.stats.io_errors));
    sink.Gauge("cairn_tier_read_bytes_per_second",
               "Speed of recent reads, which the estimates of fetches use.", labels,
               tier.read_bytes_per_second);
  }
}

void CollectTransfers(const EngineStats& stats, Sink& sink) {
  const auto add = [&](const char* src, const char* dst, uint64_t bytes) {
    sink.Counter("cairn_transfer_bytes_total", "Bytes moved between two places.",
                 {{"src", src}, {"dst", dst}}, D(bytes));
  };
  add("client", "host", stats.pushed_bytes);
  add("host", "client", stats.fetched_from[TierKind::kHost]);
  add("disk", "client", stats.fetched_from[TierKind::kDisk]);
  const auto& disk = stats.tiers[TierKind::kDisk];
  add("host", "disk", disk ? disk->stats.written_bytes : 0);
  add("disk", "host", disk ? disk->stats.read_bytes : 0);
}

void Collect(const EngineStats& stats, Sink& sink) {
  CollectTiers(stats, sink);
  CollectTransfers(stats, sink);
  for (size_t i = 1; i < kNodeMissReasonCount; ++i) {
    sink.Counter("cairn_miss_blocks_total",
                 "Blocks that were asked for with a lease and not served, by reason.",
                 {{"reason", std::string(Name(static_cast<MissReason>(i)))}}, D(stats.misses[i]));
  }
  const auto prefetched = [&](const char* outcome, uint64_t blocks) {
    sink.Counter("cairn_prefetched_blocks_total",
                 "Blocks that hints brought to the host tier, by what happened to them.",
                 {{"outcome", outcome}}, D(blocks));
  };
  prefetched("brought", stats.prefetched_blocks);
  prefetched("used", stats.prefetched_used_blocks);
  prefetched("wasted", stats.prefetched_wasted_blocks);
  const auto gauge = [&](const char* name, const char* help, double value) {
    sink.Gauge(name, help, {}, value);
  };
  const auto counter = [&](const char* name, const char* help, double value) {
    sink.Counter(name, help, {}, value);
  };
  gauge("cairn_namespaces", "Namespaces that the node knows.", D(stats.namespaces));
  gauge("cairn_index_entries", "Complete blocks in the index.", D(stats.blocks));
  gauge("cairn_index_bytes", "Memory that the index uses.", D(stats.index_bytes));
  gauge("cairn_incomplete_blocks", "Blocks of which parts are missing.",
        D(stats.incomplete_blocks));
  gauge("cairn_sessions", "Open sessions.", D(stats.sessions));
  gauge("cairn_leases", "Leases that are held.", D(stats.leases));
  gauge("cairn_reservations", "Reservations that are held.", D(stats.reservations));
  gauge("cairn_reserved_bytes", "Bytes that are reserved and not committed.",
        D(stats.reserved_bytes));
  gauge("cairn_unflushed_bytes", "Committed bytes that are not on disk yet.",
        D(stats.unflushed_bytes));
  gauge("cairn_mover_queue_blocks", "Moves that wait between two tiers.",
        D(stats.mover_queue_depth));
  gauge("cairn_hinted_bytes", "Bytes that prefetch hints protect.", D(stats.hinted_bytes));
  counter("cairn_mover_merged_total", "Requested moves that were already waiting or running.",
          D(stats.merged_moves));
  counter("cairn_mover_cancelled_total",
          "Moves dropped before they began: nobody waited for them, or others were more urgent.",
          D(stats.cancelled_moves));
  counter("cairn_tokens_saved_total",
          "Tokens that Match found: prefill that nobody had to compute.", D(stats.matched_tokens));
  counter("cairn_prefill_seconds_saved_total",
          "The prefill time that this saved, by the speed that clients gave.",
          stats.prefill_seconds_saved);
  counter("cairn_promoted_blocks_total", "Blocks copied from disk to the host tier.",
          D(stats.promoted_blocks));
  counter("cairn_demoted_blocks_total", "Blocks copied from the host tier to disk.",
          D(stats.demoted_blocks));
  const auto declined = [&](const char* reason, uint64_t value) {
    sink.Counter("cairn_declined_copies_total",
                 "Committed blocks that were not copied to disk, by reason.", {{"reason", reason}},
                 D(value));
  };
  declined("second_touch", stats.untouched_copies);
  declined("write_budget", stats.over_budget_copies);
  declined("not_encodable", stats.unencodable_copies);
  const auto recoded = [&](const char* form, uint64_t bytes) {
    sink.Counter("cairn_recoded_bytes_total",
                 "Bytes that ladders encoded again before they went to disk.", {{"form", form}},
                 D(bytes));
  };
  recoded("before", stats.recoded_bytes_in);
  recoded("after", stats.recoded_bytes_out);
  counter("cairn_late_copies_total",
          "Blocks that were copied to disk, or given up, later than disk.flush_after allows.",
          D(stats.late_copies));
  counter("cairn_checksum_failures_total",
          "Blocks removed because bytes did not match their checksum.", D(stats.corrupt_blocks));
  counter("cairn_commits_total", "Parts that became visible.", D(stats.commits));
  counter("cairn_expired_leases_total", "Leases that expired before they were released.",
          D(stats.expired_leases));
  counter("cairn_expired_reservations_total",
          "Reservations taken back because nobody committed them.", D(stats.expired_reservations));
  counter("cairn_events_dropped_total", "Events lost because a watcher was too slow.",
          D(stats.dropped_events));
}

}  // namespace

void ExportEngine(const CacheEngine* engine, metrics::Registry* registry) {
  registry->AddCollector([engine](Sink& sink) { Collect(engine->GetStats(), sink); });
}

void ExportDiskTier(const DiskTier* tier, metrics::Registry* registry) {
  registry->AddCollector([tier](Sink& sink) {
    const DiskTierStats stats = tier->GetDiskStats();
    sink.Gauge("cairn_disk_segments", "Segment files of the disk tier.", {}, D(stats.segments));
    sink.Gauge("cairn_disk_free_segments", "Segment files without a stored byte.", {},
               D(stats.free_segments));
    sink.Counter("cairn_disk_moved_bytes_total", "Bytes written a second time to free a segment.",
                 {}, D(stats.moved_bytes));
    sink.Counter("cairn_disk_scrubbed_bytes_total",
                 "Stored bytes that were verified in the background.", {}, D(stats.scrubbed_bytes));
    sink.Counter("cairn_disk_scrub_failures_total", "Extents found damaged by scrubbing or moving.",
                 {}, D(stats.scrub_failures));
    sink.Counter("cairn_disk_corrupt_records_total",
                 "Records that were damaged or pointed nowhere when the node started.", {},
                 D(stats.corrupt_records));
  });
}

}  // namespace cairn::cache
