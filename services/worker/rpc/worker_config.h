#pragma once
// Settings of the process cairn-worker.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cairn/client/connect.h"
#include "common/config/config.h"
#include "common/net/tls.h"
#include "common/service/service.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

struct WorkerConfig {
  service::Settings process{.admin_listen = "127.0.0.1:7501"};
  std::string listen = "127.0.0.1:7500";
  std::string model;
  std::string role = "both";
  std::string arithmetic = "fast";
  uint32_t threads = 0;
  uint32_t context = 0;
  std::string device = "cpu";
  std::string device_library;
  uint64_t device_kv = uint64_t{1} << 30;
  uint64_t kv_pool = 0;
  std::string read_policy;
  uint64_t kv_budget = 0;
  uint32_t max_running = 16;
  uint32_t queue_capacity = 16;
  uint32_t queue_tenant_capacity = 0;
  Duration queue_max_wait = std::chrono::seconds(60);
  std::vector<std::string> queue_tenants;
  double decode_share = 0.5;
  uint64_t parking = 256ull << 20;
  uint32_t idle_turns = 4;
  uint64_t rpc_requests = 256ull << 20;
  uint64_t memory_limit = 0;  // 0: none but the machine's.
  Duration drain = std::chrono::seconds(20);

  std::string tenant = "default";
  std::string tenant_salt_file;
  std::string cache_address;
  std::string cache_host;
  std::string cache_zone;
  std::string cache_home_key;
  std::string recipe = "raw";
  std::string publish;
  std::string calibration = "calibration";
  Duration match_deadline = std::chrono::milliseconds(50);
  Duration stall_deadline = std::chrono::milliseconds(250);
  bool overlap = true;
  bool choose = true;
  bool lend = true;
  std::string path = "auto";
  uint64_t push_queue = 1ull << 30;
  uint32_t push_niceness = 10;
  std::string cache_ca;
  std::string cache_certificate;
  std::string cache_private_key;
  std::string cache_server_name;

  net::TlsOptions tls;
  std::string auth_policy;
  bool accept_plaintext = false;  // --i-accept-plaintext-on-the-network
};

// Registers all fields and checks. `config` must outlive `schema`.
void Register(config::Schema& schema, WorkerConfig& config);

// Short forms of the flags that are used most: --cache is --cache.address, --admin is
// --admin.listen, --kv-pool is --kv_pool.
std::vector<std::string> ExpandShortFlags(const std::vector<std::string>& args);

// About how many threads these settings ask for.
size_t Threads(const WorkerConfig& config);

// "chat=2" and "batch=0.5:-1" are a tenant, its weight, and the greatest priority that counts
// before other tenants' requests. Errors name the setting.
Result<std::map<std::string, TenantTerms>> ParseTenants(const std::vector<std::string>& entries);

// Errors name the setting, for example a salt file that cannot be read.
Result<WorkerEngine::Options> EngineOptions(const WorkerConfig& config);
client::ConnectOptions CacheConnection(const WorkerConfig& config);

}  // namespace cairn::worker
