#pragma once
// The items of the router's memory, and the bounds that its settings give them.

#include <array>
#include <cstdint>
#include <string>

#include "common/memory/memory_account.h"
#include "services/router/rpc/router_config.h"

namespace cairn::router {

enum class MemoryItem : uint8_t {
  kBodies,       // The bodies of HTTP, and the prompts and tokens that are made of them.
  kPicker,       // The same of a gateway, and gRPC's frames of it.
  kUnread,       // Answers of HTTP that wait for their readers.
  kAnswers,      // Whole answers of engines that arrive, and answers of gRPC.
  kRequests,     // Decoded requests and frames of gRPC.
  kReading,      // JSON trees of bodies that are being read.
  kConnections,  // Heads and buffers.
  kIndex,
  kTokenCache,
  kEngineEvents,  // What engines say that they hold.
  kProcess,       // Code, threads, the vocabulary, calls of workers and engines.
};

}  // namespace cairn::router

template <>
struct cairn::MemoryItems<cairn::router::MemoryItem> {
  static constexpr std::array<MemoryItemText, 11> kTexts = {{
      {"bodies", "http.all_bodies"},
      {"picker", "picker.all_bodies"},
      {"unread", "http.all_unread"},
      {"answers", "all_answers"},
      {"rpc", "rpc.requests"},
      {"reading", "http.max_body"},
      {"connections", "http.max_connections"},
      {"index", "index"},
      {"token_cache", "token_cache"},
      {"engine_events", "engines.event_blocks"},
      {"process", ""},
  }};
};

namespace cairn::router {

using MemoryAccount = MemoryAccountOf<MemoryItem>;

// The most memory that the router takes by these settings.
MemoryAccount::Bounds MemoryBounds(const RouterConfig& config);

// Makes it fit into memory.limit and into what this machine has left. Settings that have their
// defaults give way. RESOURCE_EXHAUSTED names all items.
Status FitMemory(RouterConfig* config);

// "memory: index 256 + process 128 = 384 MiB": all items, and their sum.
std::string DescribeMemory(const RouterConfig& config);

}  // namespace cairn::router
