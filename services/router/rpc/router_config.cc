#include "services/router/rpc/router_config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "common/service/policy.h"
#include "common/service/tls_settings.h"
#include "model/gguf.h"
#include "model/request_limits.h"
#include "services/router/http/api_keys.h"
#include "services/router/picker/endpoint.h"
#include "services/router/policy/policy.h"
#include "services/router/relay/key_file.h"
#include "services/router/rpc/router_memory.h"
#include "services/router/rpc/worker_names.h"

namespace cairn::router {
namespace {

void RegisterRouting(config::Schema& schema, RouterConfig& c) {
  schema.Text("listen", &c.listen, "Address of the gRPC port, HOST:PORT. Port 0 picks a free one.");
  schema.Text("admin.listen", &c.process.admin_listen,
              "Address of the admin HTTP port: /livez, /readyz, /metrics.");
  schema.Text("model", &c.model,
              "GGUF file that the workers run. The router uses its tokenizer and chat template. "
              "Not needed before engines.",
              {.env = "CAIRN_MODEL"});
  schema.Text("model_id", &c.model_id,
              "The name by which requests call the model. Empty: the name in the file, with - "
              "instead of spaces. Engines have their own names.",
              {.max_length = 256});
  schema.TextList("aliases", &c.aliases, "Other names of the model.", {.max_length = 256});
  schema.TextList(
      "workers", &c.workers,
      "Workers, HOST:PORT each; or other engines with OpenAI's API, http://HOST:PORT or "
      "https://HOST:PORT each. dns:NAME:PORT, or dns:http://NAME:PORT: all addresses of the name, "
      "which the router follows as they come and go; of a name that begins with _, without a port, "
      "the targets of its SRV records.",
      {.max_length = 256});
  schema.Text("cache", &c.cache,
              "Cache nodes of the workers, HOST:PORT, with commas between them. The router follows "
              "the events of all nodes of their cluster. Empty: it remembers what it sent where.",
              {.env = "CAIRN_CACHE"});
  schema.Text("policy", &c.policy, "How a worker is picked (docs/operate/router.md).",
              {.choices = PolicyNames()});
  schema.Bool("pairing", &c.pairing,
              "A worker of the role prefill computes a prompt for another worker of the same cache "
              "node when that costs less (docs/operate/disaggregation.md).");
  schema.Text("tenant", &c.tenant, "Tenant of requests that name none.", {.max_length = 128});
  schema.Time("max_wait", &c.max_wait,
              "The router refuses a request that would wait longer at every worker. 0: it refuses "
              "none for that.");
  schema.Integer("max_requests", &c.max_requests,
                 "Most requests under way at a time. The router refuses more.",
                 {.min = 1, .max = 1u << 20});
  schema.Integer("max_tries", &c.max_tries,
                 "Most workers that get one request, one after the other, before its first token. "
                 "Those that cannot be connected to do not count.",
                 {.min = 1, .max = 64, .unit = "workers"});
  schema.Integer("threads", &c.threads,
                 "Threads that tokenise and decide, and as many for long texts, which give way to "
                 "others.",
                 {.min = 1, .max = 64, .unit = "threads"});
  schema.Bytes("index", &c.index_bytes, "Memory for the index of who holds what.",
               {.min = 1 << 20});
  schema.Bytes("token_cache", &c.token_cache,
               "Memory for the tokens of messages that came before. 0: all are tokenised again.");
  schema.Bytes("tenant_text", &c.tenant_text,
               "Most text of one tenant that may wait until the router has made tokens of it. The "
               "router refuses more with 429, but no text of at most 16KiB, nor one that waits "
               "alone.",
               {.min = 64 << 10});
  schema.TextList("queue.tenants", &c.queue_tenants,
                  "Shares of tenants when texts are tokenised and when requests are refused, as "
                  "NAME=WEIGHT or NAME=WEIGHT:PRIORITY. PRIORITY is the greatest that counts "
                  "before other tenants' requests. All others have weight 1 and priority 0. As the "
                  "workers' setting of this name.",
                  {.max_length = 256});
  schema.Bytes(
      "rpc.requests", &c.rpc_requests,
      "Memory for the requests of all gRPC calls that are under way, as they were decoded, "
      "and as much for messages that arrive. The router refuses what does not fit with "
      "RESOURCE_EXHAUSTED.",
      {.min = 1 << 20});
  schema.Bytes("all_answers", &c.all_answers,
               "Memory for answers that the router holds: those of engines that are not streams, "
               "until all of each has come, and those over gRPC, until their call has ended. "
               "Answers that do not fit fail with UNAVAILABLE or RESOURCE_EXHAUSTED.",
               {.min = 1 << 20});
  schema.Bytes(
      "memory.limit", &c.memory_limit,
      "Most memory that the router may take (docs/operate/operations.md). Settings that have their "
      "defaults give way where the sum is larger, and the router refuses to start if that "
      "is not enough. 0: no limit but what the machine or the control group has left.");
  schema.Time("drain", &c.drain, "After SIGTERM: time for accepted requests.");
}

void RegisterTls(config::Schema& schema, RouterConfig& c) {
  schema.Text("workers_tls.ca", &c.workers_tls.authorities,
              "PEM file with the authorities that sign the workers' certificates. Empty, without "
              "workers_tls.cert: no TLS to workers.");
  schema.Text("workers_tls.cert", &c.workers_tls.certificate,
              "PEM file with the certificate that the router shows to workers.");
  schema.Text("workers_tls.key", &c.workers_tls.private_key,
              "PEM file with the key of workers_tls.cert.");
  schema.Text("workers_tls.server_name", &c.workers_tls.server_name,
              "Name expected in the workers' certificates. Empty: the name in the address.");
  schema.Text("cache_tls.ca", &c.cache_ca,
              "PEM file with the authorities that sign the nodes' certificates. Empty, without "
              "cache_tls.cert: no TLS to nodes.");
  schema.Text("cache_tls.cert", &c.cache_certificate,
              "PEM file with the certificate that the router shows to nodes.");
  schema.Text("cache_tls.key", &c.cache_private_key, "PEM file with the key of cache_tls.cert.");
  schema.Text("cache_tls.server_name", &c.cache_server_name,
              "Name expected in the nodes' certificates. Empty: the name in the address.");
  service::RegisterTls(
      &c.tls, &c.accept_plaintext,
      "PEM file with the server's certificate chain, for gRPC and HTTP. Empty: no TLS.", &schema);
  service::RegisterPolicy(&c.auth_policy, &schema);
  service::Settings::RegisterLog(&c.process, &schema);
  service::Settings::RegisterTracing(&c.process, &schema);
  service::Settings::RegisterJson(&c.process, &schema);
}

Status CheckAddresses(RouterConfig& c) {
  if (c.accept_plaintext) c.tls.allow_plaintext_beyond_loopback = true;
  CAIRN_RETURN_IF_ERROR(net::Check(c.tls));
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress listen,
                         net::ParseListenAddress(c.listen, "listen",
                                                 "host:port such as 127.0.0.1:7600 or unix:/path"));
  CAIRN_RETURN_IF_ERROR(net::CheckBind(listen, c.tls, "listen"));
  std::vector<net::NamedAddress> all = {{"listen", listen}};
  if (!c.http.listen.empty()) {
    constexpr std::string_view kExpected = "host:port such as 127.0.0.1:8000";
    CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress http,
                           net::ParseListenAddress(c.http.listen, "http.listen", kExpected));
    if (http.is_unix) {
      return InvalidArgument("http.listen: got '{}', expected {}", c.http.listen, kExpected);
    }
    CAIRN_RETURN_IF_ERROR(net::CheckBind(http, c.tls, "http.listen"));
    all.push_back({"http.listen", http});
  }
  if (!c.picker.listen.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress picker,
                           net::ParseListenAddress(c.picker.listen, "picker.listen"));
    CAIRN_RETURN_IF_ERROR(net::CheckBind(picker, c.tls, "picker.listen"));
    all.push_back({"picker.listen", picker});
  }
  // Probes and metrics only, nothing that changes anything: never behind TLS.
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress admin, service::ParseAdminListen(c.process));
  all.push_back({"admin.listen", admin});
  CAIRN_RETURN_IF_ERROR(net::CheckDistinct(all));
  return service::CheckPolicy(c.auth_policy, c.tls, c.listen);
}

