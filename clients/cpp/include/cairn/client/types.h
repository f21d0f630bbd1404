#pragma once
// Types that calls share and the answers of a cache node, in plain C++. Most of the answers are in
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
#include "cairn/common/kv/node_statistics.h"
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
using cairn::NodeStatistics;
using cairn::OpenedNamespace;
using cairn::PrefetchOutcome;
using cairn::SliceInfo;
using cairn::TierKind;
using cairn::TierRoom;
using cairn::TierRun;
using cairn::TierStat;

// How bytes travel between client and node: over shared memory on the same machine, or over gRPC.
enum class Path : uint8_t { kGrpc = 0, kLocal = 1 };
inline constexpr size_t kPathCount = 2;
std::string_view Name(Path path);  // "grpc", "local".

// The options of every call that has no options of its own.
struct CallOptions {
  Duration deadline = std::chrono::seconds(1);  // From now. The call never takes longer.
  std::string trace = {};                       // Logged with all that the call causes.
};

// The wishes of a client for a namespace that are no part of its name.
struct NamespaceOptions {
  // So long after its last use the node serves a block no more. 1 s to 90 days. 0: as the namespace
  // has it already, or else the node's default. Only an administrator can make it shorter than it
  // is: for all others a shorter one changes nothing.
  Duration block_life{0};
};

// The message StatResponse of proto/cairn/v1/cache.proto. Most of its fields are those of
// NodeStatistics.
struct NodeStats : NodeStatistics {
  std::string version = {};
  std::vector<TierStat> tiers = {};  // Fastest first.
  bool draining = false;
};

}  // namespace cairn::client
