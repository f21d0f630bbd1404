#include "common/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

namespace cairn::log {
namespace {

std::atomic<Level> g_level{Level::kInfo};
std::atomic<Format> g_format{Format::kText};

spdlog::logger& Logger() {
  static std::shared_ptr<spdlog::logger> logger = [] {
    auto made = spdlog::stderr_logger_mt("cairn");
    made->set_level(spdlog::level::debug);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %v", spdlog::pattern_time_type::utc);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

bool NeedsQuotes(const std::string& value) {
  return value.empty() || value.find_first_of(" =\"\n\t") != std::string::npos;
}

// ASCII-safe and valid even where a value holds foreign bytes.
std::string Dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void Configure(const Options& options) {
  g_level = options.level;
  g_format = options.format;
  Logger().set_pattern(options.format == Format::kJson ? "%v" : "%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %v",
                       spdlog::pattern_time_type::utc);
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
  std::string line;
  if (g_format.load(std::memory_order_relaxed) == Format::kJson) {
    nlohmann::ordered_json object;
    const auto now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
    object["ts"] = now.count();
    object["level"] = std::string(spdlog::level::to_string_view(ToSpdlog(level)).data());
    object["event"] = std::string(event);
    for (const Field& field : fields) object[std::string(field.key)] = field.value;
    line = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  } else {
    line = std::string(event);
    for (const Field& field : fields) {
      line += ' ';
      line += field.key;
      line += '=';
      line += NeedsQuotes(field.value) ? Dump(field.value) : field.value;
    }
  }
  Logger().log(ToSpdlog(level), "{}", line);
}

}  // namespace cairn::log
