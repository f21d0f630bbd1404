#include <cstdio>

#include "cairn/client/connect.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/commands/stat_view.h"
#include "tools/cairn/generator/connection.h"

namespace cairn::cli {

int RunStat(const StatOptions& options) {
  client::ConnectOptions connection = ConnectionTo(options.cache, options.tls);
  auto client = client::Connect(connection);
  if (!client.ok()) return Fail(client.status());
  const client::CallOptions call{.deadline = std::chrono::duration_cast<Duration>(
                                     std::chrono::duration<double>(options.timeout_s)),
                                 .trace = ""};
  const auto stats = (*client)->Stat(call);
  if (!stats.ok()) return Fail(Annotate(stats.status(), "cache node at " + options.cache));

  // One of several nodes may have answered.
  const client::ClientStats told = (*client)->GetStats();
  const bool chosen = told.home != options.cache;
  connection.address = told.home;
  // Listing needs the admin role: without it the totals are still worth showing.
  std::vector<client::NamespaceInfo> namespaces;
  if (auto admin = client::ConnectAdmin(connection); admin.ok()) {
    if (auto listed = (*admin)->ListNamespaces("", call); listed.ok())
      namespaces = *std::move(listed);
  }

  if (options.json) {
    Json out = StatJson(*stats, namespaces);
    out["address"] = told.home;
    std::printf("%s\n", Dump(out).c_str());
  } else {
    if (chosen) std::printf("address %s\n", told.home.c_str());
    std::printf("%s", StatText(*stats, namespaces, Terminal::Detect(stdout)).c_str());
  }
  return kExitOk;
}

}  // namespace cairn::cli
