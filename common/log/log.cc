#include "common/log/log.h"

#include <fmt/chrono.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/log/line_limiter.h"
#include "common/log/line_queue.h"

namespace cairn::log {
namespace {

constexpr size_t kMaxWaitingBytes = 1 << 20;
constexpr size_t kMaxValueBytes = 4096;
// How long an end of the process waits for a reader of stderr.
constexpr Duration kLastLines = std::chrono::milliseconds(500);

std::atomic<Level> g_level{Level::kInfo};
std::atomic<Format> g_format{Format::kText};

std::string_view NameOf(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarn:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "info";
}

// Also what a terminal would obey: control characters, and everything beyond ASCII.
bool NeedsQuotes(std::string_view value) {
  return value.empty() || std::any_of(value.begin(), value.end(), [](char c) {
           return c <= ' ' || c > '~' || c == '=' || c == '"' || c == '\\';
         });
}

// ASCII without control characters, and valid even if a value holds foreign bytes.
template <typename Json>
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

std::string Bounded(const std::string& value) {
  if (value.size() <= kMaxValueBytes) return value;
  return fmt::format("{}... ({} bytes)", std::string_view(value).substr(0, kMaxValueBytes),
                     value.size());
}

std::string Line(Level level, std::string_view event, std::initializer_list<Field> fields,
                 uint64_t left_out) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  if (g_format.load(std::memory_order_relaxed) == Format::kJson) {
    nlohmann::ordered_json object;
    object["ts"] = std::chrono::duration<double>(now).count();
    object["level"] = std::string(NameOf(level));
    object["event"] = std::string(event);
    for (const Field& field : fields) object[std::string(field.key)] = Bounded(field.value);
    if (left_out > 0) object["left_out"] = std::to_string(left_out);
    return Dump(object) + '\n';
  }
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  std::string line =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z {} {}", fmt::gmtime(static_cast<time_t>(ms / 1000)),
                  ms % 1000, NameOf(level), event);
  for (const Field& field : fields) {
    const std::string value = Bounded(field.value);
    line += ' ';
    line += field.key;
    line += '=';
    line += NeedsQuotes(value) ? Dump(nlohmann::json(value)) : value;
  }
  if (left_out > 0) line += fmt::format(" left_out={}", left_out);
  return line + '\n';
}

// Gives up when nobody can read it any more.
void WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd out{STDERR_FILENO, POLLOUT, 0};
      poll(&out, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

// Writes the lines of this process. Never destroyed: threads may log until the very end.
class Writer {
 public:
  static Writer& Get() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
      instance() = new Writer();
      std::atexit([] { Flush(kLastLines); });
      internal::SetBeforeAbort([] { Flush(kLastLines); });
      // The thread is not in the child, and the lock may be held there for good.
      pthread_atfork(nullptr, nullptr, [] { instance() = new Writer(); });
    });
    return *instance();
  }

  void Write(std::string_view line) {
    Start();
    queue_.Push(line);
  }
  LineQueue& queue() { return queue_; }
  LineLimiter& limiter() { return limiter_; }
  bool started() const { return started_.load(std::memory_order_acquire); }

 private:
  static Writer*& instance() {
    static Writer* writer = nullptr;
    return writer;
  }
  void Start() {
    if (started() || started_.exchange(true)) return;
    // Signals are for the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { Run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  void Run() {
    pthread_setname_np(pthread_self(), "log");
    for (;;) {
      const LineQueue::Batch batch = queue_.Take();
      WriteAll(batch.lines);
      if (batch.dropped == 0) continue;
      WriteAll(Line(Level::kWarn, "log_lines_dropped",
                    {{"lines", Num(batch.dropped)}, {"why", "stderr was not read"}}, 0));
    }
  }

  LineQueue queue_{kMaxWaitingBytes};
  LineLimiter limiter_;
  std::atomic<bool> started_{false};
};

}  // namespace

void Configure(const Options& options) {
  g_level = options.level;
  g_format = options.format;
  static std::terminate_handler before = nullptr;
  if (before != nullptr) return;
  before = std::set_terminate([] {
    Flush(kLastLines);
    before();
  });
}

bool Flush(Duration timeout) {
  Writer& writer = Writer::Get();
  return !writer.started() || writer.queue().WaitWritten(SteadyClock::Get().Now() + timeout);
}

Losses GetLosses() {
  Writer& writer = Writer::Get();
  return {.dropped = writer.queue().dropped(), .left_out = writer.limiter().left_out()};
}

Result<Level> ParseLevel(std::string_view name) {
  if (name == "debug") return Level::kDebug;
  if (name == "info") return Level::kInfo;
  if (name == "warn") return Level::kWarn;
  if (name == "error") return Level::kError;
  return InvalidArgument("log level: got '{}', expected one of debug, info, warn, error", name);
}

Result<Format> ParseFormat(std::string_view name) {
  if (name == "text") return Format::kText;
  if (name == "json") return Format::kJson;
  return InvalidArgument("log format: got '{}', expected one of text, json", name);
}

bool Enabled(Level level) { return level >= g_level.load(std::memory_order_relaxed); }

void Write(Level level, std::string_view event, std::initializer_list<Field> fields) {
  WriteAtRateOf(event, level, event, fields);
}

void WriteAtRateOf(std::string_view bucket, Level level, std::string_view event,
                   std::initializer_list<Field> fields) {
  if (!Enabled(level)) return;
  Writer& writer = Writer::Get();
  uint64_t left_out = 0;
  // A process that asks for debug lines wants all of them.
  if (level > Level::kDebug && !bucket.empty()) {
    const auto admitted = writer.limiter().Admit(bucket, SteadyClock::Get().Now());
    if (!admitted) return;
    left_out = *admitted;
  }
  writer.Write(Line(level, event, fields, left_out));
}

}  // namespace cairn::log
