#include "tools/cairn/replay/nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/cairn/bench/block_set.h"

namespace cairn::cli::replay {
namespace {

using client::CacheClient;

constexpr std::chrono::seconds kDeadline{10};
constexpr double kTokensPerSecond = 8000;
constexpr size_t kPartsPerCall = 64;
constexpr uint64_t kProgressEach = 64;

// Counts of all tiers, since the node started.
struct Counted {
  uint64_t evictions = 0, disk_bytes = 0;
};

Result<Counted> CountedBy(std::span<const std::unique_ptr<CacheClient>> clients) {
  Counted counted;
  for (const auto& client : clients) {
    CAIRN_ASSIGN_OR_RETURN(const client::NodeStats stats,
                           client->Stat({.deadline = kDeadline, .trace = {}}));
    for (const client::TierStat& tier : stats.tiers) {
      counted.evictions += tier.evicted_blocks;
      if (tier.tier == client::TierKind::kDisk) counted.disk_bytes += tier.written_bytes;
    }
  }
  return counted;
}

class Player {
 public:
  Player(const Trace& trace, std::shared_ptr<const bench::BlockSet> bytes)
      : trace_(trace), bytes_(std::move(bytes)) {}

  Status Play(const TraceRequest& request, CacheClient& node) {
    std::vector<BlockKey> keys;
    // One block of bytes under as many keys as the trace has blocks.
    for (const uint32_t block : request.blocks) keys.push_back(bytes_->Key(block, 0));
    client::MatchOptions ask;
    ask.deadline = kDeadline;
    ask.prefill_tokens_per_second = kTokensPerSecond;
    ask.next = request.next;
    CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome found,
                           node.Match(bytes_->fingerprint(), keys, ask));
    const size_t matched = std::min<size_t>(found.matched_blocks, keys.size());
    result_.Count(trace_, request, matched);
    for (size_t begin = matched; begin < keys.size(); begin += kPartsPerCall) {
      const size_t end = std::min(keys.size(), begin + kPartsPerCall);
      CAIRN_RETURN_IF_ERROR(Store(request, keys, begin, end, node));
    }
    return OkStatus();
  }

  ReplayResult& result() { return result_; }

 private:
  Status Store(const TraceRequest& request, std::span<const BlockKey> keys, size_t begin,
               size_t end, CacheClient& node) {
    std::vector<client::PartToPush> parts;
    double tokens = static_cast<double>(trace_.block_tokens) * static_cast<double>(begin);
    for (size_t at = begin; at < end; ++at) {
      client::PartToPush part;
      part.key = keys[at];
      if (at > 0) part.parent = keys[at - 1];
      part.first_position = at * uint64_t{bytes_->block_tokens()};
      part.rect = bytes_->rect();
      part.bytes = bytes_->Part(0);
      part.hold = bytes_;
      const double before = PrefillSeconds(tokens);
      tokens += trace_.TokensOf(request, at);
      part.compute_seconds = PrefillSeconds(tokens) - before;
      parts.push_back(std::move(part));
    }
    client::PushOptions push;
    push.deadline = kDeadline;
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Status> results,
                           node.Push(bytes_->fingerprint(), parts, push));
    for (const Status& one : results) {
      if (one.ok()) continue;
      if (one.code() != StatusCode::kResourceExhausted) return one;
      ++result_.refused_blocks;
    }
    return OkStatus();
  }

  const Trace& trace_;
  const std::shared_ptr<const bench::BlockSet> bytes_;
  ReplayResult result_;
};

}  // namespace

Result<ReplayResult> ReplayOnNodes(const Trace& trace, const NodesOptions& options,
                                   std::span<const std::unique_ptr<CacheClient>> clients,
                                   const ReplayProgress& progress) {
  CAIRN_ASSIGN_OR_RETURN(
      auto bytes, bench::BlockSet::Make(
                      {.block_bytes = options.block_bytes, .blocks = 1, .seed = options.seed}));
  for (const auto& client : clients) {
    CAIRN_RETURN_IF_ERROR(
        client->OpenNamespace(bytes->spec(), {.deadline = kDeadline, .trace = {}}).status());
  }
  CAIRN_ASSIGN_OR_RETURN(const Counted before, CountedBy(clients));
  Player player(trace, bytes);
  const auto start = std::chrono::steady_clock::now();
  for (const TraceRequest& request : trace.requests) {
    CacheClient& node = *clients[request.blocks.front() % clients.size()];
    const Status status = player.Play(request, node);
    const uint64_t done = player.result().requests;
    if (!status.ok()) return Annotate(status, fmt::format("request {}", done));
    if (progress && done % kProgressEach == 0) progress(done);
  }
  ReplayResult result = player.result();
  result.replay_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CAIRN_ASSIGN_OR_RETURN(const Counted after, CountedBy(clients));
  result.evictions = after.evictions - before.evictions;
  result.disk_writes = (after.disk_bytes - before.disk_bytes) / bytes->part_bytes();
  return result;
}

}  // namespace cairn::cli::replay
