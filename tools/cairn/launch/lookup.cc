#include "tools/cairn/launch/lookup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "tools/cairn/launch/directory.h"
#include "tools/cairn/launch/ending.h"
#include "tools/cairn/process/ports.h"

namespace cairn::cli {
namespace {

constexpr char kStart[] =
    "start one with `cairn up`, or a node with `cairn-cache`, or name an address";

Status Neither(const std::string& why, StatusCode code = StatusCode::kNotFound) {
  return Errorf(code, "nothing listens at {}, and {}", kDefaultNode, why);
}

// Whether the process does what the role stands for: a worker that only computes prompts for others
// answers nobody.
bool Is(const LaunchedProcess& process, Role role) {
  return process.role == role &&
         (role != Role::kWorker || process.name.starts_with(Name(Role::kWorker)));
}

// Those of the role that run and serve.
std::vector<const LaunchedProcess*> Serving(const LaunchState& state, Role role) {
  const std::vector<std::string> running = Running(state);
  std::vector<const LaunchedProcess*> serving;
  for (const LaunchedProcess& process : state.processes) {
    if (Is(process, role) && !process.grpc.empty() &&
        std::ranges::find(running, process.name) != running.end()) {
      serving.push_back(&process);
    }
  }
  return serving;
}

// Why nothing of the role serves.
Status NoneServes(const LaunchState& state, Role role, const std::string& directory) {
  std::vector<std::string> names;
  bool starts = false;
  const std::vector<std::string> running = Running(state);
  for (const LaunchedProcess& process : state.processes) {
    if (!Is(process, role)) continue;
    names.push_back(process.name);
    starts = starts || std::ranges::find(running, process.name) != running.end();
  }
  if (starts) {
    return Neither(
        fmt::format("`cairn up` in {} is still starting {}", directory, fmt::join(names, ", ")),
        StatusCode::kUnavailable);
  }
  if (!names.empty()) {
    return Neither(
        fmt::format("what `cairn up` started in {} has ended: {}; `cairn down` removes what is "
                    "left, `cairn up` starts again",
                    directory, fmt::join(names, ", ")),
        StatusCode::kUnavailable);
  }
  return Neither(fmt::format("`cairn up` started no {} in {}; {}", Name(role), directory, kStart));
}

Status Several(const std::vector<const LaunchedProcess*>& nodes, const std::string& directory) {
  std::vector<std::string> names;
  names.reserve(nodes.size());
  for (const LaunchedProcess* node : nodes) {
    names.push_back(fmt::format("{} at {}", node->name, node->grpc));
  }
  return Errorf(StatusCode::kFailedPrecondition,
                "nothing listens at {}, and `cairn up` started several nodes in {}: {}; name one "
                "with --cache",
                kDefaultNode, directory, fmt::join(names, ", "));
}

// A node that somebody started by hand wins, which surprises whoever has started others since.
std::string NotUsed(Seek seek, const LookupMachine& machine) {
  const auto directory = machine.directory();
  if (!directory.ok()) return "";
  const auto state = ReadLaunchState(*directory);
  if (!state.ok()) return "";
  const auto nodes = Serving(*state, Role::kNode);
  if (nodes.empty() || std::ranges::any_of(nodes, [](const LaunchedProcess* node) {
        return node->grpc == kDefaultNode;
      })) {
    return "";
  }
  return seek == Seek::kWorker
             ? fmt::format(
                   "computes in this process, and not by what `cairn up` started in {}, "
                   "because a node listens at {}; --worker names a worker",
                   *directory, kDefaultNode)
             : fmt::format("uses the node at {}, and not what `cairn up` started in {}",
                           kDefaultNode, *directory);
}

}  // namespace

LookupMachine ThisMachine() {
  return {.listens = SomebodyListens,
          .directory = [] { return DefaultLaunchDirectory(/*make=*/false); }};
}

Result<DefaultTarget> FindDefault(Seek seek, const LookupMachine& machine) {
  if (machine.listens(kDefaultNode)) {
    return DefaultTarget{.address = seek == Seek::kWorker ? "" : kDefaultNode,
                         .note = NotUsed(seek, machine)};
  }
  const auto directory = machine.directory();
  // Without a folder of this user's own nothing was started there.
  if (!directory.ok()) {
    return Neither(fmt::format("`cairn up` has started nothing; {}", kStart));
  }
  const auto state = ReadLaunchState(*directory);
  if (state.status().code() == StatusCode::kNotFound) {
    return Neither(fmt::format("`cairn up` has started nothing in {}; {}", *directory, kStart));
  }
  if (!state.ok()) {
    return Annotate(state.status(), fmt::format("nothing listens at {}", kDefaultNode));
  }
  const Role role = seek == Seek::kWorker ? Role::kWorker : Role::kNode;
  const std::vector<const LaunchedProcess*> serving = Serving(*state, role);
  if (serving.empty()) return NoneServes(*state, role, *directory);
  if (seek == Seek::kOnlyNode && serving.size() > 1) return Several(serving, *directory);
  std::vector<std::string> addresses;
  for (const LaunchedProcess* process : serving) {
    addresses.push_back(process->grpc);
    if (seek != Seek::kNodes) break;
  }
  const std::string address = fmt::format("{}", fmt::join(addresses, ","));
  return DefaultTarget{
      .address = address,
      .note = fmt::format("uses what `cairn up` started in {}: {}", *directory, address),
      .model = seek == Seek::kWorker ? state->model : ""};
}

}  // namespace cairn::cli
