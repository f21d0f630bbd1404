#pragma once
// Structured logs on stderr: an event name and key=value fields, as text or as one JSON object per
// line.
//
//   log::Info("block_promoted", {{"trace", trace_id}, {"bytes", log::Num(bytes)}});
//
// A thread of its own writes the lines, so nobody who logs waits for a reader of stderr. When the
// reader is slow, at most 1 MiB of lines wait; further ones are dropped, counted, and reported by
// `log_lines_dropped` when there is room again. Above debug level, each event also has a rate (100
// lines at once, then 10 a second): what is left out is counted, and its number is the field
// `left_out` of the event's next line. Few lines have another rate, or none (WriteAtRateOf). Values
// are ASCII without control characters, and at most 4 KiB of each are written.
//
// Lines that wait are written before the process ends: by exit, by a failed check, or by an
// exception that nobody catches. A signal such as SIGSEGV may lose the last few.
//
// Thread-safe. Above debug level no request writes a log line of its own, except one that fails at
// a router through no fault of its caller, and one that carries a trace id and fails.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::log {

enum class Level { kDebug, kInfo, kWarn, kError };
enum class Format { kText, kJson };

struct Options {
  Level level = Level::kInfo;
  Format format = Format::kText;
};

struct Field {
  std::string_view key;
  std::string value;
};

template <typename T>
std::string Num(T value) {
  return fmt::format("{}", value);
}

// Applies to the whole process. May be called again.
void Configure(const Options& options);
// Waits until all lines are written. False: `timeout` passed first.
bool Flush(Duration timeout);

// Lines that were not written since start.
struct Losses {
  uint64_t dropped = 0;   // stderr was not read.
  uint64_t left_out = 0;  // The event wrote too much.
};
Losses GetLosses();
// Accepts "debug", "info", "warn" and "error". For any other text INVALID_ARGUMENT, which names the
// legal values.
Result<Level> ParseLevel(std::string_view name);
Result<Format> ParseFormat(std::string_view name);

bool Enabled(Level level);
void Write(Level level, std::string_view event, std::initializer_list<Field> fields);
// The same, with the rate of `bucket` instead of the event's: lines that anybody can cause take no
// room from others of the event. Empty: without a rate, for lines that must not be missing and that
// strangers cannot cause.
void WriteAtRateOf(std::string_view bucket, Level level, std::string_view event,
                   std::initializer_list<Field> fields);

inline void Debug(std::string_view event, std::initializer_list<Field> fields = {}) {
  if (Enabled(Level::kDebug)) Write(Level::kDebug, event, fields);
}
inline void Info(std::string_view event, std::initializer_list<Field> fields = {}) {
  if (Enabled(Level::kInfo)) Write(Level::kInfo, event, fields);
}
inline void Warn(std::string_view event, std::initializer_list<Field> fields = {}) {
  if (Enabled(Level::kWarn)) Write(Level::kWarn, event, fields);
}
inline void Error(std::string_view event, std::initializer_list<Field> fields = {}) {
  if (Enabled(Level::kError)) Write(Level::kError, event, fields);
}

}  // namespace cairn::log
