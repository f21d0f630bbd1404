#include "tools/cairn/launch/view.h"

#include <algorithm>

#include "tools/cairn/output/table.h"

namespace cairn::cli {

std::string LaunchText(const LaunchState& state, const std::string& directory,
                       const Terminal& terminal) {
  Table table({{"process", Align::kLeft},
               {"pid", Align::kRight},
               {"address", Align::kLeft},
               {"probes and metrics", Align::kLeft}});
  for (const LaunchedProcess& process : state.processes) {
    table.AddRow({process.name, std::to_string(process.identity.pid), process.grpc,
                  process.admin.empty() ? "" : "http://" + process.admin});
  }
  return table.Render(terminal) + fmt::format("logs in {}\n", directory);
}

Json LaunchJson(const LaunchState& state, const std::string& directory) {
  Json processes = Json::array();
  for (const LaunchedProcess& process : state.processes) {
    processes.push_back({{"role", Name(process.role)},
                         {"name", process.name},
                         {"pid", process.identity.pid},
                         {"grpc", process.grpc},
                         {"admin", process.admin},
                         {"log", fmt::format("{}/{}.log", directory, process.name)}});
  }
  return {{"directory", directory}, {"model", state.model}, {"processes", std::move(processes)}};
}

std::string NextSteps(const LaunchState& state, const std::string& given_directory) {
  const std::string dir = given_directory.empty() ? "" : " --dir " + given_directory;
  const auto worker =
      std::find_if(state.processes.begin(), state.processes.end(),
                   [](const LaunchedProcess& process) { return process.role == Role::kWorker; });
  std::string text;
  if (worker != state.processes.end()) {
    text +=
        fmt::format("cairn generate --worker {} --prompt 'Why is the sky blue?'\n", worker->grpc);
  }
  return text + fmt::format("cairn top{0}\ncairn down{0}\n", dir);
}

}  // namespace cairn::cli
