#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cairn/client/connect.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/doctor/probe.h"
#include "tools/cairn/exit_codes.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli {
namespace {

Check CheckCacheNode(const std::string& address, const TlsFlags& tls) {
  Check check{.name = "cache node", .verdict = Verdict::kFail};
  auto client = client::Connect(ConnectionTo(address, tls));
  Status status = client.status();
  if (client.ok()) {
    const auto stats = (*client)->Stat({.deadline = std::chrono::seconds(3), .trace = ""});
    status = stats.status();
    if (stats.ok()) {
      check.verdict = Verdict::kOk;
      check.found = fmt::format("{}: version {}, {} blocks", (*client)->GetStats().home,
                                stats->version, stats->blocks);
      return check;
    }
  }
  const std::string reason = Message(status);
  const auto about = [&](std::string_view word) { return reason.find(word) != std::string::npos; };
  check.found = fmt::format("{}: {}", address, InFlags(reason));
  // Something answers there, if it is about these.
  check.fix = about("TLS") || about("certificate") ? "correct --cache, or the flags --tls-*"
              : about("HTTP port")                 ? "correct --cache"
                                                   : "start cairn-cache there, or correct --cache";
  return check;
}

Style StyleOf(Verdict verdict) {
  return verdict == Verdict::kOk     ? Style::kGreen
         : verdict == Verdict::kWarn ? Style::kYellow
                                     : Style::kRed;
}

// An engine's configuration is judged by the package that the engine will load, in its own Python.
int BecomeEngineDoctor(const DoctorOptions& options) {
  std::vector<std::string> words = {options.python, "-m", "cairn.doctor", "--vllm", options.vllm};
  if (!options.vllm_model.empty()) words.insert(words.end(), {"--model", options.vllm_model});
  if (options.json) words.emplace_back("--json");
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "--python %s: %s\n", options.python.c_str(), std::strerror(errno));
  return kExitUsage;
}

}  // namespace

void AddDoctor(CLI::App& app, DoctorOptions& o) {
  CLI::App& c =
      *app.add_subcommand("doctor", "Says what is missing on this machine and how to get it");
  c.add_option("--model", o.model, "GGUF file to look for")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--dir", o.directory, "Directory for a disk tier")->capture_default_str();
  c.add_option("--cache", o.cache, "Also ask the cache node at HOST:PORT");
  CLI::Option* vllm = c.add_option(
      "--vllm", o.vllm,
      "Check this value of vLLM's --kv-transfer-config instead, a file or the JSON itself");
  c.add_option("--vllm-model", o.vllm_model,
               "The model that vLLM serves: a folder, or its name on a hub")
      ->needs(vllm);
  c.add_option("--python", o.python, "The Python in which vLLM and Cairn's package are installed")
      ->needs(vllm)
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Examples:\n  cairn doctor --dir /var/lib/cairn\n"
      "  cairn doctor --vllm kv-transfer.json --python venv/bin/python");
}

int RunDoctor(const DoctorOptions& options) {
  if (!options.vllm.empty()) return BecomeEngineDoctor(options);
  std::vector<Check> checks =
      ProbeMachine({.model_path = options.model, .directory = options.directory});
  if (!options.cache.empty()) checks.push_back(CheckCacheNode(options.cache, options.tls));

  if (options.json) {
    Json list = Json::array();
    for (const Check& check : checks) {
      list.push_back({{"name", check.name},
                      {"verdict", std::string(Name(check.verdict))},
                      {"found", check.found},
                      {"fix", check.fix}});
    }
    const Json report = {{"verdict", std::string(Name(Worst(checks)))},
                         {"checks", std::move(list)}};
    std::printf("%s\n", Dump(report).c_str());
  } else {
    const Terminal terminal = Terminal::Detect(stdout);
    for (const Check& check : checks) {
      const std::string verdict = fmt::format("{:<5}", Name(check.verdict));
      std::printf("%s %-14s %s\n", terminal.Paint(verdict, StyleOf(check.verdict)).c_str(),
                  check.name.c_str(), check.found.c_str());
      if (!check.fix.empty()) {
        std::printf("%20s %s\n", "", terminal.Paint(check.fix, Style::kDim).c_str());
      }
    }
  }
  return Worst(checks) == Verdict::kFail ? kExitFailure : kExitOk;
}

}  // namespace cairn::cli
