#include "services/router/http/http_edge.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace cairn::router {
namespace {

using std::chrono::milliseconds;

void RegisterBounds(config::Schema& schema, HttpConfig& c) {
  schema.Integer("http.max_connections", &c.max_connections,
                 "Most open HTTP connections. When all are taken, the connection goes that has "
                 "been without a complete request for longest.",
                 {.min = 1, .max = 1 << 20});
  schema.Bytes("http.max_head", &c.max_head, "Longest request line, and longest headers.",
               {.min = 1 << 10, .max = 1 << 20});
  schema.Bytes("http.max_body", &c.max_body, "Longest body of a request.",
               {.min = 1 << 10, .max = 1 << 30});
  schema.Bytes("http.all_bodies", &c.all_bodies,
               "Memory for the bodies of all requests that arrive or are under way, and for the "
               "prompts and tokens that the router makes of them. The router refuses what does not "
               "fit with 503. A body counts until its worker has begun to answer.",
               {.min = 1 << 10});
  schema.Bytes("http.max_unread", &c.max_unread,
               "How much of a stream may wait for a slow reader. Then the router ends the stream.",
               {.min = 16 << 10, .max = 1 << 30});
  schema.Bytes("http.all_unread", &c.all_unread,
               "Memory for what all readers have not read yet. Each gets at most the share that is "
               "left for others.",
               {.min = 64 << 10});
  schema.Time("http.request_timeout", &c.request_timeout, "Time to send a request.",
              {.min = milliseconds(100), .max = std::chrono::hours(1)});
  schema.Time("http.idle_timeout", &c.idle_timeout,
              "How long a connection may wait for its next request.",
              {.min = milliseconds(100), .max = std::chrono::hours(24)});
  schema.Time("http.write_timeout", &c.write_timeout,
              "How long a reader may take nothing of an answer that waits for it.",
              {.min = milliseconds(100), .max = std::chrono::hours(1)});
}

Status Check(const HttpConfig& c) {
  if (!c.api_keys.empty() && !c.tenant_header.empty()) {
    return InvalidArgument(
        "http.tenant_header: got '{}', expected nothing because http.api_keys is set: with a key "
        "anybody could name any tenant",
        c.tenant_header);
  }
  CAIRN_RETURN_IF_ERROR(ParseOrigins(c.cors_origins, "http.cors_origins").status());
  const bool legal = std::ranges::all_of(
      c.tenant_header, [](unsigned char each) { return std::isalnum(each) || each == '-'; });
  if (!legal) {
    return InvalidArgument("http.tenant_header: got '{}', expected the name of a header",
                           c.tenant_header);
  }
  if (c.max_body > c.all_bodies) {
    return InvalidArgument("http.all_bodies: got {}, expected at least http.max_body, {}",
                           config::FormatBytes(c.all_bodies), config::FormatBytes(c.max_body));
  }
  return OkStatus();
}

}  // namespace

void Register(config::Schema& schema, HttpConfig& c) {
  schema.Text("http.listen", &c.listen,
              "Address of the HTTP port with OpenAI's API, HOST:PORT. Port 0 picks a free one. "
              "Empty: no HTTP.");
  schema.Text("http.api_keys", &c.api_keys,
              "File of lines 'TENANT SHA256', with the SHA-256 of each API key in hexadecimal "
              "digits. Read again when it changes. Empty: callers need no key.",
              {.env = "CAIRN_HTTP_API_KEYS"});
  schema.Text("http.tenant_header", &c.tenant_header,
              "Header in which a gateway names the tenant of each request. Set it only if all "
              "requests come through a gateway that sets it itself. Empty: no such header.",
              {.max_length = 128});
  schema.TextList("http.cors_origins", &c.cors_origins,
                  "Origins whose pages may call this API from a browser, such as "
                  "https://app.example. *: all. Empty: browsers let no page read an answer.");
  schema.Integer("http.threads", &c.threads,
                 "Threads that serve HTTP, and as many that read the JSON of long bodies.",
                 {.min = 1, .max = 64});
  RegisterBounds(schema, c);
  schema.Check([&c] { return Check(c); });
}

Result<std::unique_ptr<HttpEdge>> HttpEdge::Start(const HttpConfig& config,
                                                  const net::TlsOptions& tls, Router* router,
                                                  bool relay, BodyReads* reads,
                                                  tracing::Tracer* tracer,
                                                  std::function<void(double)> observe_added) {
  std::unique_ptr<HttpEdge> edge(new HttpEdge());
  if (!config.api_keys.empty()) {
    CAIRN_ASSIGN_OR_RETURN(edge->keys_,
                           ApiKeyFile::Open(config.api_keys, "http.api_keys", &SteadyClock::Get()));
  }
  ApiService::Options api;
  api.keys = edge->keys_.get();
  api.tenant_header = config.tenant_header;
  api.relay = relay;
  api.reads = reads;
  api.tracer = tracer;
  if (observe_added) api.observe_added = std::move(observe_added);
  edge->service_ = std::make_unique<ApiService>(router, std::move(api));
  http::Handler* handler = edge->service_.get();
  CAIRN_ASSIGN_OR_RETURN(auto origins, ParseOrigins(config.cors_origins, "http.cors_origins"));
  if (!origins.empty()) {
    edge->cors_ = std::make_unique<CorsHandler>(std::move(origins), handler);
    handler = edge->cors_.get();
  }
  http::Server::Options options{.listen = config.listen,
                                .field = "http.listen",
                                .tls = tls,
                                .threads = config.threads,
                                .max_connections = config.max_connections,
                                .max_head_bytes = static_cast<uint32_t>(config.max_head),
                                .max_body_bytes = config.max_body,
                                .all_body_bytes = config.all_bodies,
                                .body_budget = {.item = "bodies", .setting = "http.all_bodies"},
                                .max_unread_bytes = config.max_unread,
                                .all_unread_bytes = config.all_unread,
                                .request_timeout = config.request_timeout,
                                .idle_timeout = config.idle_timeout,
                                .write_timeout = config.write_timeout};
  CAIRN_ASSIGN_OR_RETURN(edge->server_, http::Server::Start(std::move(options), handler));
  return edge;
}

HttpEdge::~HttpEdge() {
  // Before what its threads call.
  server_.reset();
}

const std::string& HttpEdge::address() const { return server_->address(); }

bool HttpEdge::Drain(Duration timeout) {
  service_->StartDrain();
  return server_->Drain(timeout);
}

HttpEdge::Stats HttpEdge::GetStats() const {
  Stats stats{.server = server_->GetStats(), .api = service_->GetStats()};
  if (keys_ != nullptr) stats.keys_stale = keys_->stale();
  return stats;
}

}  // namespace cairn::router
