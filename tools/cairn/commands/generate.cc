#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/default_target.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/open_worker.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/generator/answer_text.h"
#include "tools/cairn/output/terminal.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {

namespace {

Status CheckGenerate(const GenerateOptions& options) {
  if (options.prompt.empty() && options.prompt_file.empty()) {
    return InvalidArgument("give --prompt TEXT or --prompt-file FILE");
  }
  return CheckWorker(options.worker);
}

// Without its deadline. Errors name the file that cannot be read.
Result<worker::GenerateRequest> RequestOf(const GenerateOptions& options) {
  worker::GenerateRequest request = RequestFromFlags(options.sampling, options.worker);
  request.ignore_eos = options.ignore_eos;
  request.prefix_end = options.prefix_end;
  request.next = *ParseNextUse(options.next);
  request.want_logits_digest = options.json;
  request.stop = options.stop;
  request.priority = options.priority;
  request.tenant = options.tenant;

  std::string prompt = options.prompt;
  if (!options.prompt_file.empty()) {
    CAIRN_ASSIGN_OR_RETURN(prompt, ReadText(options.prompt_file));
  }
  if (options.raw) {
    request.prompt = worker::RawPrompt{prompt};
  } else {
    worker::ChatPrompt chat;
    if (!options.system.empty()) chat.messages.push_back({"system", options.system});
    chat.messages.push_back({"user", prompt});
    request.prompt = std::move(chat);
  }
  return request;
}

// The worker of `cairn up` that answers if the command line leaves open who does. Empty: one in
// this process. Not the router: it does not say all that a worker says of an answer.
std::string StartedWorker(const WorkerOptions& options) {
  if (options.local_flags) return "";
  const auto target = FindDefault(Seek::kWorker, ThisMachine());
  if (!target.ok()) {
    // It is no news here that nothing was started.
    if (target.status().code() != StatusCode::kNotFound && !options.model_given) {
      std::fprintf(stderr, "cairn: %s; computes in this process\n",
                   Message(target.status()).c_str());
    }
    return "";
  }
  std::error_code error;
  if (options.model_given && !target->address.empty() &&
      !std::filesystem::equivalent(options.model, target->model, error)) {
    return "";
  }
  Say(*target);
  return target->address;
}

}  // namespace

void AddGenerate(CLI::App& app, GenerateOptions& o) {
  CLI::App& c = *app.add_subcommand("generate", "Answers one prompt");
  AddWorkerFlags(c, o.worker);
  AddSamplingFlags(c, o.sampling);
  CLI::Option* prompt = c.add_option("--prompt", o.prompt, "The prompt");
  CLI::Option* file =
      c.add_option("--prompt-file", o.prompt_file, "File with the prompt; -: standard input");
  prompt->excludes(file);
  CLI::Option* system = c.add_option("--system", o.system, "System message before the prompt");
  c.add_flag("--raw", o.raw,
             "Use the text as it is, without a chat template; special tokens are recognised")
      ->excludes(system);
  c.add_option(
       "--prefix-end", o.prefix_end,
       "How many first tokens other prompts share, for recipes with a selection; 0: unknown")
      ->capture_default_str();
  c.add_option("--stop", o.stop, "End the answer before this text; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  c.add_option("--priority", o.priority, "-10 to 10; a greater one goes first at a busy worker")
      ->capture_default_str();
  c.add_option("--tenant", o.tenant, "Whom a busy worker charges; empty: the worker's tenant");
  c.add_option("--deadline", o.deadline_seconds,
               "Seconds after which the answer ends with what there is; 0: none")
      ->check(CLI::Range(0.0, 604800.0))
      ->capture_default_str();
  c.add_option("--next", o.next, "The next step of the conversation: a hint for the cache node")
      ->check(CLI::IsMember({"unknown", "soon", "later", "never"}))
      ->capture_default_str();
  c.add_flag("--ignore-eos", o.ignore_eos, "Continue until --max-tokens");
  AddJson(c, o.json, "Print one JSON object instead of the text");
  c.footer(
      "If neither --worker nor a flag of a worker in this process is given, nothing listens at\n"
      "127.0.0.1:7400, and `cairn up` runs (with the model of --model, if that is given), its\n"
      "first worker answers.\n"
      "Example:\n"
      "  cairn generate --model m.gguf --prompt 'Why is the sky blue?' --max-tokens 100\n"
      "  cairn generate --model m.gguf --prompt-file doc.txt --raw --cache 127.0.0.1:7400 --json");
}

int RunGenerate(const GenerateOptions& given) {
  GenerateOptions options = given;
  if (const Status usable = CheckGenerate(options); !usable.ok()) {
    return FailUsage("generate: " + Message(usable));
  }
  auto made = RequestOf(options);
  if (!made.ok()) return Fail(made.status());
  worker::GenerateRequest request = *std::move(made);
  CatchInterrupts();
  if (options.worker.worker.empty()) options.worker.worker = StartedWorker(options.worker);
  auto worker = OpenWorker(options.worker);
  if (!worker.ok()) return Fail(worker.status());

  // Loading the model does not count.
  if (options.deadline_seconds > 0) {
    request.deadline =
        SteadyClock::Get().Now() + std::chrono::duration_cast<Duration>(
                                       std::chrono::duration<double>(options.deadline_seconds));
  }
  std::string streamed;
  worker::GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId, std::string_view text) {
    if (!options.json) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
      streamed += text;
    }
    return !Interrupted();
  };
  callbacks.cancelled = Interrupted;
  const auto summary = (*worker)->Generate(request, callbacks);
  if (!summary.ok()) return Fail(summary.status());

  if (options.json) {
    std::printf("%s\n", Dump(ToJson(*summary)).c_str());
  } else {
    // A character that was cut off by the end of the answer is in the summary only.
    if (summary->text.starts_with(streamed)) {
      std::fputs(summary->text.c_str() + streamed.size(), stdout);
    }
    std::fputc('\n', stdout);
    std::fflush(stdout);  // Before stderr, for those who read both in one stream.
    const Terminal terminal = Terminal::Detect(stderr);
    std::fprintf(stderr, "%s\n", terminal.Paint(AnswerLine(*summary), Style::kDim).c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Fail(Errorf(StatusCode::kInternal, "cannot write the answer to standard output"));
  }
  if (summary->finish_reason == "cancelled") return kExitInterrupted;
  const bool cached = !options.worker.cache.empty() || !options.worker.worker.empty();
  if (cached && NothingWasShared(request, *summary)) {
    std::fprintf(stderr,
                 "cairn: hint: the prompt's last tokens decide which ones the recipe keeps, and "
                 "nothing says which tokens other prompts share, so none were fetched or stored; "
                 "give --prefix-end\n");
  }

  // Else the process would end before its blocks are at the node, and the next call would not find
  // them.
  if (!options.worker.no_cache && cached) {
    const Status idle = (*worker)->WaitIdle(kPushTimeout);
    if (!idle.ok()) std::fprintf(stderr, "cairn: warning: %s\n", Message(idle).c_str());
  }
  return kExitOk;
}

}  // namespace cairn::cli
