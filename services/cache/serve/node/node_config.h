#pragma once
// Every setting of cairn-cache. docs/operate/config.md is printed from this table.

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/membership/etcd/etcd_client.h"
#include "common/service/service.h"
#include "services/cache/serve/rpc/rpc_context.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

// cluster.*; registered in cluster_config.h.
struct ClusterConfig {
  std::string discovery = "none";
  std::string name = "cairn";
  std::string advertise;
  std::vector<std::string> members;
  std::vector<std::string> dns_names;
  uint32_t dns_port = 7400;
  std::string dns_servers;
  Duration dns_interval = std::chrono::seconds(5);
  membership::EtcdOptions etcd;
  Duration etcd_ttl = std::chrono::seconds(10);
  std::string host, zone;
  std::vector<std::string> peer_identities;
  std::string tls_ca, tls_server_name;
  Duration lookup_deadline = std::chrono::milliseconds(15);
  Duration silence = std::chrono::milliseconds(250);
  Duration read_timeout = std::chrono::seconds(5);
  uint64_t memory = 64ull << 20;
  uint32_t threads = 4;
  uint32_t max_reads = 128;
  uint32_t speak = 0;

  bool enabled() const { return discovery != "none"; }
};

// link.*; registered in link_config.h.
struct LinkConfig {
  bool enabled = false;
  std::string library;
  bool trusted_network = false;
  std::string host;
  Duration timeout = std::chrono::seconds(1);
  uint64_t buffer = 64ull << 20;
};

// events.*; registered in events_config.h.
struct EventsConfig {
  std::string zmq;  // Empty: nothing is published.
  std::string zmq_replay;
  std::string topic = "kv@{node}@{model}";
  std::string tenant = "default";
  std::string encoding = "maps";
  std::string hashes = "integers";
  uint64_t memory = 64ull << 20;
  bool trusted_network = false;
  bool connect = false;

  bool enabled() const { return !zmq.empty(); }
};

struct NodeConfig {
  service::Settings process{.admin_listen = "127.0.0.1:7401"};
  std::string listen = "127.0.0.1:7400";
  std::string listen_unix;
  std::string admin_socket = "auto";
  std::string node_id;

  uint64_t host_capacity = 1ull << 30;
  std::string host_huge_pages = "off";
  std::string eviction_policy = "lru";
  bool host_prefault = true;

  uint64_t device_capacity = 0;  // The capacity for each device. 0: no device tier.
  std::vector<std::string> device_ids;
  std::string device_library;
  uint64_t device_chunk = 64ull << 20;
  bool device_pin_host = true;

  std::string disk_path;
  uint64_t disk_capacity = 16ull << 30;
  bool disk_direct_io = true;
  std::string disk_io_backend = "auto";
  uint32_t disk_queue_depth = 8;
  uint64_t disk_scrub_rate = 4ull << 20;
  uint64_t disk_min_free = 256ull << 20;
  bool disk_wipe_on_mismatch = false;
  bool disk_wipe_on_damage = false;
  bool disk_take_over = false;

  std::string local_socket = "auto";
  std::vector<std::string> local_allow_uids;
  bool local_require_tenant = false;
  uint64_t local_session_quota = 0;
  uint64_t local_scratch = 1ull << 20;
  std::string local_spin = "auto";

  // Bounds of MemoryItems that no other setting bounds.
  uint64_t lease_memory = 64ull << 20;
  uint64_t namespace_memory = 64ull << 20;
  uint64_t session_memory = 128ull << 20;
  uint64_t fetch_headers = 32ull << 20;
  uint64_t watch_memory = 32ull << 20;
  uint64_t memory_limit = 0;

  EngineOptions engine{.max_index_bytes = 256ull << 20, .disk_high_water = 0.9};
  uint32_t mover_threads = 2;

  // A file that says who may do what. Empty: whoever reaches the data port may use every tenant.
  std::string policy;

  RpcOptions rpc;
  uint64_t rpc_max_frame = 4ull << 20;
  uint64_t rpc_fetch_frame = 1ull << 20;
  uint64_t rpc_memory = 512ull << 20;
  std::string rpc_congestion_control = "auto";
  uint32_t rpc_threads = 4;
  uint32_t rpc_fetch_threads = 8;
  Duration max_connection_age = std::chrono::minutes(5);
  Duration keepalive = std::chrono::seconds(30);

  ClusterConfig cluster;
  LinkConfig link;
  EventsConfig events;

  Duration drain_grace = std::chrono::seconds(1);
  Duration drain_timeout = std::chrono::seconds(10);
  Duration drain_flush_timeout = std::chrono::seconds(60);

  // --i-accept-plaintext-on-the-network, another name for rpc.tls.allow_plaintext_beyond_loopback.
  bool accept_plaintext = false;

  // Registers all fields, and the checks of several fields together: addresses, TLS files, memory.
  // `config` must outlive the schema.
  static void Register(NodeConfig* config, config::Schema* schema);

  // The part of rpc_memory for frames and messages that gRPC receives.
  uint64_t receive_bytes() const { return rpc_memory / 8 * 3; }
  // About how many threads these settings ask for.
  size_t Threads() const;

  // The limits of the node for each kind of memory.
  MemoryAccount::Bounds MemoryBounds() const;
  // Why an empty disk tier would take no block now. Empty: nothing is against it, or there is no
  // disk tier or one that has blocks.
  std::string DiskTooFull() const;
};

}  // namespace cairn::cache
