#include "tools/cairn/launch/settings_check.h"

#include "tools/cairn/launch/http_port.h"
#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

// Addresses of those that do not run yet: nobody connects to them.
std::vector<std::string> SomeAddresses(size_t count) {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < count; ++i) addresses.push_back(fmt::format("127.0.0.1:{}", i + 1));
  return addresses;
}

Status CheckOne(const char* program, std::vector<std::string> argv) {
  argv.insert(argv.begin(), {SiblingProgram(program), "--check-config"});
  return RunToEnd(argv);
}

}  // namespace

Status CheckSettings(const LaunchPlan& plan, const std::string& data) {
  const std::vector<std::string> nodes = SomeAddresses(plan.nodes);
  if (plan.nodes > 0) {
    CAIRN_RETURN_IF_ERROR(CheckOne("cairn-cache", NodeArguments(plan, 0, nodes, data)));
  }
  CAIRN_RETURN_IF_ERROR(CheckOne("cairn-worker", WorkerArguments(plan, 0, nodes, /*cpus=*/1)));
  const std::vector<std::string> workers = SomeAddresses(plan.workers + plan.prefill_workers);
  const std::string http = plan.http.empty() ? kDefaultHttp : plan.http;
  return CheckOne("cairn-router", RouterArguments(plan, http, workers, nodes));
}

}  // namespace cairn::cli
