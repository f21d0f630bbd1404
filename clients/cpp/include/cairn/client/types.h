#pragma once
// What a cache node answers and what calls share, in plain C++. Most of the answers are in
// cairn/common/kv, since the node has the same types.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/kv/answers.h"
#include "cairn/common/kv/cache_event.h"
#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"

namespace cairn::client {

using cairn::CacheEvent;
using cairn::DropResult;
using cairn::kMissReasonCount;
using cairn::kNodeMissReasonCount;
using cairn::kTierCount;
using cairn::MatchedPrefix;
using cairn::MissReason;
using cairn::Name;
using cairn::NamespaceInfo;
using cairn::OpenedNamespace;
using cairn::PrefetchOutcome;
using cairn::SliceInfo;
using cairn::TierKind;
using cairn::TierRun;

// How bytes travel between client and node: over shared memory on the same machine, or over gRPC.
enum class Path : uint8_t { kGrpc = 0, kLocal = 1 };
inline constexpr size_t kPathCount = 2;
std::string_view Name(Path path);  // "grpc", "local".

// The options of every call that has no options of its own.
struct CallOptions {
  Duration deadline = std::chrono::seconds(1);  // From now. The call never takes longer.
  std::string trace = {};                       // Logged with all that the call causes.
};

struct TierStat {
  TierKind tier = TierKind::kHost;
  uint64_t capacity_bytes = 0, used_bytes = 0, blocks = 0, read_bytes = 0, written_bytes = 0,
           evicted_blocks = 0;
};

// The message StatResponse of proto/cairn/v1/cache.proto, which documents the fields.
struct NodeStats {
  std::string node_id = {};
  uint64_t node_epoch = 0;
  std::string version = {};
  double uptime_seconds = 0;
  std::vector<TierStat> tiers = {};
  uint64_t namespaces = 0, blocks = 0, incomplete_blocks = 0, leases = 0, reservations = 0,
           reserved_bytes = 0, sessions = 0, unflushed_bytes = 0, index_bytes = 0,
           matched_tokens = 0, missed_tokens = 0, fetched_bytes = 0, pushed_bytes = 0,
           fetched_host_bytes = 0, fetched_disk_bytes = 0, promoted_blocks = 0, corrupt_blocks = 0,
           prefetched_blocks = 0, prefetched_used_blocks = 0;
  uint64_t misses[kNodeMissReasonCount] = {};  // Blocks not served, by MissReason.
  bool draining = false;
  double prefill_seconds_saved = 0;
  std::string disk_io_mode = {};
};

}  // namespace cairn::client