// One name for each spelling of an address: names have no case, and http has a port of its own.
Result<std::string> OneSpelling(const std::string& worker) {
  std::string spelling;
  if (IsWorkerName(worker)) {
    CAIRN_RETURN_IF_ERROR(ParseWorkerName(worker).status());
    spelling = worker;
  } else if (IsEngine(worker)) {
    CAIRN_ASSIGN_OR_RETURN(const http::Origin origin, http::ParseOrigin(worker, "workers"));
    spelling = (origin.tls ? "https://" : "http://") + origin.Authority();
  } else {
    CAIRN_ASSIGN_OR_RETURN(
        const net::ListenAddress address,
        net::ParseListenAddress(worker, "workers",
                                "HOST:PORT of a worker, such as 127.0.0.1:7500, or "
                                "http://HOST:PORT of an engine"));
    spelling = address.WithPort(address.port);
    if (address.is_unix) return spelling;  // Paths have a case.
  }
  std::ranges::transform(spelling, spelling.begin(),
                         [](unsigned char c) { return std::tolower(c); });
  return spelling;
}

// The errors that a start would find, as far as finding them costs no time: the vocabulary is not
// read.
Status CheckWithoutLoading(const RouterConfig& c) {
  if (!c.model.empty()) {
    CAIRN_RETURN_IF_ERROR(Annotate(model::GgufFile::OpenMetadata(c.model).status(), "model"));
  }
  if (!c.http.api_keys.empty()) {
    CAIRN_RETURN_IF_ERROR(
        ApiKeyFile::Open(c.http.api_keys, "http.api_keys", &SteadyClock::Get()).status());
  }
  if (c.relays()) {
    if (!c.engines.api_key_file.empty()) {
      CAIRN_RETURN_IF_ERROR(
          KeyFile::Open(c.engines.api_key_file, "engines.api_key_file", &SteadyClock::Get())
              .status());
    }
    return Annotate(http::MakeClient({.threads = 1, .authorities = c.engines.authorities}).status(),
                    "engines.ca");
  }
  if (c.workers_tls.certificate.empty() != c.workers_tls.private_key.empty()) {
    return InvalidArgument("workers_tls.cert and workers_tls.key: got one, expected both or none");
  }
  return OkStatus();
}

