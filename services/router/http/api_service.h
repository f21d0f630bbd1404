#pragma once
// OpenAI's API over a Router: POST /v1/completions, POST /v1/chat/completions, GET /v1/models,
// GET /v1/models/{id}, POST /query, POST /query_by_hash, GET /health.
//
//   Request -> route -> tenant of the key -> BodyReads -> ParseApiRequest -> headers
//                                                                               |
//   Responder <- AnswerWriter <- GenerateObserver <- Router::Generate <---------+
//
// Before engines ParseRelayRequest and RelayWriter stand in their places. Knows no sockets: it
// answers through http::Responder.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "common/concurrency/in_flight.h"
#include "common/http/server.h"
#include "common/tracing/tracer.h"
#include "services/router/engine/router.h"
#include "services/router/http/api_counters.h"
#include "services/router/http/api_keys.h"
#include "services/router/http/api_request.h"
#include "services/router/http/body_reads.h"

namespace cairn::router {

// Thread-safe.
class ApiService final : public http::Handler {
 public:
  struct Options {
    ApiKeyFile* keys = nullptr;  // nullptr: callers need no key. Must outlive the service.
    // The header in which a gateway in front says who the tenant is. Empty: nobody says it. Not
    // together with `keys`.
    std::string tenant_header;
    // The workers are engines: what they get and answer passes as it is.
    bool relay = false;
    // Where long bodies are read. nullptr: on the thread that calls Handle. Must outlive the
    // service.
    BodyReads* reads = nullptr;
    // Seconds from the complete request to the moment when the router has it.
    std::function<void(double)> observe_added = [](double) {};
    const Clock* clock = &SteadyClock::Get();
    std::function<int64_t()> unix_seconds;  // Default: the system's clock.
    std::function<uint64_t()> random;       // Default: the system's. Any thread.
    // For requests that never get to the router. nullptr: nobody wants spans. Must outlive the
    // service.
    tracing::Tracer* tracer = nullptr;
  };

  // `router` must outlive it, and all calls that it made.
  ApiService(Router* router, Options options);
  // Waits for the bodies that are being read. REQUIRES: Handle is not called any more.
  ~ApiService() override;

  void Handle(http::Request request, std::shared_ptr<http::Responder> responder) override;
  http::Response Refuse(int status, const std::string& message) override;

  // From now on /health answers 503, for load balancers.
  void StartDrain() { draining_ = true; }
  ApiStats GetStats() const;

 private:
  // A request with a body, of a caller who may ask.
  struct Incoming {
    Route route;
    http::Request request;
    std::shared_ptr<http::Responder> responder;
    std::string tenant;  // The empty one is the configured one.
    TimePoint began;
    RequestNames names;
  };
  // Checks who asks, and calls `read` when it is the body's turn.
  void ReadBody(Route route, http::Request request, std::shared_ptr<http::Responder> responder,
                void (ApiService::*read)(Incoming));
  // Ends a request of somebody who may ask, before the router has it.
  void RefuseRequest(const Incoming& call, const ApiError& error);
  std::string NewId(Route route) const;
  void Generate(Incoming call);
  void Query(Incoming call);
  std::shared_ptr<GenerateObserver> WriterOf(const Incoming& call, const ApiRequest& request);
  void Models(const http::Request& request, http::Responder& responder);
  void Health(http::Responder& responder);
  std::variant<std::string, ApiError> TenantOf(const http::Request& request);
  void Answer(Route route, http::Responder& responder, http::Response response);

  Router* const router_;
  const Options options_;
  const std::shared_ptr<ApiCounters> counters_;  // Calls may live longer than the service.
  std::atomic<bool> draining_{false};
  InFlight reading_;  // Bodies that wait for their turn, or are being read elsewhere.
};

}  // namespace cairn::router
