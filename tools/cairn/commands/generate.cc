#include <cstdio>

#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/open_worker.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/output/terminal.h"
#include "tools/cairn/output/units.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {

namespace {

// " (46 MB from shared memory, none copied)".
std::string HowFetched(const worker::GenerateSummary& summary) {
  const uint64_t bytes = summary.fetched.total();
  if (bytes == 0) return "";
  if (summary.fetch_path == client::Path::kGrpc) {
    return fmt::format(" ({} over gRPC)", HumanBytes(bytes));
  }
  const uint64_t copied = bytes - summary.fetched.lent;
  return fmt::format(" ({} from shared memory, {} copied)", HumanBytes(bytes),
                     copied == 0 ? "none" : HumanBytes(copied));
}

// "; 1,536 tokens read by rows: 20.5 MB near, 97 % of the rows there, 0 late".
std::string HowRead(const worker::GenerateSummary& summary) {
  if (!summary.reading.off.empty()) return "; not read by rows: " + summary.reading.off;
  if (summary.reading.policy.empty()) return "";
  const worker::ReadCounters& counters = summary.reading.counters;
  const double hits = counters.chosen_rows == 0 ? 0
                                                : static_cast<double>(counters.hit_rows) /
                                                      static_cast<double>(counters.chosen_rows);
  return fmt::format(
      "; {} tokens read by rows: {} near, {} read, {:.0f} % of the rows hit, {} late",
      Grouped(summary.reading.far_tokens), HumanBytes(summary.reading.near_bytes),
      HumanBytes(counters.read_bytes), 100 * hits, Grouped(counters.late_rows));
}

}  // namespace

int RunGenerate(const GenerateOptions& options) {
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
    auto text = ReadText(options.prompt_file);
    if (!text.ok()) return Fail(text.status());
    prompt = *std::move(text);
  }
  if (options.raw) {
    request.prompt = worker::RawPrompt{prompt};
  } else {
    worker::ChatPrompt chat;
    if (!options.system.empty()) chat.messages.push_back({"system", options.system});
    chat.messages.push_back({"user", prompt});
    request.prompt = std::move(chat);
  }

  CatchInterrupts();
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
  callbacks.on_token = [&](worker::TokenId, std::string_view text) {
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
    if (summary->text.starts_with(streamed))
      std::fputs(summary->text.c_str() + streamed.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);  // Before stderr, for those who read both in one stream.
    const Terminal terminal = Terminal::Detect(stderr);
    const std::string line = fmt::format(
        "{} prompt tokens: {} fetched{}, {} computed; first token {}, all {}{}",
        Grouped(summary->prompt_tokens), Grouped(summary->fetched_tokens), HowFetched(*summary),
        Grouped(summary->computed_tokens), HumanSeconds(summary->ttft_seconds),
        HumanSeconds(summary->total_seconds), HowRead(*summary));
    std::fprintf(stderr, "%s\n", terminal.Paint(line, Style::kDim).c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Fail(Errorf(StatusCode::kInternal, "cannot write the answer to standard output"));
  }
  if (summary->finish_reason == "cancelled") return kExitInterrupted;

  // Else the process would end before its blocks are at the node, and the next call would not find
  // them.
  if (!options.worker.no_cache &&
      (!options.worker.cache.empty() || !options.worker.worker.empty())) {
    const Status idle = (*worker)->WaitIdle(kPushTimeout);
    if (!idle.ok()) std::fprintf(stderr, "cairn: warning: %s\n", Message(idle).c_str());
  }
  return kExitOk;
}

}  // namespace cairn::cli
