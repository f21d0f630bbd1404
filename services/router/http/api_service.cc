#include "services/router/http/api_service.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <optional>
#include <random>

#include "services/router/http/answer_writer.h"
#include "services/router/http/api_answer.h"
#include "services/router/http/query_api.h"
#include "services/router/http/relay_request.h"
#include "services/router/http/relay_writer.h"
#include "services/router/http/request_headers.h"
#include "services/router/http/request_names.h"

namespace cairn::router {
namespace {

constexpr std::string_view kModelsPath = "/v1/models";
// How long a caller whose body found no room waits.
constexpr Duration kBodyRetry = std::chrono::seconds(1);

uint64_t SystemRandom() {
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

ApiError MethodError(const std::string& method, std::string_view expected) {
  return {.status = 405,
          .message = fmt::format("method: got '{}', expected {}", method, expected),
          .code = "method_not_allowed"};
}

// "a%2Fb" is "a/b". Text that is not encoded right stays as it is: no model has that name.
std::string Decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const begin = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(begin, begin + 2, value, 16).ptr == begin + 2) {
      decoded.push_back(static_cast<char>(value));
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

// Headers that an engine may know, too. Not who calls.
constexpr std::array<std::string_view, 6> kEngineHeaders = {"x-request-id", "traceparent",
                                                            "tracestate",   "x-cairn-priority",
                                                            "x-cairn-next", "x-cairn-trace"};

std::vector<RawHeader> HeadersForEngine(const http::Request& request) {
  std::vector<RawHeader> headers;
  for (const std::string_view name : kEngineHeaders) {
    // Two traces are none: the engine must not choose another one than this router does.
    if (name == "traceparent" && std::ranges::count_if(request.headers, [](const auto& header) {
                                   return http::EqualNames(header.name, "traceparent");
                                 }) > 1) {
      continue;
    }
    if (const std::string* const value = request.Find(name); value != nullptr) {
      headers.push_back({std::string(name), *value});
    }
  }
  return headers;
}

http::Response JsonResponse(std::string body) { return {.body = std::move(body) + "\n"}; }

}  // namespace

ApiService::ApiService(Router* router, Options options)
    : router_(router),
      options_([&options] {
        if (!options.unix_seconds) options.unix_seconds = [] { return std::time(nullptr); };
        if (!options.random) options.random = &SystemRandom;
        return std::move(options);
      }()),
      counters_(std::make_shared<ApiCounters>()) {}

ApiService::~ApiService() { reading_.WaitForNone(SteadyClock::Get()); }

ApiStats ApiService::GetStats() const { return counters_->Get(); }

void ApiService::Answer(Route route, http::Responder& responder, http::Response response) {
  counters_->Answered(route, response.status);
  responder.Send(std::move(response));
}

http::Response ApiService::Refuse(int status, const std::string& message) {
  counters_->Answered(Route::kOther, status);
  ApiError error{.status = status, .message = message};
  if (status == 503) {
    error.code = "unavailable";
    error.retry_after = kBodyRetry;
  }
  http::Response response = ErrorResponse(error);
  if (status < 500) return response;
  RequestNames names;  // It has no headers yet.
  names.id = NewId(Route::kOther);
  LogEnd(names, Route::kOther, status, message);
  response.headers.push_back({"x-request-id", names.id});
  return response;
}

std::string ApiService::NewId(Route route) const {
  const char* const prefix = route == Route::kChat          ? "chatcmpl"
                             : route == Route::kCompletions ? "cmpl"
                                                            : "req";
  return fmt::format("{}-{:016x}", prefix, options_.random());
}

void ApiService::RefuseRequest(const Incoming& call, const ApiError& error) {
  LogEnd(call.names, call.route, error.status, error.message);
  if (options_.tracer != nullptr && call.route != Route::kQuery) {
    if (const auto place = options_.tracer->Begin(call.names.trace, /*entry=*/true)) {
      tracing::Attributes attributes = {{"request_id", call.names.id},
                                        {"http.response.status_code", int64_t{error.status}}};
      if (!call.names.caller_id.empty()) {
        attributes.emplace_back("caller_request_id", call.names.caller_id);
      }
      if (!call.names.word.empty()) attributes.emplace_back("trace_word", call.names.word);
      options_.tracer->End({.place = *place,
                            .kind = tracing::SpanKind::kServer,
                            .name = std::string(kRouteSpan),
                            .begin = call.began,
                            .end = options_.clock->Now(),
                            .attributes = std::move(attributes),
                            .error = error.message});
    }
  }
  http::Response response = ErrorResponse(error);
  response.headers.push_back({"x-request-id", call.names.id});
  Answer(call.route, *call.responder, std::move(response));
}

void ApiService::Handle(http::Request request, std::shared_ptr<http::Responder> responder) {
  const std::string& path = request.path;
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  const bool is_models =
      path == kModelsPath || (path.starts_with(kModelsPath) && path[kModelsPath.size()] == '/');
  if (path == "/v1/completions" || path == "/v1/chat/completions") {
    const Route route = path == "/v1/completions" ? Route::kCompletions : Route::kChat;
    if (request.method == "POST") {
      return ReadBody(route, std::move(request), std::move(responder), &ApiService::Generate);
    }
    http::Response error = ErrorResponse(MethodError(request.method, "POST"));
    error.headers.push_back({"Allow", "POST"});
    return Answer(route, *responder, std::move(error));
  }
  if (path == "/query" || path == "/query_by_hash") {
    if (request.method == "POST") {
      return ReadBody(Route::kQuery, std::move(request), std::move(responder), &ApiService::Query);
    }
    http::Response error = ErrorResponse(MethodError(request.method, "POST"));
    error.headers.push_back({"Allow", "POST"});
    return Answer(Route::kQuery, *responder, std::move(error));
  }
  if (path == "/health" || is_models) {
    if (is_get) return is_models ? Models(request, *responder) : Health(*responder);
    http::Response error = ErrorResponse(MethodError(request.method, "GET"));
    error.headers.push_back({"Allow", "GET, HEAD"});
    return Answer(is_models ? Route::kModels : Route::kHealth, *responder, std::move(error));
  }
  Answer(Route::kOther, *responder,
         ErrorResponse({.status = 404,
                        .message = fmt::format("path: got '{}', expected /v1/completions, "
                                               "/v1/chat/completions, /v1/models, /query, "
                                               "/query_by_hash or /health",
                                               path.substr(0, 128)),
                        .code = "unknown_url"}));
}

std::variant<std::string, ApiError> ApiService::TenantOf(const http::Request& request) {
  if (!options_.tenant_header.empty()) {
    const std::string* const tenant = request.Find(options_.tenant_header);
    if (tenant != nullptr && IsTenant(*tenant)) return *tenant;
    return ApiError{.status = 401,
                    .message = fmt::format("header '{}': expected the tenant, from the gateway",
                                           options_.tenant_header),
                    .param = options_.tenant_header,
                    .code = "missing_tenant"};
  }
  if (options_.keys == nullptr) return std::string();
  constexpr std::string_view kScheme = "Bearer ";
  const std::string* const header = request.Find("authorization");
  const std::string_view value = header == nullptr ? std::string_view() : *header;
  if (value.size() <= kScheme.size() ||
      !http::EqualNames(value.substr(0, kScheme.size()), kScheme)) {
    return ApiError{.status = 401,
                    .message = "header 'Authorization': expected 'Bearer' and an API key",
                    .code = "missing_api_key"};
  }
  if (auto tenant = options_.keys->TenantOf(value.substr(kScheme.size())); tenant.has_value()) {
    return *std::move(tenant);
  }
  return ApiError{.status = 401,
                  .message = "header 'Authorization': got a key that nobody has here",
                  .code = "invalid_api_key"};
}

void ApiService::ReadBody(Route route, http::Request request,
                          std::shared_ptr<http::Responder> responder,
                          void (ApiService::*read)(Incoming)) {
  const TimePoint began = options_.clock->Now();
  auto tenant = TenantOf(request);
  // Strangers get neither a line nor a span: they could write as many as they like.
  if (const auto* error = std::get_if<ApiError>(&tenant)) {
    return Answer(route, *responder, ErrorResponse(*error));
  }
  RequestNames names = NamesIn(request);
  names.id = NewId(route);
  const uint64_t bytes = request.body.size();
  Incoming call{route, std::move(request), responder, std::get<std::string>(std::move(tenant)),
                began, std::move(names)};
  if (const auto error = CheckContentType(call.request)) return RefuseRequest(call, *error);
  if (options_.reads == nullptr || bytes <= BodyReads::kShort) {
    return (this->*read)(std::move(call));
  }
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  responder->OnAbort([gone] { *gone = true; });
  // Functions are copied, and what they hold is not.
  const auto kept = std::make_shared<Incoming>(std::move(call));
  const auto token = std::make_shared<InFlight::Token>(&reading_);
  const Status posted = options_.reads->Post(kept->tenant, bytes, [this, token, kept, gone, read] {
    if (*gone) return counters_->Aborted();
    (this->*read)(std::move(*kept));
  });
  if (posted.ok()) return;
  RefuseRequest(*kept, FromRouter({.status = Annotate(posted, "too many bodies wait to be read"),
                                   .retry_after = kBodyRetry}));
}

void ApiService::Generate(Incoming call) {
  const Endpoint endpoint = call.route == Route::kChat ? Endpoint::kChat : Endpoint::kCompletions;
  auto parsed = options_.relay ? ParseRelayRequest(endpoint, HeadersForEngine(call.request),
                                                   std::move(call.request.body))
                               : ParseApiRequest(endpoint, call.request.body.text());
  if (const auto* error = std::get_if<ApiError>(&parsed)) return RefuseRequest(call, *error);
  auto& api = std::get<ApiRequest>(parsed);
  if (!options_.relay) {
    ByteShare share = ChargedString::IntoShare(std::move(call.request.body));
    if (const auto error = Charge(std::move(share), &api.generate)) {
      return RefuseRequest(call, *error);
    }
  }
  api.generate.tenant = call.tenant;
  if (const auto error = ReadHeaders(call.request, &api.generate); error.has_value()) {
    return RefuseRequest(call, *error);
  }
  api.generate.names = call.names;
  if (!api.has_seed) api.generate.seed = options_.random();
  const auto writer = WriterOf(call, api);
  std::shared_ptr<GenerateCall> running = router_->Generate(std::move(api.generate), writer);
  options_.observe_added(Seconds(options_.clock->Now() - call.began));
  // The connection keeps the call: it ends when the client goes, and not before its answer has
  // left.
  call.responder->OnAbort([running = std::move(running), counters = counters_] {
    counters->Aborted();
    if (running != nullptr) running->Cancel();
  });
}

std::shared_ptr<GenerateObserver> ApiService::WriterOf(const Incoming& call,
                                                       const ApiRequest& request) {
  if (options_.relay) {
    return std::make_shared<RelayWriter>(call.route, call.names, call.responder, counters_);
  }
  std::string model = request.generate.model;
  if (model.empty()) {
    const std::vector<ServedModel> models = router_->Models();
    if (!models.empty()) model = models.front().id;
  }
  AnswerHead head{.endpoint = call.route == Route::kChat ? Endpoint::kChat : Endpoint::kCompletions,
                  .id = call.names.id,
                  .created = options_.unix_seconds(),
                  .model = std::move(model)};
  return std::make_shared<AnswerWriter>(call.route, std::move(head), request, call.names,
                                        call.responder, counters_);
}

void ApiService::Models(const http::Request& request, http::Responder& responder) {
  const auto tenant = TenantOf(request);
  if (const auto* error = std::get_if<ApiError>(&tenant)) {
    return Answer(Route::kModels, responder, ErrorResponse(*error));
  }
  const std::vector<ServedModel> models = router_->Models();
  const int64_t created = options_.unix_seconds();
  if (request.path == kModelsPath) {
    return Answer(Route::kModels, responder, JsonResponse(RenderModels(models, created)));
  }
  const std::string id = Decoded(std::string_view(request.path).substr(kModelsPath.size() + 1));
  const auto found = std::ranges::find(models, id, &ServedModel::id);
  if (found != models.end()) {
    return Answer(Route::kModels, responder, JsonResponse(RenderModel(*found, created)));
  }
  Answer(Route::kModels, responder,
         ErrorResponse({.status = 404,
                        .message = fmt::format("model: got '{}', expected one of /v1/models",
                                               id.substr(0, 128)),
                        .param = "model",
                        .code = "model_not_found"}));
}

void ApiService::Query(Incoming call) {
  const QueryBy by = call.request.path == "/query" ? QueryBy::kTokens : QueryBy::kHashes;
  auto answer = AnswerQuery(by, call.request.body.text(), call.tenant, router_);
  if (const auto* const error = std::get_if<ApiError>(&answer)) return RefuseRequest(call, *error);
  Answer(Route::kQuery, *call.responder, JsonResponse(std::get<std::string>(std::move(answer))));
}

void ApiService::Health(http::Responder& responder) {
  const std::vector<ServedModel> models = router_->Models();
  const bool serves =
      std::ranges::any_of(models, [](const ServedModel& model) { return model.workers > 0; });
  if (serves && !draining_) {
    return Answer(Route::kHealth, responder, JsonResponse("{\"status\":\"ok\"}"));
  }
  Answer(Route::kHealth, responder,
         ErrorResponse({.status = 503,
                        // Nobody needs a key to ask, so it names no worker.
                        .message = draining_
                                       ? "the router is about to stop"
                                       : "no worker can answer; /readyz at admin.listen says why",
                        .code = "unavailable"}));
}

}  // namespace cairn::router
