#include "tools/cairn/app.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/config/version.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/completion.h"
#include "tools/cairn/commands/report_error.h"

namespace cairn::cli {
namespace {

constexpr char kEpilog[] =
    "Exit code: 0 done, 1 failed, 2 wrong command line.\n"
    "Each command explains itself: cairn COMMAND --help";

std::vector<CommandSpec> Describe(const CLI::App& app) {
  std::vector<CommandSpec> commands;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandSpec spec{
        .name = sub->get_name(), .help = sub->get_description(), .options = {}, .arguments = {}};
    for (const CLI::Option* option : sub->get_options()) {
      // The arguments of replay and size are files.
      if (option->get_positional() && sub->get_name() != "replay" && sub->get_name() != "size") {
        spec.arguments = sub->get_name() == "bench"
                             ? bench::WorkloadNames()
                             : std::vector<std::string>{"bash", "zsh", "fish"};
      }
      if (option->get_lnames().empty()) continue;
      CommandSpec::Option o;
      o.name = "--" + option->get_lnames().front();
      o.help = option->get_description();
      o.takes_value = option->get_expected_max() > 0;
      if (o.name == "--path") o.values = {"auto", "grpc", "local"};
      if (o.name == "--arithmetic") o.values = {"fast", "float32"};
      spec.options.push_back(std::move(o));
    }
    for (const CLI::App* nested : sub->get_subcommands([](const CLI::App*) { return true; })) {
      spec.arguments.push_back(nested->get_name());
    }
    commands.push_back(std::move(spec));
  }
  return commands;
}

// The error of a command line that ends, or has an unknown word, where a command has to be. Empty:
// it names one. CLI11 says only that there is none.
std::string MissingCommand(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string path;  // The words so far, with a space at its end.
  int word = 1;
  for (; !at->get_subcommands().empty() && word < argc; ++word) {
    at = at->get_subcommands().front();
    path += at->get_name() + " ";
  }
  std::vector<std::string> names;
  for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  if (names.empty()) return "";
  const std::string got = word < argc && argv[word][0] != '-'
                              ? fmt::format("unknown command '{}'", argv[word])
                              : "got no command";
  const std::string prefix = path.empty() ? "" : path.substr(0, path.size() - 1) + ": ";
  return fmt::format("{}{}, expected one of {}; see cairn {}--help", prefix, got,
                     fmt::join(names, ", "), path);
}

// The exit code if there is no command to run.
std::optional<int> Parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    if (const std::string text = MissingCommand(app, argc, argv); !text.empty()) {
      return FailUsage(text);
    }
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const CLI::ParseError& error) {
    // --help and --version end as CLI11's "errors" with code 0.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return std::nullopt;
}

}  // namespace

int RunApp(int argc, char** argv) {
  CLI::App app("Cairn: a KV-cache service for LLM inference", "cairn");
  app.set_version_flag("--version",
                       std::string("cairn ") + CAIRN_VERSION + " (" + CAIRN_REVISION + ")");
  app.require_subcommand(1);
  app.footer(kEpilog);

  GenerateOptions generate;
  ChatOptions chat;
  StatOptions stat;
  ClusterCommands cluster;
  UpOptions up;
  DownOptions down;
  TopOptions top;
  DoctorOptions doctor;
  ReportOptions report;
#ifndef CAIRN_WITHOUT_METHODS
  FidelityOptions fidelity;
#endif
  DemoOptions demo;
  ReplayFlags replay;
  SizeFlags size;
  bench::BenchFlags bench;
  std::string shell;
  AddGenerate(app, generate);
  AddChat(app, chat);
  AddStat(app, stat);
  AddCluster(app, cluster);
  AddUp(app, up);
  AddDown(app, down);
  AddTop(app, top);
  AddDoctor(app, doctor);
  AddReport(app, report);
#ifndef CAIRN_WITHOUT_METHODS
  AddFidelity(app, fidelity);
#endif
  AddDemo(app, demo);
  AddReplay(app, replay);
  AddSize(app, size);
  AddBench(app, bench);
  CLI::App* completion = app.add_subcommand("completion", "Prints a completion script for a shell");
  completion->add_option("shell", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer("Example:\n  source <(cairn completion bash)");

  if (const auto exit_code = Parse(app, argc, argv)) return *exit_code;
  const std::pair<const char*, std::function<int()>> commands[] = {
      {"generate", [&] { return RunGenerate(generate); }},
      {"chat", [&] { return RunChat(chat); }},
      {"stat", [&] { return stat.cluster ? RunClusterStat(stat) : RunStat(stat); }},
      {"cluster", [&] { return RunCluster(*app.get_subcommand("cluster"), cluster); }},
      {"up", [&] { return RunUp(up); }},
      {"down", [&] { return RunDown(down); }},
      {"top", [&] { return RunTop(top); }},
      {"doctor", [&] { return RunDoctor(doctor); }},
      {"report", [&] { return RunReport(report); }},
#ifndef CAIRN_WITHOUT_METHODS
      {"fidelity", [&] { return RunFidelity(fidelity); }},
#endif
      {"demo", [&] { return RunDemo(demo); }},
      {"replay", [&] { return RunReplay(replay); }},
      {"size", [&] { return RunSize(size); }},
      {"bench", [&] { return RunBench(bench); }},
  };
  for (const auto& [name, run] : commands) {
    if (app.got_subcommand(name)) return run();
  }
  const auto script = CompletionScript(shell, "cairn", Describe(app));
  if (!script.ok()) return Fail(script.status());
  std::printf("%s", script->c_str());
  return kExitOk;
}

}  // namespace cairn::cli
