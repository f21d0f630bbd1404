#include "tools/cairn/launch/launcher.h"

#include <filesystem>
#include <span>
#include <thread>

#include "tools/cairn/launch/http_port.h"
#include "tools/cairn/process/cache_node.h"
#include "tools/cairn/process/log_tail.h"
#include "tools/cairn/process/ports.h"
#include "tools/cairn/process/programs.h"
#include "tools/cairn/process/wait_until.h"

namespace cairn::cli {
namespace {

std::string Field(const std::map<std::string, std::string>& ready, const std::string& name) {
  const auto it = ready.find(name);
  return it == ready.end() ? "" : it->second;
}

// A process that served may end while others start.
Status CheckRuns(const DetachedProcess& process) {
  if (ProcessHandle::Open(process.identity).ok()) return OkStatus();
  return Errorf(StatusCode::kUnavailable, "{}: ended. The end of {}:\n{}", process.name,
                process.log_path, LogTail(process.log_path));
}

}  // namespace

Launcher::Launcher(const LaunchPlan& plan, const LaunchDirectory& directory, LaunchProbes& probes,
                   Progress& progress, std::chrono::milliseconds limit, LaunchState state)
    : plan_(plan),
      directory_(directory),
      probes_(probes),
      progress_(progress),
      limit_(limit),
      state_(std::move(state)) {}

Status Launcher::Run() {
  CAIRN_RETURN_IF_ERROR(StartNodes());
  CAIRN_RETURN_IF_ERROR(StartWorkers());
  return StartRouter();
}

Status Launcher::StartNodes() {
  CAIRN_ASSIGN_OR_RETURN(const auto addresses, FreeLoopbackAddresses(plan_.nodes));
  std::vector<Program> programs;
  for (size_t i = 0; i < plan_.nodes; ++i) {
    const std::string data = directory_.DataOf(NodeName(i));
    if (!plan_.disk.empty()) {
      std::error_code error;
      std::filesystem::create_directories(data, error);
      if (error) {
        return Errorf(StatusCode::kInternal, "dir: cannot make '{}': {}", data, error.message());
      }
    }
    programs.push_back({Role::kNode, NodeName(i), NodeArguments(plan_, i, addresses, data)});
  }
  CAIRN_RETURN_IF_ERROR(StartAll(programs));
  if (plan_.nodes < 2) return OkStatus();
  return Await([&] { return probes_.Whole(addresses); }, "the cluster of nodes");
}

Status Launcher::StartWorkers() {
  const std::vector<std::string> nodes = AddressesOf(Role::kNode);
  const size_t cpus = std::thread::hardware_concurrency();
  std::vector<Program> programs;
  for (size_t i = 0; i < plan_.workers; ++i) {
    programs.push_back({Role::kWorker, WorkerName(i), WorkerArguments(plan_, i, nodes, cpus)});
  }
  for (size_t i = 0; i < plan_.prefill_workers; ++i) {
    programs.push_back(
        {Role::kWorker, PrefillWorkerName(i), PrefillWorkerArguments(plan_, i, nodes, cpus)});
  }
  CAIRN_RETURN_IF_ERROR(StartAll(programs));
  for (const LaunchedProcess& process : state_.processes) {
    if (process.role != Role::kWorker) continue;
    CAIRN_RETURN_IF_ERROR(Await([&] { return probes_.HasCache(process.grpc); }, process.name));
  }
  return OkStatus();
}

Status Launcher::StartRouter() {
  const auto start = [&](const std::string& http) {
    return StartAll(
        {{Role::kRouter, std::string(Name(Role::kRouter)),
          RouterArguments(plan_, http, AddressesOf(Role::kWorker), AddressesOf(Role::kNode))}});
  };
  const HttpPortActions actions{
      .check_free = CheckFree, .start = start, .forget_ended = [&] { return ForgetEndedRouter(); }};
  return plan_.http.empty() ? StartAtDefaultPort(actions) : StartAtGivenPort(plan_.http, actions);
}

bool Launcher::ForgetEndedRouter() {
  if (started_.size() != state_.processes.size() || state_.processes.back().role != Role::kRouter ||
      CheckRuns(started_.back()).ok()) {
    return false;
  }
  started_.pop_back();
  state_.processes.pop_back();
  return true;
}

Status Launcher::StartAll(const std::vector<Program>& programs) {
  const size_t begin = state_.processes.size();
  for (const Program& program : programs) {
    std::vector<std::string> argv = {SiblingProgram(
        program.role == Role::kNode ? "cairn-cache" : fmt::format("cairn-{}", Name(program.role)))};
    argv.insert(argv.end(), program.argv.begin(), program.argv.end());
    const auto record = [&](const ProcessIdentity& identity) {
      state_.processes.push_back({.role = program.role,
                                  .name = program.name,
                                  .identity = identity,
                                  .grpc = {},
                                  .admin = {},
                                  .http = {}});
      return directory_.WriteState(state_);
    };
    auto started = StartDetached(
        {.name = program.name, .argv = argv, .log_path = directory_.LogOf(program.name)}, record);
    if (!started.ok()) return started.status();
    started_.push_back(*std::move(started));
  }
  return WaitReady(begin);
}

Status Launcher::WaitReady(size_t begin) {
  const std::span<const DetachedProcess> waiting = std::span(started_).subspan(begin);
  const size_t all = waiting.size();
  const std::string role(Name(state_.processes.back().role));
  progress_.Doing(fmt::format("starting {} {}s", all, role));
  size_t ready = 0;
  CAIRN_ASSIGN_OR_RETURN(const auto lines, WaitAllReady(waiting, limit_, [&](size_t) {
                           progress_.Doing(fmt::format("{} of {} {}s serve", ++ready, all, role));
                         }));
  for (size_t i = 0; i < all; ++i) {
    LaunchedProcess& process = state_.processes[begin + i];
    process.grpc = Field(lines[i], "grpc");
    process.admin = Field(lines[i], "admin");
    process.http = Field(lines[i], "http");
  }
  CAIRN_RETURN_IF_ERROR(directory_.WriteState(state_));
  for (size_t i = begin; i < state_.processes.size(); ++i) {
    const LaunchedProcess& process = state_.processes[i];
    CAIRN_RETURN_IF_ERROR(Await([&] { return probes_.Ready(process.admin); }, process.name));
  }
  progress_.Done(all == 1 ? fmt::format("1 {} serves", role)
                          : fmt::format("{} {}s serve", all, role));
  return OkStatus();
}

Status Launcher::Await(const std::function<Status()>& probe, const std::string& what) {
  Status said = OkStatus();
  const auto asked = [&]() -> Result<bool> {
    for (const DetachedProcess& process : started_) {
      CAIRN_RETURN_IF_ERROR(CheckRuns(process));
    }
    said = probe();
    if (!said.ok()) progress_.Doing(fmt::format("{}: {}", what, Message(said)));
    return said.ok();
  };
  const Status in_time = WaitUntil(asked, limit_, "it does not serve");
  if (in_time.code() != StatusCode::kDeadlineExceeded) return in_time;
  return Errorf(StatusCode::kDeadlineExceeded, "{}: {}: {}", what, Message(in_time), Message(said));
}

std::vector<std::string> Launcher::AddressesOf(Role role) const {
  std::vector<std::string> addresses;
  for (const LaunchedProcess& process : state_.processes) {
    if (process.role == role) addresses.push_back(process.grpc);
  }
  return addresses;
}

}  // namespace cairn::cli
