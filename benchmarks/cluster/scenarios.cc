#include "benchmarks/cluster/scenarios.h"

#include <iostream>
#include <thread>

#include "benchmarks/cluster/trace.h"
#include "tests/fault/cluster/cluster_on_lab.h"

namespace cairn::bench {
namespace {

using fault::ClusterOnLab;
using fault::FaultModel;
using fault::FaultModelOptions;
using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Process;

constexpr uint64_t kMbit = 1'000'000;
constexpr seconds kPatience(60);

double Now() { return Seconds(SteadyClock::Get().Now().time_since_epoch()); }

// Blocks of 1 MiB.
FaultModelOptions LargeBlocks(const std::string& name) {
  return {.tenant = "bench",
          .model = name,
          .layers = 8,
          .kv_heads = 8,
          .dim = 64,
          .block_tokens = 64,
          .roots = 1 << 30,
          .branching = 1,
          .depth = 1};
}
// Blocks of 2 KiB.
FaultModelOptions SmallBlocks(const std::string& name) {
  FaultModelOptions options = LargeBlocks(name);
  options.layers = options.kv_heads = 1;
  options.dim = 8;
  return options;
}

std::vector<BlockKey> Prompt(uint64_t number, size_t blocks) {
  std::vector<BlockKey> keys;
  Sha256 hash;
  BlockKey before{};
  for (size_t i = 0; i < blocks; ++i) {
    before = hash.Update("bench").Update(before.View()).UpdateU64(number).UpdateU64(i).Finish();
    keys.push_back(before);
  }
  return keys;
}

std::vector<std::string> RoomFor(uint64_t mib) {
  return {"--host.capacity", fmt::format("{}MiB", mib), "--host.prefault", "false"};
}

// Takes what comes and knows when the first slice came.
class Sink final : public client::FetchSink {
 public:
  Status OnSlice(const client::SliceInfo&, std::span<const std::byte> data) override {
    if (bytes == 0) first = Now();
    bytes += data.size();
    return OkStatus();
  }
  void OnBlockFailed(uint32_t, client::MissReason) override { ++failed; }
  double first = 0;
  uint64_t bytes = 0, failed = 0;
};

struct Got {
  uint32_t blocks = 0;  // That came.
  double seconds = 0, first_seconds = 0;
};
Result<Got> Get(client::CacheClient& client, const FaultModel& model,
                std::span<const BlockKey> keys) {
  Sink sink;
  const double begin = Now();
  CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome match,
                         client.Match(model.fingerprint(), keys, {.deadline = seconds(5)}));
  if (match.matched_blocks > 0) {
    CAIRN_RETURN_IF_ERROR(
        client.Fetch(match.lease, {}, sink, {.progress = kPatience, .deadline = kPatience}));
  }
  return Got{.blocks = match.matched_blocks - static_cast<uint32_t>(sink.failed),
             .seconds = Now() - begin,
             .first_seconds = sink.first - begin};
}

// Asks until all is found: announcements take a moment.
Result<Got> GetAll(client::CacheClient& client, const FaultModel& model,
                   std::span<const BlockKey> keys) {
  const TimePoint deadline = SteadyClock::Get().Now() + kPatience;
  while (SteadyClock::Get().Now() < deadline) {
    CAIRN_ASSIGN_OR_RETURN(const Got got, Get(client, model, keys));
    if (got.blocks == keys.size()) return got;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return Errorf(StatusCode::kDeadlineExceeded, "a prompt was not found");
}

Status Store(client::CacheClient& client, const FaultModel& model, std::span<const BlockKey> keys) {
  constexpr size_t kAtOnce = 16;
  for (size_t at = 0; at < keys.size(); at += kAtOnce) {
    const auto some = keys.first(std::min(keys.size(), at + kAtOnce));
    const fault::WriteOutcome written = Write(client, model, some, at, model.whole(), seconds(30));
    CAIRN_RETURN_IF_ERROR(written.status);
    if (written.refused_parts > 0) return written.refused;
  }
  return OkStatus();
}

// Sum of the samples of a metric at a node, as the tester sees it.
Result<double> Metric(ClusterOnLab& cluster, size_t node, const std::string& name,
                      const std::string& labels = {}) {
  return cluster.Metric(node, name, labels);
}

Result<std::unique_ptr<ClusterOnLab>> Start(size_t nodes, uint64_t host_mib) {
  CAIRN_ASSIGN_OR_RETURN(auto cluster,
                         ClusterOnLab::Start({.nodes = nodes, .args = RoomFor(host_mib)}));
  if (nodes > 1) CAIRN_RETURN_IF_ERROR(cluster->WaitUntilWhole());
  return cluster;
}

struct Replayed {
  uint64_t asked = 0, hit = 0;
};
Result<Replayed> Replay(ClusterOnLab& cluster, const FaultModel& model, const Options& options,
                        const std::vector<std::vector<BlockKey>>& prompts) {
  std::vector<std::unique_ptr<client::CacheClient>> clients;
  for (size_t node = 0; node < cluster.size(); ++node) {
    clients.push_back(cluster.Connect(node, model));
  }
  Replayed replayed;
  for (size_t i = 0; i < prompts.size(); ++i) {
    client::CacheClient& client = *clients[i % clients.size()];
    const std::vector<BlockKey>& keys = prompts[i];
    CAIRN_ASSIGN_OR_RETURN(const Got got, Get(client, model, keys));
    replayed.asked += keys.size();
    replayed.hit += got.blocks;
    const fault::WriteOutcome written =
        Write(client, model, keys, got.blocks, model.whole(), seconds(30));
    CAIRN_RETURN_IF_ERROR(written.status);
    std::this_thread::sleep_for(duration<double, std::milli>(options.pause_ms));
  }
  return replayed;
}

}  // namespace

Result<Rows> MeasureTrace(const Options& options) {
  CAIRN_ASSIGN_OR_RETURN(const auto prompts, ReadTrace(options.trace, options.requests));
  const FaultModel model(SmallBlocks("trace"));
  constexpr uint64_t kMib = 1024;
  Replayed alone, together;
  {
    CAIRN_ASSIGN_OR_RETURN(const auto one, Start(1, kMib));
    CAIRN_ASSIGN_OR_RETURN(alone, Replay(*one, model, options, prompts));
  }
  CAIRN_ASSIGN_OR_RETURN(const auto eight, Start(8, kMib));
  CAIRN_ASSIGN_OR_RETURN(together, Replay(*eight, model, options, prompts));
  double directory = 0, wire = 0, stored = 0;
  for (size_t node = 0; node < eight->size(); ++node) {
    CAIRN_ASSIGN_OR_RETURN(const double bytes,
                           Metric(*eight, node, "cairn_cluster_directory_bytes"));
    CAIRN_ASSIGN_OR_RETURN(
        const double announced,
        Metric(*eight, node, "cairn_rpc_received_bytes_total", "method=\"Announce\""));
    CAIRN_ASSIGN_OR_RETURN(const double blocks, Metric(*eight, node, "cairn_tier_blocks"));
    directory += bytes;
    wire += announced;
    stored += blocks;
  }
  const double share = static_cast<double>(together.hit) / static_cast<double>(alone.hit);
  return Rows{{"cluster_trace_hits",
               {share},
               "share",
               fmt::format("one node: {} of {} blocks", alone.hit, alone.asked)},
              {"cluster_directory_bytes",
               {directory / stored},
               "bytes/block",
               fmt::format("{:.0f} blocks in 8 nodes", stored)},
              {"cluster_announce_bytes", {wire / stored}, "bytes/block", "without HTTP/2 frames"}};
}

Result<Rows> MeasureRemoteHit(const Options& options) {
  constexpr size_t kBlocks = 24;
  CAIRN_ASSIGN_OR_RETURN(const auto cluster, Start(2, 1024));
  for (size_t node = 0; node < 2; ++node) {
    CAIRN_RETURN_IF_ERROR(cluster->lab().SetRate(node, 400 * kMbit));
  }
  const FaultModel model(LargeBlocks("remote"));
  const auto holder = cluster->Connect(0, model), home = cluster->Connect(1, model);
  Row speed{"cluster_remote_hit", {}, "share", "a fetch from the holder over the same link"};
  Row first{"cluster_remote_first_slice", {}, "times", "the first slice of that fetch"};
  for (size_t round = 0; round < options.rounds; ++round) {
    const std::vector<BlockKey> keys = Prompt(round, kBlocks);
    CAIRN_RETURN_IF_ERROR(Store(*holder, model, keys));
    CAIRN_ASSIGN_OR_RETURN(const Got direct, Get(*holder, model, keys));
    CAIRN_ASSIGN_OR_RETURN(const Got remote, GetAll(*home, model, keys));
    if (remote.blocks != kBlocks) {
      return Errorf(StatusCode::kInternal, "{} of {} blocks came", remote.blocks, kBlocks);
    }
    speed.samples.push_back(direct.seconds / remote.seconds);
    first.samples.push_back(remote.first_seconds / direct.first_seconds);
  }
  return Rows{speed, first};
}

Result<Rows> MeasureMatch(const Options& options) {
  constexpr size_t kKeys = 2048, kCalls = 100;
  const FaultModel model(SmallBlocks("match"));
  const std::vector<BlockKey> keys = Prompt(1, kKeys), there = Prompt(2, kKeys);
  const auto median = [&](const auto& call) -> Result<double> {
    std::vector<double> took;
    for (size_t i = 0; i < kCalls; ++i) {
      const double begin = Now();
      CAIRN_RETURN_IF_ERROR(call());
      took.push_back(Now() - begin);
    }
    std::sort(took.begin(), took.end());
    return took[kCalls / 2];
  };
  const auto match = [&](client::CacheClient& client, const std::vector<BlockKey>& wanted) {
    return [&client, &model, &wanted]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome found,
                             client.Match(model.fingerprint(), wanted, {.deadline = seconds(5)}));
      if (found.matched_blocks == wanted.size()) return OkStatus();
      return Errorf(StatusCode::kInternal, "{} blocks matched", found.matched_blocks);
    };
  };
  const auto empty = [&](client::CacheClient& client) {
    return [&client, &model, &keys]() -> Status {
      return client.Exists(model.fingerprint(), std::span(keys).first(1)).status();
    };
  };
  std::vector<double> alone;
  {
    CAIRN_ASSIGN_OR_RETURN(const auto one, Start(1, 256));
    const auto client = one->Connect(0, model);
    CAIRN_RETURN_IF_ERROR(Store(*client, model, there));
    for (size_t round = 0; round < options.rounds; ++round) {
      CAIRN_ASSIGN_OR_RETURN(const double call, median(empty(*client)));
      CAIRN_ASSIGN_OR_RETURN(const double local, median(match(*client, there)));
      alone.push_back(local / call);
    }
  }
  CAIRN_ASSIGN_OR_RETURN(const auto eight, Start(8, 256));
  const auto holder = eight->Connect(0, model), home = eight->Connect(1, model);
  CAIRN_RETURN_IF_ERROR(Store(*holder, model, keys));
  CAIRN_RETURN_IF_ERROR(Store(*home, model, there));
  const bool found = fault::WaitUntil([&] { return match(*home, keys)().ok(); }, kPatience);
  if (!found) return Errorf(StatusCode::kDeadlineExceeded, "the keys were not found");
  Row remote{"cluster_match_remote", {}, "empty calls", "Exists of one key"};
  Row local{"cluster_match_local", {}, "times", "a node alone, both over an empty call"};
  std::sort(alone.begin(), alone.end());
  for (size_t round = 0; round < options.rounds; ++round) {
    CAIRN_ASSIGN_OR_RETURN(const double call, median(empty(*home)));
    CAIRN_ASSIGN_OR_RETURN(const double far, median(match(*home, keys)));
    CAIRN_ASSIGN_OR_RETURN(const double near, median(match(*home, there)));
    remote.samples.push_back(far / call);
    local.samples.push_back(near / call / alone[alone.size() / 2]);
  }
  return Rows{remote, local};
}

