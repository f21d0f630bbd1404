#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/open_worker.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/generator/answer_text.h"
#include "tools/cairn/output/terminal.h"
#include "tools/cairn/output/units.h"
#include "tools/cairn/process/cache_node.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kPrivateNodeBytes = 1ULL << 30;

// One conversation. The KV of a turn is prefilled and pushed while the reader reads, so the next
// turn fetches it.
class Conversation {
 public:
  Conversation(Generator& worker, const ChatOptions& options, std::string system)
      : worker_(worker),
        options_(options),
        system_(std::move(system)),
        out_(Terminal::Detect(stdout)),
        interactive_(isatty(STDIN_FILENO) == 1) {
    Reset();
  }

  int Run() {
    std::string line;
    while (!Interrupted()) {
      if (interactive_) {
        std::printf("%s", out_.Paint("you> ", Style::kBold).c_str());
        std::fflush(stdout);
      }
      if (!std::getline(std::cin, line)) break;
      if (line.empty()) continue;
      if (line == "/quit" || line == "/exit") break;
      if (line == "/reset") {
        Reset();
        continue;
      }
      if (line == "/help") {
        std::printf("/reset starts over, /quit ends\n");
        continue;
      }
      // One word: "/tmp is full, why?" is a question.
      if (line.front() == '/' && line.find_first_of(" \t") == std::string::npos) {
        std::fprintf(stderr, "cairn: no command '%s'; /reset starts over, /quit ends\n",
                     line.c_str());
        continue;
      }
      if (const int code = Turn(line); code != kExitOk) return code;
    }
    if (interactive_) std::printf("\n");
    return Interrupted() ? kExitInterrupted : kExitOk;
  }

 private:
  void Reset() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_});
    turn_ = 0;
  }

  int Turn(const std::string& text) {
    ++turn_;
    messages_.push_back({"user", text});
    worker::GenerateRequest request = RequestFromFlags(options_.sampling, options_.worker);
    request.prompt = worker::ChatPrompt{messages_};
    request.keep_turn = true;
    request.drop_oldest = options_.drop_oldest;
    worker::GenerateCallbacks callbacks;
    callbacks.on_token = [&](model::TokenId, std::string_view piece) {
      if (!options_.json) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      }
      return !Interrupted();
    };
    callbacks.cancelled = Interrupted;
    const auto summary = worker_.Generate(request, callbacks);
    if (!summary.ok()) return Refused(summary.status());
    messages_.push_back({"assistant", summary->text});
    Show(*summary);
    if (summary->finish_reason == "cancelled") return kExitInterrupted;
    // A person takes longer to read than the worker to prefill; a pipe does not.
    if (!interactive_ && !options_.worker.no_cache) {
      const Status idle = worker_.WaitIdle(kPushTimeout);
      if (!idle.ok()) std::fprintf(stderr, "cairn: warning: %s\n", Message(idle).c_str());
    }
    return kExitOk;
  }

  // A message that the worker refuses does not end the chat; what fails for another reason would
  // fail again with the next one.
  int Refused(const Status& status) {
    const int code = Fail(status);
    if (status.code() != StatusCode::kInvalidArgument) return code;
    messages_.pop_back();
    --turn_;
    const bool too_long = Message(status).find("field 'prompt'") != std::string::npos;
    std::fprintf(stderr, "cairn: the message is dropped%s\n",
                 too_long
                     ? ", the conversation is too long for the model's context: send a shorter "
                       "message, /reset to start over, or begin with --drop-oldest"
                     : "");
    return kExitOk;
  }

  void Show(const worker::GenerateSummary& summary) {
    if (options_.json) {
      Json json = {{"turn", turn_}};
      json.update(ToJson(summary));
      std::printf("%s\n", Dump(json).c_str());
    } else {
      const std::string line =
          fmt::format("  turn {}: {}", turn_, AnswerLine(summary)) +
          (summary.dropped_tokens == 0
               ? ""
               : fmt::format("; {} oldest dropped, {} turned back", Grouped(summary.dropped_tokens),
                             Grouped(summary.turned_tokens)));
      std::printf("\n%s\n", out_.Paint(line, Style::kDim).c_str());
    }
    std::fflush(stdout);
  }

  Generator& worker_;
  const ChatOptions& options_;
  const std::string system_;
  const Terminal out_;
  const bool interactive_;
  std::vector<model::ChatMessage> messages_;
  int turn_ = 0;
};

}  // namespace

void AddChat(CLI::App& app, ChatOptions& o) {
  CLI::App& c =
      *app.add_subcommand("chat", "Holds a chat; each turn reuses the KV of the turns before");
  AddWorkerFlags(c, o.worker);
  AddSamplingFlags(c, o.sampling);
  CLI::Option* system = c.add_option("--system", o.system, "System message");
  c.add_option("--system-file", o.system_file, "File with the system message")->excludes(system);
  c.add_flag("--drop-oldest", o.drop_oldest,
             "When the chat is longer than the model's context, go on without its oldest turns");
  AddJson(c, o.json, "Print one JSON object per turn");
  c.footer(
      "Without --cache, --worker or --no-cache it starts a cache node of its own, in RAM.\n"
      "/reset starts over, /quit ends. Reads one message per line, also from a pipe.\n"
      "Example:\n"
      "  cairn chat --model m.gguf --system 'You are a patient teacher.'\n"
      "  printf 'Hello!\\nAnd then?\\n' | cairn chat --model m.gguf --cache 127.0.0.1:7400");
}

int RunChat(const ChatOptions& given) {
  ChatOptions options = given;
  if (const Status usable = CheckWorker(options.worker); !usable.ok()) {
    return FailUsage("chat: " + Message(usable));
  }
  std::string system = options.system;
  if (!options.system_file.empty()) {
    auto text = ReadText(options.system_file);
    if (!text.ok()) return Fail(text.status());
    system = *std::move(text);
  }
  CatchInterrupts();

  // Without a cache named, a private one in RAM: a chat without one would compute every turn again.
  CacheNodeProcess node;
  if (options.worker.cache.empty() && options.worker.worker.empty() && !options.worker.no_cache) {
    const std::string log =
        (std::filesystem::temp_directory_path() / fmt::format("cairn-chat-{}.log", getpid()))
            .string();
    auto started =
        StartCacheNode({.host_bytes = kPrivateNodeBytes, .disk_directory = "", .log_path = log});
    if (started.ok()) {
      node = *std::move(started);
      options.worker.cache = node.address;
    } else {
      std::fprintf(stderr, "cairn: warning: no cache for this chat: %s\n",
                   Message(started.status()).c_str());
    }
    std::error_code ignored;
    std::filesystem::remove(log, ignored);
  }

  auto worker = OpenWorker(options.worker);
  if (!worker.ok()) return Fail(worker.status());
  return Conversation(**worker, options, system).Run();
}

}  // namespace cairn::cli
