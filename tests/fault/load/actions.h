#pragma once
// One reader's and one writer's step, with every byte checked. Thread-safe as the client is.

#include <array>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "tests/fault/load/fault_model.h"

namespace cairn::fault {

struct ReadOptions {
  format::PartRect want{};  // Zero: the whole rectangle.
  // For reads that have to succeed, on busy machines too.
  Duration match_deadline = std::chrono::seconds(15);
  Duration fetch_deadline = std::chrono::seconds(60);
  Duration progress = std::chrono::seconds(15);
  Duration slice_pause{0};  // Spent on each slice: a slow reader.
  std::stop_token cancel = {};
};

struct ReadOutcome {
  Status status;  // The status of the call that ended it.
  uint32_t matched_blocks = 0;
  uint32_t complete_blocks = 0;  // The whole wanted rectangle came, and is right.
  // How many of these are complete, from the first key without a gap.
  uint32_t complete_prefix = 0;
  uint32_t failed_blocks = 0;  // Reported as failed.
  uint64_t slices = 0;
  uint64_t verified_bytes = 0;
  std::array<uint64_t, client::kMissReasonCount> misses{};  // Blocks, by reason.
  // Must stay empty: wrong bytes, or blocks that are neither there nor reported although the fetch
  // says that it is whole.
  std::vector<std::string> wrong;
};

// Matches the keys and fetches what matched.
ReadOutcome Read(client::CacheClient& client, const FaultModel& model,
                 std::span<const BlockKey> keys, const ReadOptions& options = {});

struct WriteOutcome {
  Status status;  // The status of the call.
  // How many of those asked for, from the first, have a part that is stored now.
  uint32_t stored_blocks = 0;
  uint64_t stored_bytes = 0;
  uint32_t refused_parts = 0;
  Status refused;  // Why the first of them was.
};

// Pushes the part `rect` of keys [first, end).
WriteOutcome Write(client::CacheClient& client, const FaultModel& model,
                   std::span<const BlockKey> keys, size_t first, const format::PartRect& rect,
                   Duration deadline = std::chrono::seconds(15));

}  // namespace cairn::fault
