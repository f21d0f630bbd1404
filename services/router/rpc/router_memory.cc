#include "services/router/rpc/router_memory.h"

#include <algorithm>
#include <vector>

#include "common/memory/machine_memory.h"
#include "common/memory/memory_plan.h"
#include "services/router/events/engine_view.h"
#include "services/router/http/body_reads.h"

namespace cairn::router {
namespace {

constexpr uint64_t kMiB = 1 << 20;
// The process itself: code, threads, gRPC, a vocabulary.
constexpr uint64_t kProcess = 128 * kMiB;
// A connection without its head: the buffer that it reads into, the bytes of the next request that
// wait, and itself.
constexpr uint64_t kConnection = 28 << 10;
// OpenSSL's and Asio's buffers of one.
constexpr uint64_t kTlsConnection = 72 << 10;
// Settings that nobody set give way down to these.
constexpr uint64_t kLeastIndex = 32 * kMiB;
constexpr uint64_t kLeastTokenCache = 8 * kMiB;
constexpr uint64_t kLeastBodies = 64 * kMiB;
constexpr uint64_t kLeastUnread = 16 * kMiB;
constexpr uint64_t kLeastRequests = 32 * kMiB;
constexpr uint64_t kLeastAnswers = 16 * kMiB;
constexpr uint64_t kLeastConnections = 512;

uint64_t ConnectionBytes(const RouterConfig& c) {
  return c.http.max_head + kConnection + (c.tls.enabled() ? kTlsConnection : 0);
}

bool Asks(const RouterConfig& c) {
  return c.relays() && AsksForTokens(c.engines, c.follows_engines());
}

// The caches of the model's vocabulary, and of the tokens that engines tell.
uint64_t TokenCaches(const RouterConfig& c) { return Asks(c) && !c.model.empty() ? 2 : 1; }

std::vector<PlannedMemory> Plan(const RouterConfig& c) {
  const MemoryAccount::Bounds bounds = MemoryBounds(c);
  std::vector<PlannedMemory> items;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const MemoryItemText& text = MemoryAccount::TextOf(static_cast<MemoryItem>(i));
    items.push_back({text.setting.empty() ? text.name : text.setting, bounds[i]});
  }
  return items;
}

}  // namespace

MemoryAccount::Bounds MemoryBounds(const RouterConfig& c) {
  MemoryAccount::Bounds bounds{};
  const auto at = [&bounds](MemoryItem item) -> uint64_t& {
    return bounds[static_cast<size_t>(item)];
  };
  uint64_t longest = 0;
  if (!c.http.listen.empty()) {
    at(MemoryItem::kBodies) = c.http.all_bodies;
    at(MemoryItem::kUnread) = c.http.all_unread;
    at(MemoryItem::kConnections) = c.http.max_connections * ConnectionBytes(c);
    longest = c.http.max_body;
  }
  if (!c.picker.listen.empty()) {
    at(MemoryItem::kPicker) = c.picker.all_bodies + FrameBytes(c.picker);
    longest = std::max(longest, c.picker.max_body);
  }
  at(MemoryItem::kRequests) = 2 * c.rpc_requests;
  at(MemoryItem::kAnswers) = c.all_answers;
  // A router that asks an engine for tokens reads the body, too.
  at(MemoryItem::kReading) =
      (c.http.threads + (Asks(c) ? c.threads : 0)) * BodyReads::MostBytes(longest);
  at(MemoryItem::kIndex) = c.index_bytes;
  at(MemoryItem::kTokenCache) = c.token_cache * TokenCaches(c);
  at(MemoryItem::kEngineEvents) =
      c.engine_events.engines() * c.engine_events.blocks * EngineView::kBlockBytes;
  at(MemoryItem::kProcess) = kProcess;
  return bounds;
}

Status FitMemory(RouterConfig* config) {
  RouterConfig& c = *config;
  const RouterConfig defaults;
  std::vector<PlannedMemory> items = Plan(c);
  const auto at = [&items](MemoryItem item) -> PlannedMemory& {
    return items[static_cast<size_t>(item)];
  };
  const auto yields = [&at](MemoryItem item, bool is_default, uint64_t least) {
    if (is_default) at(item).least = least;
  };
  yields(MemoryItem::kIndex, c.index_bytes == defaults.index_bytes, kLeastIndex);
  yields(MemoryItem::kTokenCache, c.token_cache == defaults.token_cache, kLeastTokenCache);
  yields(MemoryItem::kBodies, c.http.all_bodies == defaults.http.all_bodies,
         std::max(kLeastBodies, c.http.max_body));
  yields(MemoryItem::kUnread, c.http.all_unread == defaults.http.all_unread, kLeastUnread);
  yields(MemoryItem::kRequests, c.rpc_requests == defaults.rpc_requests, kLeastRequests);
  yields(MemoryItem::kAnswers, c.all_answers == defaults.all_answers,
         std::max(kLeastAnswers, c.relays() ? 2 * c.engines.max_answer : 0));
  yields(MemoryItem::kConnections, c.http.max_connections == defaults.http.max_connections,
         kLeastConnections * ConnectionBytes(c));
  CAIRN_RETURN_IF_ERROR(cairn::FitMemory(items, c.memory_limit, ReadMachineMemory()));
  c.index_bytes = at(MemoryItem::kIndex).bytes;
  c.token_cache = at(MemoryItem::kTokenCache).bytes / TokenCaches(c);
  c.rpc_requests = at(MemoryItem::kRequests).bytes / 2;
  c.all_answers = at(MemoryItem::kAnswers).bytes;
  if (c.http.listen.empty()) return OkStatus();
  c.http.all_bodies = at(MemoryItem::kBodies).bytes;
  c.http.all_unread = at(MemoryItem::kUnread).bytes;
  c.http.max_connections =
      static_cast<uint32_t>(at(MemoryItem::kConnections).bytes / ConnectionBytes(c));
  return OkStatus();
}

std::string DescribeMemory(const RouterConfig& config) {
  return "memory: " + cairn::DescribeMemory(Plan(config));
}

}  // namespace cairn::router
