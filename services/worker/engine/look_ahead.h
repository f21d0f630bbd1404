#pragma once
// What the cache node has of prompts that wait, and the hint that they will be needed.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cairn/client/cache_client.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/session/prefix_session.h"

namespace cairn::worker {

// Thread-safe.
class LookAhead {
 public:
  // Both must outlive it.
  LookAhead(client::CacheClient& client, const PrefixSession& session)
      : client_(client), session_(session) {}

  // The blocks at the beginning of a prompt that the node has now.
  struct Cached {
    std::vector<BlockKey> keys;
    size_t below_memory = 0;  // How many of them lie in a tier slower than memory.
  };
  // Asks the node once, for at most 10 ms, and promises nothing. Without an answer: none.
  Cached Find(const Job& job) const;
  // Asks the node to have the blocks in memory when the request starts. The node bounds what such
  // hints may hold and evict, and counts it to the namespace. Returns how many blocks it brings.
  uint64_t Announce(const Job& job, const Cached& cached) const;

 private:
  client::CacheClient& client_;
  const PrefixSession& session_;
};

}  // namespace cairn::worker
