// cairn-cache: a cache node. See --help.

#include <cstdio>

#include "services/cache/rpc/node.h"
#include "services/common/base/allocator.h"
#include "services/common/base/grpc_log.h"
#include "services/common/base/lock_checks.h"
#include "services/common/lifecycle/lifecycle.h"
#include "services/common/metrics/admin_server.h"

namespace {

using cairn::Status;

int Fail(const Status& status, int code) {
  std::fprintf(stderr, "cairn-cache: %s\n", cairn::Message(status).c_str());
  return code;
}

// For container probes: 0 when the node on the admin port is ready.
int Health(const std::string& admin) {
  const auto answer = cairn::metrics::HttpGet(admin, "/readyz", std::chrono::seconds(2));
  if (!answer.ok()) return Fail(answer.status(), 1);
  std::fputs(answer->c_str(), stdout);
  return 0;
}

void PrintReady(const cairn::cache::Node& node, bool json) {
  const char* format = json ? "{\"ready\": true, \"grpc\": \"%s\", \"admin\": \"%s\"}\n"
                            : "ready grpc=%s admin=%s\n";
  std::printf(format, node.address().c_str(), node.admin_address().c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  cairn::TuneAllocator();
  cairn::SilenceGrpcLog();
  cairn::SkipLockChecks();
  cairn::ShutdownSignals signals;

  cairn::cache::NodeConfig config;
  cairn::config::Schema schema(
      "cairn-cache",
      "Keeps KV blocks of LLM prompts in RAM and on disk, and serves them to workers.\n"
      "`cairn-cache health` asks the node on admin.listen whether it is ready, for container "
      "probes.",
      "cairn-cache --host.capacity 4GiB --disk.path /var/lib/cairn");
  cairn::cache::NodeConfig::Register(&config, &schema);
  const auto line = cairn::config::Load(schema, {argv + 1, argv + argc});
  if (!line.ok()) return Fail(line.status(), 2);
  if (line->exit) {
    std::fputs(line->output.c_str(), stdout);
    return 0;
  }
  if (line->words == std::vector<std::string>{"health"}) return Health(config.admin_listen);
  if (!line->words.empty()) {
    return Fail(cairn::InvalidArgument("unknown command '{}', expected none or 'health'",
                                       line->words.front()),
                2);
  }

  cairn::log::Configure({.level = *cairn::log::ParseLevel(config.log_level),
                         .format = *cairn::log::ParseFormat(config.log_format)});
  auto node = cairn::cache::Node::Start(config);
  if (!node.ok()) return Fail(node.status(), 1);
  PrintReady(**node, config.json);
  signals.Wait();
  const Status stopped = (*node)->Shutdown();
  return stopped.ok() ? 0 : Fail(stopped, 1);
}
