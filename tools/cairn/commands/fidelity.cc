#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/fidelity/runner.h"
#include "tools/cairn/fidelity/texts.h"
#include "tools/cairn/generator/generator.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {
namespace {

// Before hours of work on what is right.
Status CheckFidelity(const FidelityOptions& options) {
  if (options.context_tokens % 64 != 0) {
    return InvalidArgument("--context-tokens: got {}, expected whole blocks of 64",
                           options.context_tokens);
  }
  for (const std::string& recipe : options.recipes) {
    CAIRN_RETURN_IF_ERROR(CheckLocalWorker({.recipe = recipe}));
  }
  for (const std::string& policy : options.read_policies) {
    CAIRN_RETURN_IF_ERROR(CheckLocalWorker({.read_policy = policy}));
  }
  return OkStatus();
}

}  // namespace

void AddFidelity(CLI::App& app, FidelityOptions& o) {
  CLI::App& c = *app.add_subcommand("fidelity", "Measures how much a recipe changes the answers");
  c.add_option(
       "--recipe", o.recipes,
       "How KV is stored, as in the worker's setting cache.recipe; may be given several times")
      ->capture_default_str();
  c.add_option("--read-policy", o.read_policies,
               "How the context is read by rows, as in the worker's setting read_policy; may be "
               "given several times");
  c.add_option("--suite", o.suites, fmt::format("{}", fmt::join(FidelitySuites(), ", ")))
      ->delimiter(',')
      ->check(CLI::IsMember(FidelitySuites()))
      ->capture_default_str();
  c.add_flag("--exact", o.exact, "Compute in float32");
  c.add_flag("--kept", o.kept, "Write which rows selections kept to OUT/kept-SUITE.json");
  c.add_option("--split", o.split, "published, or tuning: texts for choosing parameters")
      ->check(CLI::IsMember({"published", "tuning"}))
      ->capture_default_str();
  c.add_option("--limit", o.limit, "Only the first N texts of a suite; 0: all")
      ->capture_default_str();
  c.add_option("--context-tokens", o.context_tokens,
               "Context of a document, of which 256 tokens more are read; whole blocks of 64")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  c.add_option("--question-tokens", o.question_tokens,
               "Longest context that questions are asked about; whole blocks of 64")
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
  c.add_option("--model", o.model, "GGUF file")->envname("CAIRN_MODEL")->capture_default_str();
  c.add_option("--texts", o.texts, "Directory of the texts")->capture_default_str();
  c.add_option("--out", o.out, "Directory for logs, and for the tokens that were used")
      ->capture_default_str();
  c.add_option("--threads", o.threads, "Threads of each worker; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  AddJson(c, o.json, "Print the rows as JSON");
  c.footer(
      "One worker computes each context and pushes it to a node in all recipes. Another worker\n"
      "fetches it and computes what follows, and its results are compared with those of the "
      "first.\n"
      "Fails if a context was not fetched completely. A ladder is measured in its last form, from\n"
      "disk.\n"
      "Example:\n"
      "  cairn fidelity --recipe raw --recipe int8 --suite prose,needles --exact");
}

int RunFidelity(const FidelityOptions& options) {
  if (const Status usable = CheckFidelity(options); !usable.ok()) {
    return FailUsage("fidelity: " + Message(usable));
  }
  if (!std::filesystem::exists(options.model)) {
    return Fail(Errorf(StatusCode::kNotFound,
                       "no model at '{}'; `python3 tools/fetch_model.py --output build/models` "
                       "fetches it, or name a GGUF file with --model",
                       options.model));
  }
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) {
    return Fail(Errorf(StatusCode::kInvalidArgument, "out: cannot make '{}': {}", options.out,
                       error.message()));
  }
  CatchInterrupts();
  Progress progress(/*silent=*/false);
  FidelityRunner runner({.model_path = options.model,
                         .out_directory = options.out,
                         .texts_directory = options.texts,
                         .split = options.split,
                         .exact = options.exact,
                         .threads = options.threads,
                         .limit = options.limit,
                         .kept = options.kept,
                         .shape = {.context_tokens = options.context_tokens,
                                   .needle_tokens = options.question_tokens}},
                        progress);
  for (const std::string& suite : options.suites) {
    const Status status = runner.Run(suite, options.recipes, options.read_policies);
    if (status.ok()) continue;
    progress.Clear();
    if (Interrupted()) {
      std::fprintf(stderr, "cairn: interrupted\n");
      return kExitInterrupted;
    }
    std::fprintf(stderr, "cairn: logs are in %s\n", options.out.c_str());
    return Fail(status);
  }
  progress.Clear();
  if (options.json) {
    std::printf("%s", DumpPretty(runner.Report()).c_str());
  } else {
    std::printf("%s", FidelityTable(runner.rows(), Terminal::Detect(stdout)).c_str());
  }
  return kExitOk;
}

}  // namespace cairn::cli