Result<Rows> MeasureBandwidth(const Options& options) {
  constexpr size_t kBlocks = 16;
  const FaultModel model(LargeBlocks("bandwidth"));
  CAIRN_ASSIGN_OR_RETURN(const auto cluster, Start(8, 256));
  std::vector<std::unique_ptr<client::CacheClient>> clients;
  for (size_t node = 0; node < cluster->size(); ++node) {
    clients.push_back(cluster->Connect(node, model));
    CAIRN_RETURN_IF_ERROR(Store(*clients[node], model, Prompt(node, kBlocks)));
    CAIRN_RETURN_IF_ERROR(cluster->lab().SetRate(node, 100 * kMbit));
  }
  Row row{"cluster_bandwidth_8_over_1", {}, "share of 8", "one node over its link"};
  for (size_t round = 0; round < options.rounds; ++round) {
    CAIRN_ASSIGN_OR_RETURN(const Got one, Get(*clients[0], model, Prompt(0, kBlocks)));
    std::vector<std::thread> threads;
    std::vector<Status> statuses(clients.size());
    const double begin = Now();
    for (size_t node = 0; node < clients.size(); ++node) {
      threads.emplace_back([&, node] {
        statuses[node] = Get(*clients[node], model, Prompt(node, kBlocks)).status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double together = Now() - begin;
    for (const Status& status : statuses) CAIRN_RETURN_IF_ERROR(status);
    row.samples.push_back(one.seconds / together);
  }
  return Rows{row};
}

Status GetPrompt(const std::string& address, const std::string& model_name, uint64_t prompt,
                 size_t blocks) {
  const FaultModel model(LargeBlocks(model_name));
  const auto client = fault::ConnectAndOpen(address, model);
  CAIRN_ASSIGN_OR_RETURN(const Got got, GetAll(*client, model, Prompt(prompt, blocks)));
  if (got.blocks != blocks) {
    return Errorf(StatusCode::kInternal, "{} of {} blocks came", got.blocks, blocks);
  }
  std::cout << fmt::format("took {}\n", got.seconds) << std::flush;
  return OkStatus();
}

Result<Rows> MeasureHerd(const Options& options) {
  constexpr size_t kBlocks = 64, kNodes = 8;
  const std::string name = "herd";
  const FaultModel model(LargeBlocks(name));
  CAIRN_ASSIGN_OR_RETURN(const auto cluster, Start(kNodes, 512));
  const auto holder = cluster->Connect(0, model);
  for (size_t node = 0; node < kNodes; ++node) {
    CAIRN_RETURN_IF_ERROR(cluster->lab().SetRate(node, 200 * kMbit));
  }
  // A reader in the machine of its node: what it gets does not go over the link.
  const auto start = [&](size_t node, uint64_t prompt) {
    return cluster->lab().Start(
        node,
        {.argv = {"/proc/self/exe", "--get", cluster->Address(node), "--model", name, "--prompt",
                  fmt::format("{}", prompt), "--blocks", fmt::format("{}", kBlocks)}});
  };
  const auto took = [](Process* process) -> Result<double> {
    CAIRN_ASSIGN_OR_RETURN(const std::string line, process->WaitForLine("took ", kPatience));
    return std::strtod(line.c_str() + line.find("took ") + 5, nullptr);
  };
  Row last{"cluster_herd_last", {}, "transfers", "one node takes the prefix alone"};
  Row copies{"cluster_herd_copies", {}, "copies", "64 MiB, sent by the first holder"};
  const size_t rounds = std::min<size_t>(options.rounds, 3);
  for (uint64_t round = 0; round < rounds; ++round) {
    CAIRN_RETURN_IF_ERROR(Store(*holder, model, Prompt(2 * round, kBlocks)));
    CAIRN_RETURN_IF_ERROR(Store(*holder, model, Prompt(2 * round + 1, kBlocks)));
    CAIRN_ASSIGN_OR_RETURN(Process* const one, start(1, 2 * round));
    CAIRN_ASSIGN_OR_RETURN(const double alone, took(one));
    const auto sent = [&] {
      return Metric(*cluster, 0, "cairn_cluster_bytes_total", "direction=\"sent\"");
    };
    CAIRN_ASSIGN_OR_RETURN(const double before, sent());
    std::vector<Process*> readers;
    for (size_t node = 1; node < kNodes; ++node) {
      CAIRN_ASSIGN_OR_RETURN(Process* const reader, start(node, 2 * round + 1));
      readers.push_back(reader);
    }
    double slowest = 0;
    for (Process* const reader : readers) {
      CAIRN_ASSIGN_OR_RETURN(const double seconds, took(reader));
      slowest = std::max(slowest, seconds);
    }
    CAIRN_ASSIGN_OR_RETURN(const double after, sent());
    last.samples.push_back(slowest / alone);
    copies.samples.push_back((after - before) / (kBlocks << 20));
  }
  return Rows{last, copies};
}

}  // namespace cairn::bench