Status CheckWorkers(const RouterConfig& c) {
  if (c.workers.empty()) {
    return InvalidArgument(
        "workers: got nothing, expected at least one HOST:PORT or http://HOST:PORT");
  }
  if (c.relays() && !c.cache.empty()) {
    return InvalidArgument(
        "cache: got '{}', expected nothing before engines: their blocks have other keys", c.cache);
  }
  std::set<std::string> seen;
  for (const std::string& worker : c.workers) {
    if (IsEngine(worker) != c.relays()) {
      return InvalidArgument(
          "workers: got '{}' and '{}', expected workers of Cairn (HOST:PORT) or engines "
          "(http://HOST:PORT), not both",
          c.workers.front(), worker);
    }
    CAIRN_ASSIGN_OR_RETURN(std::string spelling, OneSpelling(worker));
    if (!seen.insert(std::move(spelling)).second) {
      return InvalidArgument("workers: got '{}' twice, expected each worker once", worker);
    }
  }
  // After the workers: a mix of both kinds is named as such.
  if (c.model.empty() && !c.relays()) {
    return InvalidArgument(
        "model: got nothing, expected a GGUF file (--model), or engines (http://HOST:PORT) as "
        "workers, which need none");
  }
  return OkStatus();
}

// An answer that grows is copied once more when most of it is there.
Status CheckAnswers(const RouterConfig& c) {
  if (!c.relays() || c.engines.max_answer <= c.all_answers / 2) return OkStatus();
  return InvalidArgument("all_answers: got {}, expected at least twice engines.max_answer, {}",
                         config::FormatBytes(c.all_answers),
                         config::FormatBytes(c.engines.max_answer));
}

