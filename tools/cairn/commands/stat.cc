#include <CLI/CLI.hpp>
#include <cstdio>

#include "cairn/client/connect.h"
#include "tools/cairn/cluster/namespaces.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/default_target.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/commands/stat_view.h"
#include "tools/cairn/generator/connection.h"

namespace cairn::cli {

void AddStat(CLI::App& app, StatOptions& o) {
  CLI::App& c = *app.add_subcommand("stat", "Shows what a cache node stores and what it has done");
  AddNodeAddress(c, o.cache,
                 "Address of the node, HOST:PORT. With several, separated by commas, or with "
                 "dns:NAME:PORT, the one that a client would use answers. Without it, and if "
                 "nothing listens at the default: the first node that `cairn up` started");
  c.add_option("--timeout", o.timeout_s, "Seconds to wait for its answer")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  c.add_flag("--cluster", o.cluster,
             "Ask the nodes at --cache (several with commas), and every member that they name");
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "With --cluster the exit code is 0 if all members answer and see each other, 1 if not, and "
      "2\n"
      "if no node at --cache could be asked.\n"
      "Examples:\n"
      "  cairn stat\n"
      "  cairn stat --cluster --cache 10.0.0.1:7400,10.0.0.2:7400");
}

int RunStat(const StatOptions& given) {
  StatOptions options = given;
  const auto address = AddressOr(given.cache, Seek::kNode);
  if (!address.ok()) return Fail(address.status());
  options.cache = *address;
  client::ConnectOptions connection = ConnectionTo(options.cache, options.tls);
  auto client = client::Connect(connection);
  if (!client.ok()) return Fail(client.status());
  const client::CallOptions call{.deadline = std::chrono::duration_cast<Duration>(
                                     std::chrono::duration<double>(options.timeout_s)),
                                 .trace = ""};
  const auto stats = (*client)->Stat(call);
  if (!stats.ok()) {
    const char* const hint = stats.status().code() == StatusCode::kUnavailable
                                 ? " (--cache names another one; cairn top shows those of cairn up)"
                                 : "";
    return Fail(Annotate(stats.status(), "cache node at " + options.cache + hint));
  }

  // One of several nodes may have answered.
  const client::ClientStats told = (*client)->GetStats();
  const bool chosen = told.home != options.cache;
  connection.address = told.home;
  // Listing needs the admin role: without it the totals are still worth showing.
  const auto listed = NamespacesOf(connection, call);
  if (!listed.ok()) {
    std::fprintf(stderr, "cairn: namespaces left out: %s\n",
                 InFlags(Message(listed.status())).c_str());
  }
  const auto namespaces = listed.ok() ? *listed : std::vector<client::NamespaceInfo>();

  if (options.json) {
    Json out = listed.ok() ? StatJson(*stats, namespaces)
                           : StatJsonWithout(*stats, Message(listed.status()));
    out["address"] = told.home;
    std::printf("%s\n", Dump(out).c_str());
  } else {
    if (chosen) std::printf("address %s\n", told.home.c_str());
    std::printf("%s", StatText(*stats, namespaces, Terminal::Detect(stdout)).c_str());
  }
  return kExitOk;
}

}  // namespace cairn::cli
