#pragma once
// Limits and times of the engine. Constant while it runs.

#include <chrono>
#include <cstdint>

#include "cairn/common/clock.h"
#include "services/cache/store/placement/policies.h"

namespace cairn::cache {

struct EngineOptions {
  Duration default_lease_ttl = std::chrono::seconds(30);
  Duration max_lease_ttl = std::chrono::seconds(600);
  Duration default_reservation_ttl = std::chrono::seconds(30);
  Duration max_reservation_ttl = std::chrono::seconds(600);
  // An incomplete block (some parts committed) is dropped after this.
  Duration incomplete_ttl = std::chrono::seconds(60);
  // Budgets; over them: RESOURCE_EXHAUSTED.
  // Uncommitted reservations, all sessions. 0: half of the host tier.
  uint64_t max_reserved_bytes = 0;
  uint64_t max_incomplete_bytes = 0;  // 0: a quarter of the host tier.
  uint64_t max_index_bytes = 1ull << 30;
  // Buffers of fetches that read past the host tier, from disk or from a source.
  uint64_t max_transfer_bytes = 64ull << 20;
  // Memory of copies to disk that are encoded again, or verified as a copy of their own.
  uint64_t max_copy_bytes = 48ull << 20;
  uint32_t max_sessions = 1024;
  uint32_t max_leases_per_session = 4096;
  uint32_t max_namespaces = 4096;
  uint32_t mover_queue_capacity = 4096;   // Waiting moves per (source, target).
  uint32_t watch_queue_capacity = 65536;  // Events a slow watcher may lag behind.
  // Limit for the blocks that prefetch hints hold at a time. 0: a quarter of the host tier.
  uint64_t max_hinted_bytes = 0;
  // A hint holds so much longer than it says.
  Duration prefetch_grace = std::chrono::seconds(2);
  // How long a match waits for a source, and a fetch for one block from it, from the moment at
  // which it is asked.
  Duration source_lookup_timeout = std::chrono::milliseconds(5);
  Duration source_read_timeout = std::chrono::seconds(1);
  // The most that a match waits for blocks that somebody writes.
  Duration max_match_wait = std::chrono::seconds(5);
  // Which blocks are copied to disk (placement/disk_admission.h).
  Duration disk_flush_after = std::chrono::seconds(1);
  // Share of the disk tier above which a block needs a second touch. 1: none does.
  double disk_high_water = 1.0;
  uint64_t disk_write_budget = 0;  // Bytes a second; 0: no limit.
  // Which block of a namespace leaves a tier first (placement/policies.h).
  EvictionKind eviction = EvictionKind::kLru;
  // How long blocks live after their last use, in namespaces whose opening says nothing. 0:
  // forever.
  Duration block_life{0};
  // Seconds since 1970, for what outlives the process. It may jump. nullptr: the system's clock.
  int64_t (*unix_seconds)() = nullptr;
};

// The shortest and the longest life of blocks that a namespace may ask for.
inline constexpr Duration kShortestBlockLife = std::chrono::seconds(1);
inline constexpr Duration kLongestBlockLife = std::chrono::hours(24 * 90);

}  // namespace cairn::cache
