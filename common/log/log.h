#pragma once
// Structured logs: an event name and key=value fields, as text or as one JSON object a line, to
// stderr.
//
//   log::Info("block_promoted", {{"trace", trace_id}, {"bytes", log::Num(bytes)}});
//
// Thread-safe. Nothing is logged per request above debug level, but for requests that carry a trace
// id and fail.

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

// Process-wide. May be called again.
void Configure(const Options& options);
// "debug", "info", "warn", "error"; INVALID_ARGUMENT otherwise, naming the legal values.
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
