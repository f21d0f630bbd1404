#pragma once
// Settings of the process cairn-router.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cairn/client/connect.h"
#include "common/config/config.h"
#include "common/net/tls.h"
#include "common/service/service.h"
#include "common/tenants/tenant_terms.h"
#include "services/router/http/http_edge.h"
#include "services/router/picker/picker_edge.h"
#include "services/router/rpc/engine_config.h"
#include "services/router/rpc/engine_events.h"
#include "services/router/rpc/grpc_worker_link.h"

namespace cairn::router {

struct RouterConfig {
  service::Settings process{.admin_listen = "127.0.0.1:7601"};
  std::string listen = "127.0.0.1:7600";
  std::string model;
  std::string model_id;
  std::vector<std::string> aliases;
  std::vector<std::string> workers;
  std::string cache;
  std::string policy = "cost";
  bool pairing = true;
  std::string tenant = "default";
  Duration max_wait = std::chrono::seconds(60);
  uint32_t max_requests = 4096;
  uint32_t max_tries = 3;
  uint32_t threads = 2;
  uint64_t index_bytes = 256ull << 20;
  uint64_t token_cache = 64ull << 20;
  uint64_t tenant_text = 64ull << 20;
  std::vector<std::string> queue_tenants;
  uint64_t rpc_requests = 256ull << 20;
  uint64_t all_answers = 128ull << 20;
  uint64_t memory_limit = 0;  // 0: none but the machine's.
  Duration drain = std::chrono::seconds(20);

  HttpConfig http;
  PickerConfig picker;
  EngineConfig engines;
  EngineEventsConfig engine_events;
  WorkerLinkTls workers_tls;
  std::string cache_ca, cache_certificate, cache_private_key, cache_server_name;
  net::TlsOptions tls;
  std::string auth_policy;
  bool accept_plaintext = false;  // --i-accept-plaintext-on-the-network

  // The workers are engines with OpenAI's API. All of them are, or none: the checks see to that.
  bool relays() const { return !workers.empty() && IsEngine(workers.front()); }
  bool follows_engines() const { return !engine_events.events.empty(); }
};

// Registers all fields and checks. `config` must outlive `schema`.
void Register(config::Schema& schema, RouterConfig& config);

// The terms of tenants. Errors name the setting.
Result<std::map<std::string, TenantTerms>> TermsOfTenants(const RouterConfig& config);

// About how many threads these settings ask for.
size_t Threads(const RouterConfig& config);

// The name by which requests call the model. `name`: in its file.
std::string ModelId(const RouterConfig& config, const std::string& name);

// REQUIRES: config.cache is not empty.
client::ConnectOptions CacheConnection(const RouterConfig& config);

}  // namespace cairn::router
