#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/demo/estimate.h"
#include "tools/cairn/demo/report.h"
#include "tools/cairn/demo/runner.h"
#include "tools/cairn/doctor/probe.h"
#include "tools/cairn/output/progress.h"
#include "tools/cairn/output/units.h"
#include "tools/cairn/process/directory_lock.h"
#include "tools/cairn/process/interrupt.h"
#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

constexpr int kTimelineWidth = 72;

std::string Commit() {
  const auto commit = Capture({"git", "-C", ProgramDirectory(), "rev-parse", "HEAD"});
  return commit.ok() ? *commit : "unknown";
}

// For people: timelines, the table, the answers, and what the words in them mean.
void PrintReport(const DemoReport& report, const std::vector<TimelinePicture>& timelines,
                 Duration took, double estimated_s, const std::string& path,
                 const std::string& picture) {
  const Terminal terminal = Terminal::Detect(stdout);
  for (const TimelinePicture& timeline : timelines) {
    std::printf("\n%s", RenderTimeline(timeline, kTimelineWidth, terminal).c_str());
  }
  const double seconds = Seconds(took);
  std::printf("\n%s on %s\n\n%s\n%s\n", report.model.c_str(), report.machine.c_str(),
              RenderRows(report, terminal).c_str(), RenderSummary(report, terminal).c_str());
  std::printf("%s\n%s\n", RenderHeld(report, terminal).c_str(),
              RenderAnswers(report, terminal).c_str());
  std::printf(
      "identical: the %u generated tokens and the SHA-256 of the prompt's last logits are those\n"
      "of a process without a cache. Bytes are counted at the cache node.\n"
      "int8, turbo4, ada-snapkv, chunkkv: recipes that store less than all; the last two forget "
      "60 %% of\n"
      "the rows besides. Their answers may differ: the table says\n"
      "how many of the first tokens do not; above they stand under the answers of cold.\n"
      "copied: of the fetched bytes, by the worker; what it reads in shared memory is not.\n"
      "from peers: read by the worker's node from other nodes of its cluster. holder-killed: the "
      "only\nnode with the KV dies (kill -9) when it has sent half of it; home-killed: the "
      "worker's "
      "node dies.\n"
      "beyond: one prompt with all its KV in pages (full), and in a worker whose pages take a "
      "fifth "
      "of\nit (rows): what does not fit is spilt to a node, and the answer reads rows there. near: "
      "a copy in\n3 bits, and the rows that were read last. prompt: its last logits are the same. "
      "The answer may\ndiffer behind its first tokens: only part of the KV is read exactly.\n"
      "%s for the workload (%s were expected); report in %s, picture of the timelines in %s\n",
      kComparedTokens, HumanSeconds(seconds).c_str(), About(estimated_s).c_str(), path.c_str(),
      picture.c_str());
}

// As many as the options say.
Result<DemoTexts> TextsOf(const DemoOptions& options) {
  DemoTexts texts = BuiltInTexts();
  if (!options.document.empty()) {
    CAIRN_ASSIGN_OR_RETURN(texts, TextsWithDocument(options.document));
  }
  const size_t questions = options.questions == 0 ? texts.questions.size() : options.questions;
  texts.questions.resize(std::min(questions, texts.questions.size()));
  if (options.turns < texts.chat_turns.size()) texts.chat_turns.resize(options.turns);
  return texts;
}

}  // namespace

