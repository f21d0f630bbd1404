#include "tools/cairn/replay/replay.h"

#include <fstream>
#include <iostream>
#include <random>

#include "cairn/client/connect.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/progress.h"
#include "tools/cairn/replay/nodes.h"

namespace cairn::cli {
namespace {

Result<replay::Trace> Open(const std::string& path, uint32_t block_tokens) {
  if (path == "-") return replay::ReadTrace(std::cin, "standard input", block_tokens);
  std::ifstream in(path);
  if (!in) return Errorf(StatusCode::kNotFound, "{}: cannot be opened", path);
  return replay::ReadTrace(in, path, block_tokens);
}

Json ToJson(const ReplayFlags& flags, const replay::ReplayResult& result) {
  Json json;
  json["trace"] = flags.trace;
  if (flags.nodes.empty()) {
    json["policy"] = flags.policy;
    json["capacity_tokens"] = flags.capacity_tokens;
    json["disk_tokens"] = flags.disk_tokens;
  } else {
    json["nodes"] = flags.nodes;
    json["block_bytes"] = flags.block_bytes;
    json["refused_blocks"] = result.refused_blocks;
  }
  json["block_tokens"] = flags.block_tokens;
  json["hints_percent"] = flags.hints;
  json["requests"] = result.requests;
  json["blocks"] = result.blocks;
  json["hit_rate_blocks"] = result.HitRateBlocks();
  json["hit_rate_tokens"] = result.HitRateTokens();
  json["seconds_saved"] = result.seconds_saved;
  json["evictions"] = result.evictions;
  json["disk_writes"] = result.disk_writes;
  json["replay_seconds"] = result.replay_seconds;
  return json;
}

Result<replay::ReplayResult> OnNodes(const ReplayFlags& flags, const replay::Trace& trace,
                                     const replay::ReplayProgress& progress) {
  std::vector<std::unique_ptr<client::CacheClient>> clients;
  for (const std::string& address : flags.nodes) {
    CAIRN_ASSIGN_OR_RETURN(auto client, client::Connect(ConnectionTo(address, flags.tls)));
    clients.push_back(std::move(client));
  }
  std::random_device random;
  return replay::ReplayOnNodes(trace, {.block_bytes = flags.block_bytes, .seed = random()}, clients,
                               progress);
}

std::string Named(const ReplayFlags& flags) {
  if (!flags.nodes.empty()) return std::to_string(flags.nodes.size()) + " nodes";
  return flags.policy + ", " + std::to_string(flags.capacity_tokens) + " tokens";
}

}  // namespace

int RunReplay(const ReplayFlags& flags) {
  if (flags.nodes.empty() && flags.capacity_tokens < flags.block_tokens) {
    return FailUsage("--capacity-tokens: expected at least one block");
  }
  auto trace = Open(flags.trace, flags.block_tokens);
  if (!trace.ok()) return Fail(trace.status());
  replay::AddHints(&*trace, flags.hints);
  replay::ReplayResult result;
  Progress progress(/*silent=*/false);
  const auto show = [&](uint64_t done) {
    progress.Doing(std::to_string(done) + " of " + std::to_string(trace->requests.size()) +
                   " requests");
  };
  if (!flags.nodes.empty()) {
    auto played = OnNodes(flags, *trace, show);
    if (!played.ok()) return Fail(played.status());
    result = *played;
  } else if (flags.policy == kOptimum) {
    if (flags.disk_tokens > 0) return FailUsage("--policy optimum knows no --disk-tokens");
    result = replay::ReplayOptimum(*trace, flags.capacity_tokens);
  } else {
    result = replay::Replay(*trace,
                            {.policy = *cache::ParseEvictionKind(flags.policy),
                             .capacity_tokens = flags.capacity_tokens,
                             .disk_tokens = flags.disk_tokens},
                            show);
  }
  if (flags.json) {
    std::printf("%s\n", Dump(ToJson(flags, result)).c_str());
    return kExitOk;
  }
  std::printf(
      "%s: %.4f of the blocks hit, %.4f of the tokens\n"
      "prefill saved %.0f s, %llu evictions, %llu disk writes, replayed in %.3f s\n",
      Named(flags).c_str(), result.HitRateBlocks(), result.HitRateTokens(), result.seconds_saved,
      static_cast<unsigned long long>(result.evictions),
      static_cast<unsigned long long>(result.disk_writes), result.replay_seconds);
  return kExitOk;
}

}  // namespace cairn::cli
