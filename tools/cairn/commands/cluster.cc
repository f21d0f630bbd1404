#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include "common/config/text_file.h"
#include "tools/cairn/cluster/grpc_nodes.h"
#include "tools/cairn/cluster/operations.h"
#include "tools/cairn/cluster/survey_view.h"
#include "tools/cairn/commands/addresses.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/default_target.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/generator/connection.h"

namespace cairn::cli {
namespace {

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Patience Wait(double seconds) {
  return {.clock = &SteadyClock::Get(),
          .pause = [](Duration duration) { std::this_thread::sleep_for(duration); },
          .limit = FromSeconds(seconds)};
}

void Print(const Json& json) { std::printf("%s\n", Dump(json).c_str()); }
void Print(const std::string& text) { std::printf("%s", text.c_str()); }

Result<std::vector<BlockKey>> ReadKeys(const std::string& file) {
  std::ifstream opened;
  if (file != "-") {
    opened.open(file);
    if (!opened) return InvalidArgument("--keys: cannot read '{}'", file);
  }
  std::istream& in = file == "-" ? std::cin : opened;
  std::vector<BlockKey> keys;
  for (std::string word; in >> word;) {
    const std::string_view key = keys.empty() ? config::WithoutByteOrderMark(word) : word;
    CAIRN_ASSIGN_OR_RETURN(keys.emplace_back(), Digest::FromHex(key, "--keys"));
  }
  if (keys.empty()) return InvalidArgument("--keys: got none in '{}', expected at least 1", file);
  return keys;
}

int PrintReport(const OperationReport& report, const char* what, bool json) {
  if (json) {
    Json nodes = Json::array();
    for (const OperationReport::Node& node : report.nodes) {
      nodes.push_back({{"node", node.name}, {"problem", node.problem}});
    }
    Print(Json{{"done", report.done()},
               {"namespaces", report.namespaces},
               {"hidden_blocks", report.hidden_blocks},
               {"nodes", std::move(nodes)}});
  } else {
    std::printf("%s: %llu namespaces, %llu blocks hidden\n", what,
                static_cast<unsigned long long>(report.namespaces),
                static_cast<unsigned long long>(report.hidden_blocks));
    for (const OperationReport::Node& node : report.nodes) {
      std::printf("  %s: %s\n", node.name.c_str(),
                  node.problem.empty() ? "done" : node.problem.c_str());
    }
  }
  return report.done() ? kExitOk : kExitFailure;
}

int Finish(const Result<OperationReport>& report, const char* what, bool json) {
  if (!report.ok()) return Fail(report.status());
  return PrintReport(*report, what, json);
}

// One command of `cairn cluster`.
CLI::App& AddClusterCommand(CLI::App& group, ClusterOptions& o, const char* name, const char* help,
                            const char* cache_help) {
  CLI::App& c = *group.add_subcommand(name, help);
  AddNodeAddress(c, o.cache, cache_help);
  c.add_option("--timeout", o.timeout_s, "Seconds to wait for each answer")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  return c;
}

void AddWait(CLI::App& c, ClusterOptions& o, double seconds, const char* help) {
  o.wait_s = seconds;
  c.add_option("--wait", o.wait_s, help)->check(CLI::Range(0.0, 86400.0))->capture_default_str();
}

constexpr char kOneNode[] = "Address of the node, HOST:PORT";
constexpr char kSomeNodes[] = "Addresses of one or more members, HOST:PORT with commas";
constexpr char kNamespace[] = "Fingerprint of the namespace, 64 hexadecimal digits";

int RunClusterMembers(const ClusterOptions& options) {
  const auto address = AddressOr(options.cache, Seek::kNode);
  if (!address.ok()) return Fail(address.status());
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  const auto view = nodes->Members(*address);
  if (!view.ok()) return Fail(Annotate(view.status(), "cache node at " + *address));
  if (options.json) {
    Print(MembersJson(*view));
  } else {
    Print(MembersText(*view, Terminal::Detect(stdout)));
  }
  return kExitOk;
}

int RunClusterLocate(const ClusterOptions& options) {
  const auto fingerprint = Digest::FromHex(options.fingerprint, "--namespace");
  if (!fingerprint.ok()) return FailUsage(std::string(Message(fingerprint.status())));
  const auto keys = ReadKeys(options.keys);
  if (!keys.ok()) return FailUsage(std::string(Message(keys.status())));
  const auto address = AddressOr(options.cache, Seek::kNode);
  if (!address.ok()) return Fail(address.status());
  const auto node = client::ConnectCluster(ConnectionTo(*address, options.tls));
  if (!node.ok()) return Fail(node.status());
  const auto found = (*node)->Locate(*fingerprint, *keys,
                                     {.deadline = FromSeconds(options.timeout_s), .trace = ""});
  if (!found.ok()) return Fail(Annotate(found.status(), "cache node at " + *address));
  if (options.json) {
    Print(LocationsJson(*found));
  } else {
    Print(LocationsText(*found, Terminal::Detect(stdout)));
  }
  return kExitOk;
}

int RunClusterDrain(const ClusterOptions& options) {
  const auto address = AddressOr(options.cache, Seek::kOnlyNode);
  if (!address.ok()) return Fail(address.status());
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  const Status drained = DrainNode(nodes.get(), *address, Wait(options.wait_s));
  if (!drained.ok()) return Fail(drained);
  if (options.json) {
    Print(Json{{"drained", *address}, {"gone", options.wait_s > 0}});
  } else {
    std::printf("%s %s\n", address->c_str(), options.wait_s > 0 ? "has drained" : "drains");
  }
  return kExitOk;
}

int RunClusterBump(const ClusterOptions& options) {
  const auto fingerprint = Digest::FromHex(options.fingerprint, "--namespace");
  if (!fingerprint.ok()) return FailUsage(std::string(Message(fingerprint.status())));
  const auto address = AddressOr(options.cache, Seek::kNodes);
  if (!address.ok()) return Fail(address.status());
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  return Finish(
      BumpEverywhere(nodes.get(), SplitAddresses(*address), *fingerprint, Wait(options.wait_s)),
      "bumped", options.json);
}

int RunClusterDropTenant(const ClusterOptions& options) {
  const auto address = AddressOr(options.cache, Seek::kNodes);
  if (!address.ok()) return Fail(address.status());
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  return Finish(DropTenantEverywhere(nodes.get(), SplitAddresses(*address), options.tenant),
                "dropped", options.json);
}

}  // namespace

void AddCluster(CLI::App& app, ClusterCommands& o) {
  CLI::App& group = *app.add_subcommand("cluster", "Looks at a cluster of nodes and changes it");
  group.require_subcommand(1);
  group.footer(
      "Without --cache, and if nothing listens at the default address, a command uses what\n"
      "`cairn up` started. `drain` does so only if that is a single node.");
  AddClusterCommand(group, o.members, "members", "Shows which members one node sees", kOneNode)
      .footer("Example:\n  cairn cluster members");
  CLI::App& locate = AddClusterCommand(group, o.locate, "locate",
                                       "Shows which nodes hold how much of a prompt", kOneNode);
  locate.add_option("--namespace", o.locate.fingerprint, kNamespace)->required();
  locate
      .add_option("--keys", o.locate.keys,
                  "File with the prompt's block keys in hexadecimal, one per line; -: standard "
                  "input")
      ->capture_default_str();
  locate.footer("Example:\n  cairn cluster locate --namespace FINGERPRINT --keys keys.txt");
  CLI::App& drain =
      AddClusterCommand(group, o.drain, "drain",
                        "Makes a node leave its cluster, finish its calls and stop", kOneNode);
  AddWait(drain, o.drain, 120, "Seconds to wait until the node is gone; 0: do not wait");
  drain.footer("Needs the admin role.\nExample:\n  cairn cluster drain --cache 10.0.0.2:7400");
  CLI::App& bump = AddClusterCommand(
      group, o.bump, "bump", "Hides all blocks of a namespace at all members, for changed weights",
      kSomeNodes);
  bump.add_option("--namespace", o.bump.fingerprint, kNamespace)->required();
  AddWait(bump, o.bump, 60, "Seconds to wait until all members know the bump");
  bump.footer(
      "Needs the admin role at one member that knows the namespace. Fails if a member does not\n"
      "know the bump in time: it then learns it before it serves other members again.\n"
      "Example:\n  cairn cluster bump --namespace FINGERPRINT");
  CLI::App& drop = AddClusterCommand(group, o.drop_tenant, "drop-tenant",
                                     "Drops all namespaces of a tenant at all members", kSomeNodes);
  drop.add_option("--tenant", o.drop_tenant.tenant, "The tenant")->required();
  drop.footer(
      "Needs the admin role at all members.\nExample:\n  cairn cluster drop-tenant --tenant "
      "team-a");
}

int RunClusterStat(const StatOptions& options) {
  const auto address = AddressOr(options.cache, Seek::kNodes);
  if (!address.ok()) {
    (void)Fail(address.status());
    return kExitUnknown;
  }
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  const auto survey = TakeSurvey(nodes.get(), SplitAddresses(*address), /*stats=*/true);
  if (!survey.ok()) {
    (void)Fail(survey.status());
    return kExitUnknown;
  }
  if (options.json) {
    Print(SurveyJson(*survey));
  } else {
    Print(SurveyText(*survey, Terminal::Detect(stdout)));
  }
  return survey->differences.empty() ? kExitOk : kExitFailure;
}

int RunCluster(const CLI::App& group, const ClusterCommands& o) {
  if (group.got_subcommand("members")) return RunClusterMembers(o.members);
  if (group.got_subcommand("locate")) return RunClusterLocate(o.locate);
  if (group.got_subcommand("drain")) return RunClusterDrain(o.drain);
  if (group.got_subcommand("bump")) return RunClusterBump(o.bump);
  return RunClusterDropTenant(o.drop_tenant);
}

}  // namespace cairn::cli
