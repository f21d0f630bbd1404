#include "tools/cairn/launch/ending.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "common/net/operator_path.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {
namespace {

// After SIGKILL the kernel may have gigabytes to give back.
constexpr std::chrono::seconds kDeath(10);

bool OfThisBoot(const LaunchState& state) { return state.boot_id == BootId(); }

void RemoveSocket(const std::string& path) {
  struct stat there {};
  if (lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(path.c_str());
}

// Removes the sockets of a node that was killed. It made them itself in the default place
// (local.socket, admin.socket).
void RemoveSockets(const LaunchedProcess& node) {
  const auto folder = net::RuntimeFolder("dir", /*make=*/false);
  const size_t colon = node.grpc.rfind(':');
  if (!folder.ok() || colon == node.grpc.npos) return;
  const int port = std::atoi(node.grpc.c_str() + colon + 1);
  RemoveSocket(fmt::format("{}/cairn-{}.sock", *folder, port));
  RemoveSocket(net::OperatorSocketIn(*folder, port));
}

void EndRole(const LaunchState& state, Role role, std::chrono::milliseconds limit,
             EndReport* report) {
  std::vector<const LaunchedProcess*> processes;
  std::vector<ProcessHandle> handles;
  for (const LaunchedProcess& process : state.processes) {
    if (process.role != role) continue;
    auto handle = OfThisBoot(state) ? ProcessHandle::Open(process.identity)
                                    : Errorf(StatusCode::kNotFound, "the machine was restarted");
    if (!handle.ok()) {
      report->gone.push_back(process.name);
      if (role == Role::kNode) RemoveSockets(process);
      continue;
    }
    handle->Signal(SIGTERM);
    processes.push_back(&process);
    handles.push_back(*std::move(handle));
  }
  WaitEnded(handles, limit);
  for (size_t i = 0; i < handles.size(); ++i) {
    std::vector<ProcessHandle> one;
    one.push_back(std::move(handles[i]));
    if (WaitEnded(one, std::chrono::milliseconds(0))) {
      ++report->ended;
    } else {
      one[0].Signal(SIGKILL);
      WaitEnded(one, kDeath);
      report->killed.push_back(processes[i]->name);
      if (role == Role::kNode) RemoveSockets(*processes[i]);
    }
    one[0].Reap();
  }
}

}  // namespace

EndReport EndAll(const LaunchState& state, std::chrono::milliseconds limit, Progress& progress) {
  EndReport report;
  for (const Role role : {Role::kRouter, Role::kWorker, Role::kNode}) {
    progress.Doing(fmt::format("ending each {}", Name(role)));
    EndRole(state, role, limit, &report);
  }
  progress.Clear();
  return report;
}

std::vector<std::string> Running(const LaunchState& state) {
  std::vector<std::string> names;
  if (!OfThisBoot(state)) return names;
  for (const LaunchedProcess& process : state.processes) {
    if (ProcessHandle::Open(process.identity).ok()) names.push_back(process.name);
  }
  return names;
}

void WatchUntilInterrupted(const LaunchState& state,
                           const std::function<void(const LaunchedProcess&)>& on_end) {
  std::vector<const LaunchedProcess*> processes;
  std::vector<ProcessHandle> handles;
  for (const LaunchedProcess& process : state.processes) {
    if (auto handle = ProcessHandle::Open(process.identity); handle.ok()) {
      processes.push_back(&process);
      handles.push_back(*std::move(handle));
    } else {
      on_end(process);
    }
  }
  while (!handles.empty() && !Interrupted()) {
    std::vector<pollfd> events = {{InterruptFd(), POLLIN, 0}};
    for (const ProcessHandle& handle : handles) events.push_back({handle.fd(), POLLIN, 0});
    if (poll(events.data(), events.size(), -1) <= 0) continue;
    for (size_t i = handles.size(); i-- > 0;) {
      if (events[i + 1].revents == 0) continue;
      handles[i].Reap();
      on_end(*processes[i]);
      handles.erase(handles.begin() + static_cast<std::ptrdiff_t>(i));
      processes.erase(processes.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

}  // namespace cairn::cli