void AddDemo(CLI::App& app, DemoOptions& o) {
  CLI::App& c =
      *app.add_subcommand("demo", "Shows the whole service at work: cold, from RAM, from disk");
  c.add_option("--model", o.model, "GGUF file with a chat template and 8k tokens of context")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--out", o.out, "Directory for report.json, logs and the node's disk")
      ->capture_default_str();
  c.add_option(
       "--questions", o.questions,
       "Ask only the first N questions; default: as many of the 8 as take four minutes, and "
       "3 at least")
      ->check(CLI::Range(1u, 8u));
  c.add_option("--turns", o.turns, "Only the first N turns of the chat")
      ->check(CLI::Range(1u, 4u))
      ->capture_default_str();
  c.add_option("--document", o.document,
               "Text file with a system message that replaces the built-in ones");
  c.add_option("--cache", o.cache,
               "Use the node at HOST:PORT; it is not killed, so there are no disk phases");
  c.add_option("--threads", o.threads, "Threads of each worker; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  c.add_flag("--keep", o.keep, "Keep the node's disk directory");
  AddJson(c, o.json, "Print the report instead of the tables");
  c.footer(
      "Starts one cache node and two workers, asks up to 8 questions about one long text and "
      "holds\n"
      "a chat. Compares every answer with that of a process without a cache. Fails if an answer\n"
      "differs, or if a warm phase fetched nothing.\n"
      "Example:\n"
      "  cairn demo --questions 2");
}

int RunDemo(const DemoOptions& options) {
  if (!std::filesystem::exists(options.model)) {
    return Fail(Errorf(StatusCode::kNotFound,
                       "no model at '{}'; `make demo` fetches it, or name a GGUF file with --model",
                       options.model));
  }
  Result<DemoTexts> texts = TextsOf(options);
  if (!texts.ok()) return Fail(texts.status());

  std::error_code ignored;
  std::filesystem::create_directories(options.out, ignored);
  // A second demo would delete the node's files under the first.
  const auto lock = DirectoryLock::Take(options.out, "another demo");
  if (!lock.ok()) return Fail(Annotate(lock.status(), "out"));
  const std::string disk = options.out + "/disk";
  std::filesystem::remove_all(disk, ignored);
  for (const char* log :
       {"node", "worker1", "worker2", "worker-grpc", "worker-auto", "int8-push", "int8-fetch",
        "turbo4-push", "turbo4-fetch", "measure", "cold", "cold-chat", "node2", "node3",
        "worker-cluster", "worker-neighbour", "beyond-node", "beyond-full", "beyond-rows"}) {
    std::filesystem::remove(fmt::format("{}/{}.log", options.out, log), ignored);
  }

  CatchInterrupts();
  const auto start = std::chrono::steady_clock::now();
  Progress progress(/*silent=*/false);
  DemoReport report;
  std::vector<TimelinePicture> timelines;
  double estimated_s = 0;
  Status status;
  {
    DemoRunner runner({.model_path = options.model,
                       .out_directory = options.out,
                       .cache = options.cache,
                       .threads = options.threads,
                       .as_time_allows = options.questions == 0},
                      *std::move(texts), progress);
    status = runner.Run();
    report = {.model = runner.model(),
              .machine = MachineName(),
              .commit = Commit(),
              .rows = runner.rows()};
    timelines = runner.timelines();
    estimated_s = runner.estimated_s();
  }  // All processes are gone.
  progress.Clear();
  if (!options.keep) std::filesystem::remove_all(disk, ignored);
  if (Interrupted()) {
    std::fprintf(stderr, "cairn: interrupted\n");
    return kExitInterrupted;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "cairn: the demo stopped; logs are in %s\n", options.out.c_str());
    return Fail(status);
  }

  const std::string path = options.out + "/report.json";
  if (!(std::ofstream(path) << ReportJson(report) << std::flush)) {
    return Fail(Errorf(StatusCode::kInternal, "cannot write '{}'", path));
  }
  const std::string picture = options.out + "/timeline.svg";
  if (!(std::ofstream(picture) << TimelineSvg(timelines) << std::flush)) {
    return Fail(Errorf(StatusCode::kInternal, "cannot write '{}'", picture));
  }
  if (options.json) {
    std::printf("%s", ReportJson(report).c_str());
  } else {
    PrintReport(report, timelines, std::chrono::steady_clock::now() - start, estimated_s, path,
                picture);
  }
  const std::vector<std::string> broken = BrokenPromises(report);
  for (const std::string& promise : broken) std::fprintf(stderr, "cairn: %s\n", promise.c_str());
  return broken.empty() ? kExitOk : kExitFailure;
}

}  // namespace cairn::cli