Status CheckEvents(const RouterConfig& c) {
  if (!c.follows_engines()) return OkStatus();
  if (!c.relays()) {
    return InvalidArgument(
        "engines.events: got '{}', expected nothing with workers of Cairn: their nodes' events "
        "come with the setting cache",
        c.engine_events.events.front());
  }
  if (c.engines.tokens == "text") {
    return InvalidArgument(
        "engines.tokens: got text, expected auto or tokenize with engines.events: events have "
        "tokens");
  }
  return ParseEventSources(c.engine_events.events, c.workers).status();
}

// A gateway sends HTTP to the endpoints that are picked.
Status CheckEndpoints(const RouterConfig& c) {
  if (c.picker.listen.empty()) return OkStatus();
  if (!c.relays()) {
    return InvalidArgument(
        "picker.listen: got '{}', expected nothing before workers of Cairn: they speak gRPC, and a "
        "gateway can send requests only to engines (http://IP:PORT)",
        c.picker.listen);
  }
  for (const std::string& worker : c.workers) {
    if (!IsWorkerName(worker)) {
      CAIRN_RETURN_IF_ERROR(CheckEndpoint(worker));
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const WorkerName name, ParseWorkerName(worker));
    if (name.port == 0) {
      return InvalidArgument(
          "workers: got '{}', expected dns:http://NAME:PORT, because picker.listen is set: SRV "
          "records have names, and a gateway looks no name up",
          worker);
    }
  }
  return OkStatus();
}

}  // namespace

void Register(config::Schema& schema, RouterConfig& c) {
  RegisterRouting(schema, c);
  Register(schema, c.http);
  Register(schema, c.picker);
  Register(schema, c.engines);
  Register(schema, c.engine_events);
  RegisterTls(schema, c);
  schema.Check([&c] { return CheckWorkers(c); });
  schema.Check([&c] { return TermsOfTenants(c).status(); });
  schema.Check([&c] { return CheckEvents(c); });
  schema.Check([&c] { return CheckAnswers(c); });
  schema.Check([&c] { return CheckEndpoints(c); });
  schema.Check([&c] { return CheckAddresses(c); });
  schema.Check([&c] { return FitMemory(&c); });
  schema.CheckOnRequest([&c] { return CheckWithoutLoading(c); });
  schema.TellOnRequest([&c] { return DescribeMemory(c); });
}

size_t Threads(const RouterConfig& c) {
  constexpr size_t kAlways = 10;  // Pollers of workers, followers of nodes, engines and names.
  return kAlways + 2 * size_t{c.threads} + 2 * size_t{c.http.threads} +
         (c.relays() ? c.engines.threads : 0);
}

Result<std::map<std::string, TenantTerms>> TermsOfTenants(const RouterConfig& config) {
  return ParseTenantTerms(config.queue_tenants, "queue.tenants", model::kLeastPriority,
                          model::kGreatestPriority);
}

std::string ModelId(const RouterConfig& config, const std::string& name) {
  if (!config.model_id.empty()) return config.model_id;
  // Ids stand in URLs, in lists and on command lines.
  std::string id = name;
  std::ranges::replace_if(
      id, [](unsigned char c) { return c <= ' '; }, '-');
  return id;
}

client::ConnectOptions CacheConnection(const RouterConfig& c) {
  client::ConnectOptions options;
  options.address = c.cache;
  options.client_name = fmt::format("cairn-router {} {}", service::MachineName(), getpid());
  options.path = client::PathChoice::kGrpc;
  options.tls.ca_file = c.cache_ca;
  options.tls.cert_file = c.cache_certificate;
  options.tls.key_file = c.cache_private_key;
  options.tls.server_name = c.cache_server_name;
  return options;
}

}  // namespace cairn::router
