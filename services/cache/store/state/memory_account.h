#pragma once
// The items of the node's memory.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/memory/memory_account.h"

namespace cairn::cache {

enum class MemoryItem : uint8_t {
  kHost,   // The arena of the host tier, and memory that its readers still map.
  kIndex,  // Blocks, their parts, where they lie on disk, and what remembers removed ones.
  // Memory of leases and reservations in addition to the bytes of the blocks, and the parts of the
  // index of dropped namespaces that leases keep.
  kLeases,
  kNamespaces,    // Texts and layouts of namespaces, in the engine and in the protocol's cache, and
                  // bumps.
  kFetchHeaders,  // Keys and places of the blocks that fetches under way have taken.
  kTransfers,     // Buffers of fetches that read from disk or from a source.
  kRpc,           // Frames and messages of gRPC.
  kWatches,       // Events that wait for watchers.
  kSessions,      // Sessions, and the rings of the same-node path.
  kCluster,       // Waymarks: this node's own, and those of others that it keeps.
  kEvents,        // Batches of events for routers: those that are kept, and those that wait.
  kDisk,          // RocksDB, blocks that are moved, copied or encoded again.
  kProcess,       // Code, threads, gRPC itself.
};
inline constexpr size_t kMemoryItems = 13;

}  // namespace cairn::cache

template <>
struct cairn::MemoryItems<cairn::cache::MemoryItem> {
  static constexpr std::array<MemoryItemText, cache::kMemoryItems> kTexts = {{
      {"host", "host.capacity"},
      {"index", "index.capacity"},
      {"leases", "limits.lease_memory"},
      {"namespaces", "limits.namespace_memory"},
      {"fetch_headers", "limits.fetch_headers"},
      {"transfers", "limits.transfers"},
      {"rpc", "rpc.memory"},
      {"watches", "watch.memory"},
      {"sessions", "limits.session_memory"},
      {"cluster", "cluster.memory"},
      {"events", "events.memory"},
      {"disk", ""},
      {"process", ""},
  }};
};

namespace cairn::cache {

using MemoryCharge = MemoryChargeOf<MemoryItem>;

// Thread-safe, without locks. Outlives its charges.
class MemoryAccount final : public MemoryAccountOf<MemoryItem> {
 public:
  using MemoryAccountOf::MemoryAccountOf;
};

// As in metrics and errors: "fetch_headers".
inline std::string_view Name(MemoryItem item) { return MemoryAccount::TextOf(item).name; }
// The setting that bounds the item; "" for those that have none (disk, process).
inline std::string_view SettingOf(MemoryItem item) { return MemoryAccount::TextOf(item).setting; }

}  // namespace cairn::cache
