#pragma once
// Structured logs on stderr: an event name and key=value fields, as text or as one JSON object per
// line.
//
//   log::Info("block_promoted", {{"trace", trace_id}, {"bytes", log::Num(bytes)}});
//
// Thread-safe. Above debug level no request writes a log line of its own, except a request that
// carries a trace id and fails.

#include <initializer_list>
#include <string>
#include <string_view>

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
// Accepts "debug", "info", "warn" and "error". For any other text INVALID_ARGUMENT, which names the
// legal values.
Result<Level> ParseLevel(std::string_view name);
Result<Format> ParseFormat(std::string_view name);

bool Enabled(Level level);
void Write(Level level, std::string_view event, std::initializer_list<Field> fields);

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
