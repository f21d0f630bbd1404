#include "tools/cairn/demo/members.h"

#include <signal.h>

#include "tools/cairn/process/ports.h"
#include "tools/cairn/process/wait_until.h"

namespace cairn::cli {
namespace {

constexpr int kNodes = 3;

}  // namespace

Result<std::unique_ptr<DemoMembers>> DemoMembers::Create(const std::string& log_directory) {
  std::unique_ptr<DemoMembers> members(new DemoMembers());
  members->log_directory_ = log_directory;
  CAIRN_ASSIGN_OR_RETURN(members->listen_, FreeLoopbackAddresses(kNodes));
  CAIRN_ASSIGN_OR_RETURN(members->relay_, TcpRelay::Start(members->listen_[0]));
  members->advertised_ = members->listen_;
  members->advertised_[0] = members->relay_->address();
  return members;
}

DemoNode::Options DemoMembers::OptionsOf(int node) const {
  return {.disk_directory = "",
          .log_path = fmt::format("{}/node{}.log", log_directory_, node + 1),
          .external = "",
          .address = listen_[node],
          // A busy machine may take longer than the default 15 ms to say who has a prompt, and
          // 250 ms to send a block.
          .settings = {"--node.id", fmt::format("node-{}", node + 1), "--cluster.discovery",
                       "static", "--cluster.name", "demo", "--cluster.members",
                       fmt::format("{}", fmt::join(advertised_, ",")), "--cluster.advertise",
                       advertised_[node], "--cluster.lookup_deadline", "500ms", "--cluster.silence",
                       "1s"}};
}

Status DemoMembers::StartOthers(uint64_t host_bytes) {
  second_ = std::make_unique<DemoNode>(OptionsOf(1));
  third_ = std::make_unique<DemoNode>(OptionsOf(2));
  CAIRN_RETURN_IF_ERROR(second_->Start(host_bytes));
  return third_->Start(host_bytes);
}

Status DemoMembers::WaitUntilWhole(DemoNode& holder, std::chrono::milliseconds timeout) {
  const auto whole = [&]() -> Result<bool> {
    for (DemoNode* node : {&holder, second_.get(), third_.get()}) {
      CAIRN_ASSIGN_OR_RETURN(const client::ClusterMembers seen, node->Members());
      if (seen.members.size() != kNodes - 1 || seen.numbers.announcing_members != 0) return false;
    }
    return true;
  };
  return WaitUntil(whole, timeout, "the three nodes are no whole cluster");
}

void DemoMembers::KillAfter(uint64_t bytes, const DemoNode& holder) {
  sent_before_ = relay_->bytes_from_node();
  killed_ = false;
  relay_->After(bytes, [this, pid = holder.pid()] {
    killed_ = kill(pid, SIGKILL) == 0;
    // Bytes that it had sent before would still arrive, out of the kernel's buffers.
    relay_->BreakAll();
  });
}

}  // namespace cairn::cli
