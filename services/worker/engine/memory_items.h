#pragma once
// The items of a worker's memory.

#include <array>
#include <cstdint>

#include "common/memory/memory_account.h"

namespace cairn::worker {

enum class MemoryItem : uint8_t {
  kWeights,   // As the kernels read them.
  kPool,      // Pages of KV, those that wait for their push included.
  kParking,   // KV of requests that gave their pages away.
  kNear,      // What read policies keep of contexts.
  kCompute,   // Activations and scratch memory.
  kRequests,  // Decoded requests and frames of gRPC.
  kProcess,   // Code, threads, the vocabulary, batches that are pushed or fetched.
};

}  // namespace cairn::worker

template <>
struct cairn::MemoryItems<cairn::worker::MemoryItem> {
  static constexpr std::array<MemoryItemText, 7> kTexts = {{
      {"weights", "model"},
      {"pool", "kv_pool"},
      {"parking", "parking"},
      {"near", "kv_budget"},
      {"compute", "threads"},
      {"rpc", "rpc.requests"},
      {"process", ""},
  }};
};

namespace cairn::worker {

using MemoryAccount = MemoryAccountOf<MemoryItem>;

}  // namespace cairn::worker
