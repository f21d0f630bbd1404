#include "tools/cairn/launch/view.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "tools/cairn/launch/http_port.h"
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

// As a shell reads it: in quotes where a character might mean something else to it.
std::string ShellWord(const std::string& text) {
  const bool plain = std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+=:,@%").find(c) != std::string_view::npos;
  });
  if (plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
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

std::string PortNote(const LaunchState& state) {
  for (const LaunchedProcess& process : state.processes) {
    if (process.http.empty() || process.http == kDefaultHttp) continue;
    const std::string wished = kDefaultHttp;
    return fmt::format("port {} is taken, so it serves at {}\n",
                       wished.substr(wished.rfind(':') + 1), Endpoint(state));
  }
  return "";
}

std::string NextSteps(const LaunchState& state, const std::string& given_directory,
                      const std::string& program) {
  const std::string dir = given_directory.empty() ? "" : " --dir " + ShellWord(given_directory);
  return fmt::format(
      "endpoint {0}\n\n"
      "curl {0}/chat/completions -H 'content-type: application/json' \\\n"
      "  -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}}]}}'\n"
      "export OPENAI_BASE_URL={0} OPENAI_API_KEY=none  # for clients of OpenAI\n"
      "curl {0}/models  # has the model's name, which they must send\n"
      "{1} top{2}\n"
      "{1} down{2}\n",
      Endpoint(state), ShellWord(program), dir);
}

}  // namespace cairn::cli
