#include "tools/cairn/launch/view.h"

#include "tools/cairn/output/table.h"

namespace cairn::cli {
namespace {

// Base of OpenAI's API. Empty without a router.
std::string Endpoint(const LaunchState& state) {
  for (const LaunchedProcess& process : state.processes) {
    if (!process.http.empty()) return fmt::format("http://{}/v1", process.http);
  }
  return "";
}

}  // namespace

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
                         {"http", process.http},
                         {"log", fmt::format("{}/{}.log", directory, process.name)}});
  }
  return {{"directory", directory},
          {"model", state.model},
          {"endpoint", Endpoint(state)},
          {"processes", std::move(processes)}};
}

std::string NextSteps(const LaunchState& state, const std::string& given_directory) {
  const std::string dir = given_directory.empty() ? "" : " --dir " + given_directory;
  return fmt::format(
      "endpoint {0}\n\n"
      "curl {0}/chat/completions -H 'content-type: application/json' \\\n"
      "  -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}}]}}'\n"
      "export OPENAI_BASE_URL={0} OPENAI_API_KEY=none  # for clients of OpenAI\n"
      "cairn top{1}\n"
      "cairn down{1}\n",
      Endpoint(state), dir);
}

}  // namespace cairn::cli
