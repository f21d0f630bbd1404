#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include "tools/cairn/cluster/grpc_nodes.h"
#include "tools/cairn/cluster/operations.h"
#include "tools/cairn/cluster/survey_view.h"
#include "tools/cairn/commands/addresses.h"
#include "tools/cairn/commands/commands.h"
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
    CAIRN_ASSIGN_OR_RETURN(keys.emplace_back(), Digest::FromHex(word, "--keys"));
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

}  // namespace

int RunClusterStat(const StatOptions& options) {
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  const auto survey = TakeSurvey(nodes.get(), SplitAddresses(options.cache), /*stats=*/true);
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

int RunClusterMembers(const ClusterOptions& options) {
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  const auto view = nodes->Members(options.cache);
  if (!view.ok()) return Fail(Annotate(view.status(), "cache node at " + options.cache));
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
  const auto node = client::ConnectCluster(ConnectionTo(options.cache, options.tls));
  if (!node.ok()) return Fail(node.status());
  const auto found = (*node)->Locate(*fingerprint, *keys,
                                     {.deadline = FromSeconds(options.timeout_s), .trace = ""});
  if (!found.ok()) return Fail(Annotate(found.status(), "cache node at " + options.cache));
  if (options.json) {
    Print(LocationsJson(*found));
  } else {
    Print(LocationsText(*found, Terminal::Detect(stdout)));
  }
  return kExitOk;
}

int RunClusterDrain(const ClusterOptions& options) {
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  const Status drained = DrainNode(nodes.get(), options.cache, Wait(options.wait_s));
  if (!drained.ok()) return Fail(drained);
  if (options.json) {
    Print(Json{{"drained", options.cache}, {"gone", options.wait_s > 0}});
  } else {
    std::printf("%s %s\n", options.cache.c_str(), options.wait_s > 0 ? "has drained" : "drains");
  }
  return kExitOk;
}

int RunClusterBump(const ClusterOptions& options) {
  const auto fingerprint = Digest::FromHex(options.fingerprint, "--namespace");
  if (!fingerprint.ok()) return FailUsage(std::string(Message(fingerprint.status())));
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  return Finish(BumpEverywhere(nodes.get(), SplitAddresses(options.cache), *fingerprint,
                               Wait(options.wait_s)),
                "bumped", options.json);
}

int RunClusterDropTenant(const ClusterOptions& options) {
  const auto nodes = NewClusterNodes(options.tls, FromSeconds(options.timeout_s));
  return Finish(DropTenantEverywhere(nodes.get(), SplitAddresses(options.cache), options.tenant),
                "dropped", options.json);
}

}  // namespace cairn::cli
