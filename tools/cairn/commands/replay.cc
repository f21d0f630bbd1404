#include "tools/cairn/replay/replay.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <random>

#include "cairn/client/connect.h"
#include "tools/cairn/bench/block_set.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
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
    client::ConnectOptions connection = ConnectionTo(address, flags.tls);
    connection.tenant = bench::BlockSet::kTenant;
    CAIRN_ASSIGN_OR_RETURN(auto client, client::Connect(connection));
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

void AddReplay(CLI::App& app, ReplayFlags& o) {
  CLI::App& c =
      *app.add_subcommand("replay", "Replays a trace of requests against the placement of a node");
  c.add_option("trace", o.trace, "File with one request per line; -: standard input")->required();
  CLI::Option* const capacity =
      c.add_option("--capacity-tokens", o.capacity_tokens, "Room of the host tier, in tokens");
  c.add_option("--disk-tokens", o.disk_tokens, "Room of a disk tier, in tokens; 0: none")
      ->capture_default_str();
  c.add_option("--block-tokens", o.block_tokens, "Tokens of a block of the trace")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  c.add_option("--policy", o.policy,
               "Which block leaves first; optimum: the bound that knows the future")
      ->check(CLI::IsMember({"lru", "s3fifo", "gdsf", "cairn", kOptimum}))
      ->capture_default_str();
  c.add_option("--hints", o.hints,
               "Percent of the requests that say whether their conversation goes on")
      ->check(CLI::Range(0u, 100u))
      ->capture_default_str();
  CLI::Option* const nodes =
      c.add_option("--nodes", o.nodes,
                   "Replay on the nodes at these addresses, which have their own room and policy")
          ->delimiter(',')
          ->excludes(capacity);
  c.add_option("--block-bytes", o.block_bytes, "Bytes that a node gets for a block of the trace")
      ->needs(nodes)
      ->check(CLI::Range(uint64_t{128}, uint64_t{1} << 20))
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Examples:\n"
      "  cairn replay tests/data/traces/conversation_trace.jsonl --nodes 127.0.0.1:7400\n"
      "  cairn replay tests/data/traces/conversation_trace.jsonl --capacity-tokens 3000000 "
      "--policy cairn --json");
}

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
