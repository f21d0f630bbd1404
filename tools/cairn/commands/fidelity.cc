#include <cstdio>
#include <filesystem>

#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/fidelity/runner.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {

int RunFidelity(const FidelityOptions& options) {
  if (!std::filesystem::exists(options.model)) {
    return Fail(Errorf(StatusCode::kNotFound,
                       "no model at '{}'; `python3 tools/fetch_model.py --output build/models` "
                       "fetches it, or name a GGUF file with --model",
                       options.model));
  }
  if (options.context_tokens % 64 != 0) {
    return Fail(InvalidArgument("context-tokens: got {}, expected whole blocks of 64",
                                options.context_tokens));
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
