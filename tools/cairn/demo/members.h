#pragma once
// The demo's cluster: its cache node with everything that earlier phases stored, and two more.
//
//                           ┌─ relay ──► node 1, the holder
//     worker ──► its home ──┤            (its own workers call it directly)
//                node 2     └──────────► node 3
//
// Other members reach node 1 through a relay, which can kill it at an exact byte of what it sends.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/demo/cluster.h"
#include "tools/cairn/process/tcp_relay.h"

namespace cairn::cli {

// Not thread-safe.
class DemoMembers {
 public:
  // Chooses three free addresses, and starts the relay. No node runs yet. Node 1 is the caller's:
  // started with what Holder() says, alone or not.
  static Result<std::unique_ptr<DemoMembers>> Create(const std::string& log_directory);

  // The options that make node 1 a member, in place of its own address and flags. Without log and
  // disk.
  DemoNode::Options Holder() const { return OptionsOf(0); }

  // Starts nodes 2 and 3, with RAM only.
  Status StartOthers(uint64_t host_bytes);
  DemoNode& second() { return *second_; }
  DemoNode& third() { return *third_; }
  // Until the three see each other, and `holder` has told the others all that it has.
  // DEADLINE_EXCEEDED, CANCELLED after Ctrl-C.
  Status WaitUntilWhole(DemoNode& holder, std::chrono::milliseconds timeout);

  // SIGKILL for `holder` when it has sent `bytes` more bytes to other members, of which they get no
  // further one. `holder` must not be started again before StopWatching.
  void KillAfter(uint64_t bytes, const DemoNode& holder);
  bool killed() const { return killed_.load(); }
  // The bytes that it has sent since KillAfter.
  uint64_t sent_bytes() const { return relay_->bytes_from_node() - sent_before_; }
  void StopWatching() { relay_->After(0, nullptr); }

 private:
  DemoMembers() = default;
  DemoNode::Options OptionsOf(int node) const;

  std::string log_directory_;
  std::vector<std::string> listen_;      // The addresses of nodes 1, 2 and 3.
  std::vector<std::string> advertised_;  // To other members.
  uint64_t sent_before_ = 0;
  std::atomic<bool> killed_{false};
  std::unique_ptr<DemoNode> second_, third_;
  std::unique_ptr<TcpRelay> relay_;  // Last: its threads use the above.
};

}  // namespace cairn::cli
