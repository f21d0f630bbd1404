#pragma once
// The HTTP port of the router: settings, and the server with OpenAI's API.
//
//   HttpConfig config;
//   Register(schema, config);                      // http.*
//   ...
//   auto edge = HttpEdge::Start(config, tls, &router, relay, observe_added);
//   (*edge)->Drain(timeout);

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/http/server.h"
#include "common/net/tls.h"
#include "services/router/http/api_service.h"
#include "services/router/http/cors.h"

namespace cairn::router {

struct HttpConfig {
  std::string listen = "127.0.0.1:8000";  // Empty: no HTTP.
  std::string api_keys;
  std::string tenant_header;
  std::vector<std::string> cors_origins;
  uint32_t threads = 2;
  uint32_t max_connections = 8192;
  uint64_t max_head = 16 << 10;
  uint64_t max_body = 8 << 20;
  uint64_t all_bodies = 256 << 20;
  uint64_t max_unread = 256 << 10;
  uint64_t all_unread = 64 << 20;
  Duration request_timeout = std::chrono::seconds(30);
  Duration idle_timeout = std::chrono::seconds(75);
  Duration write_timeout = std::chrono::seconds(30);
};

// Registers http.* and their check. `config` must outlive `schema`.
void Register(config::Schema& schema, HttpConfig& config);

// Thread-safe.
class HttpEdge {
 public:
  struct Stats {
    http::Server::Stats server;
    ApiStats api;
    std::optional<bool> keys_stale = {};  // ApiKeyFile::stale. nullopt: callers need no key.
  };

  // `router`, `reads` and `tracer` must outlive the edge. `tracer`: nullptr for no spans. `relay`:
  // its workers are engines. `observe_added` gets the seconds that the edge took from a complete
  // request until the router had it; any thread, must not block. Errors name the setting.
  static Result<std::unique_ptr<HttpEdge>> Start(const HttpConfig& config,
                                                 const net::TlsOptions& tls, Router* router,
                                                 bool relay, BodyReads* reads,
                                                 tracing::Tracer* tracer,
                                                 std::function<void(double)> observe_added);
  // Ends connections without waiting: their calls are cancelled.
  ~HttpEdge();

  const std::string& address() const;
  // Refuses new requests, and waits for the answers under way. False: `timeout` passed first.
  bool Drain(Duration timeout);
  Stats GetStats() const;

 private:
  HttpEdge() = default;

  std::unique_ptr<ApiKeyFile> keys_;
  std::unique_ptr<ApiService> service_;
  std::unique_ptr<CorsHandler> cors_;  // nullptr: off.
  std::unique_ptr<http::Server> server_;
};

}  // namespace cairn::router
