#include "services/router/http/request_names.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "common/log/log.h"
#include "common/tracing/trace_context.h"

namespace cairn::router {
namespace {

constexpr size_t kMostTrace = 64, kMostId = 128;  // Characters.

// nullptr: the request has no such header, or several. W3C's Trace Context calls several
// `traceparent` invalid: nobody can tell whose is right.
const std::string* OnlyOne(const http::Request& request, std::string_view name) {
  const std::string* found = nullptr;
  for (const http::Header& header : request.headers) {
    if (!http::EqualNames(header.name, name)) continue;
    if (found != nullptr) return nullptr;
    found = &header.value;
  }
  return found;
}

void Say(log::Level level, const RequestNames& names, Route route, int status,
         std::string_view reason) {
  if (!log::Enabled(level)) return;
  log::Write(level, reason.empty() ? "http" : "http_failed",
             {{"route", std::string(Name(route))},
              {"status", log::Num(status)},
              {"request", names.id},
              {"caller_request", names.caller_id},
              {"trace", names.trace},
              {"word", names.word},
              {"reason", std::string(reason)}});
}

}  // namespace

RequestNames NamesIn(const http::Request& request) {
  RequestNames names;
  if (const std::string* const id = OnlyOne(request, "x-request-id")) {
    names.caller_id = id->substr(0, kMostId);
  }
  const std::string* const word = OnlyOne(request, "x-cairn-trace");
  const bool legal =
      word != nullptr && !word->empty() && word->size() <= kMostTrace &&
      std::ranges::all_of(*word, [](unsigned char c) { return std::isalnum(c) || c == '-'; });
  if (legal) names.trace = *word;
  const std::string* const parent = OnlyOne(request, "traceparent");
  const auto context = parent != nullptr ? tracing::ParseTraceParent(*parent) : std::nullopt;
  if (!context || (legal && !context->sampled)) return names;
  // Spans are wanted. The word still names the request in this router's log and in its span.
  names.word = std::exchange(names.trace, tracing::TraceParent(*context));
  return names;
}

void LogEnd(const RequestNames& names, Route route, int status, std::string_view reason) {
  const bool failed = !reason.empty();
  log::Level level = log::Level::kDebug;
  if (failed && !names.trace.empty()) level = log::Level::kInfo;
  if (failed && status >= 500) level = log::Level::kWarn;
  Say(level, names, route, status, reason);
}

void LogError(const RequestNames& names, Route route, int status, const GenerateError& error) {
  if (error.status.code() == StatusCode::kCancelled) {
    return Say(log::Level::kDebug, names, route, status, "the caller left");
  }
  LogEnd(names, route, status, ToString(error.status));
}

}  // namespace cairn::router
