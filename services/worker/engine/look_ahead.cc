#include "services/worker/engine/look_ahead.h"

#include <algorithm>
#include <chrono>
#include <span>

namespace cairn::worker {
namespace {

// Limit for the question to the node about a request that waits: long enough for one nearby.
// Without an answer, all of the prompt counts.
constexpr std::chrono::milliseconds kQueueCallDeadline{10};
// The longest time ahead that a node takes hints for (CacheClient::Prefetch).
constexpr double kMostAheadSeconds = 300;

}  // namespace

LookAhead::Cached LookAhead::Find(const Job& job) const {
  Cached cached;
  if (job.request().no_cache) return cached;
  const auto& tokens = job.prompt().tokens;
  cached.keys = session_.Keys(std::span<const model::TokenId>(tokens).first(tokens.size() - 1));
  if (cached.keys.empty()) return cached;
  const auto found = client_.Exists(session_.fingerprint(), cached.keys,
                                    {.deadline = kQueueCallDeadline, .trace = job.request().trace});
  size_t matched = 0;
  while (found.ok() && matched < found->size() && (*found)[matched].has_value()) {
    cached.below_memory += Faster(TierKind::kHost, *(*found)[matched]) ? 1 : 0;
    ++matched;
  }
  cached.keys.resize(matched);
  return cached;
}

uint64_t LookAhead::Announce(const Job& job, const Cached& cached) const {
  const auto wait = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(job.expected_wait(), kMostAheadSeconds)));
  const auto asked =
      client_.Prefetch(session_.fingerprint(), cached.keys, wait,
                       {.deadline = kQueueCallDeadline, .trace = job.request().trace});
  return asked.ok() ? asked->queued_blocks : 0;
}

}  // namespace cairn::worker
