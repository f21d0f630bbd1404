#pragma once
// Code that the fault tests share: seeds and rounds, a node that can be killed and come back, load
// programs, and checks that nothing is left.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cairn/client/connect.h"
#include "cairn/common/status.h"
#include "tests/fault/load/actions.h"
#include "tests/support/process.h"

namespace cairn::fault {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::CacheNode;
using testing::Process;
using testing::TemporaryDirectory;

// `normal` rounds, or in proportion to CAIRN_FAULT_ROUNDS, which stands for what is normally 100.
// At least 1.
uint32_t Rounds(uint32_t normal);
// CAIRN_FAULT_SEED, or a new one; printed once.
uint64_t Seed();

// Looks every few milliseconds. False when `timeout` passed first.
bool WaitUntil(const std::function<bool()>& condition, milliseconds timeout);

// A cairn-cache that comes back at the same address. Not thread-safe.
class Node {
 public:
  // Flags in addition to those of CacheNode::Start.
  static Result<std::unique_ptr<Node>> Start(std::vector<std::string> args);
  const std::string& address() const { return node_->address(); }
  const std::string& admin() const { return node_->admin(); }
  Process& process() { return node_->process(); }
  void Kill() { node_->process().Kill(); }
  // After Kill or an exit: starts again with the same flags and address.
  Status Restart();
  // SIGTERM; OK when it ended with code 0.
  Status Stop();
  double last_start_seconds() const { return start_seconds_; }

  // SumOfMetric at this node.
  Result<double> Metric(const std::string& name, const std::string& labels = {}) const;

 private:
  std::vector<std::string> args_;
  std::unique_ptr<CacheNode> node_;
  double start_seconds_ = 0;
};

// Sum of the samples of a metric whose labels contain `labels` (`reason="corrupt"`), as the process
// with this admin port shows it; 0 when there are none.
Result<double> SumOfMetric(const std::string& admin, const std::string& name,
                           const std::string& labels = {});

// For tests: gives up and comes back quickly.
std::unique_ptr<client::CacheClient> ConnectTo(const std::string& address,
                                               const std::string& name = "fault-test");
// A client with an open namespace.
std::unique_ptr<client::CacheClient> ConnectAndOpen(const std::string& address,
                                                    const FaultModel& model);

// A running cairn_fault_load.
class Loader {
 public:
  static Result<std::unique_ptr<Loader>> Start(const std::string& address,
                                               const FaultModelOptions& model, uint64_t seed,
                                               const std::vector<std::string>& args = {});
  Process& process() { return *process_; }
  // The blocks that the node promised to keep, to this loader: prompt -> blocks. The promises of
  // all times; reads what has come.
  const std::map<uint64_t, uint64_t>& Flushed();
  // SIGTERM; the line of counters. An error when it saw something wrong.
  Result<std::string> Finish();

 private:
  std::unique_ptr<Process> process_;
  size_t parsed_ = 0;
  std::map<uint64_t, uint64_t> flushed_;
};
// A number of a loader's line of counters.
uint64_t Counter(const std::string& json, const std::string& name);

// Empty when all is well; else what is still held after `timeout`: leases, reservations, sessions
// beyond `sessions`.
std::string StillHeld(client::CacheClient& client, uint64_t sessions, milliseconds timeout);
// Empty when the bytes used in each tier are those of its blocks, each made of parts of these
// sizes; else what is not. Waits for moves under way.
std::string UsageMismatch(client::CacheClient& client, const std::vector<uint64_t>& part_bytes,
                          milliseconds timeout);
// Empty when the tenant could be dropped and all of its room came back, in every tier.
std::string LeftAfterDrop(Node& node, client::CacheClient& client, const std::string& tenant,
                          milliseconds timeout);

// nullptr: none.
const client::TierStat* Tier(const client::NodeStats& stats, client::TierKind kind);
std::string Describe(const client::NodeStats& stats);

}  // namespace cairn::fault
