#include "services/cache/serve/node/node_config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/memory/machine_memory.h"
#include "common/net/address.h"
#include "common/service/policy.h"
#include "services/cache/serve/node/cluster_config.h"
#include "services/cache/serve/node/descriptors.h"
#include "services/cache/serve/node/events_config.h"
#include "services/cache/serve/node/link_config.h"
#include "services/cache/store/tier/disk/disk_tier.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {
namespace {

namespace fs = std::filesystem;

// The memory of the disk tier: RocksDB's buffers, blocks that are moved, and blocks that are
// encoded again (EngineOptions::max_copy_bytes).
constexpr uint64_t kDiskMemory = 96ull << 20;
// The process itself: code, threads, gRPC.
constexpr uint64_t kProcessMemory = 100ull << 20;
constexpr uint64_t kMiB = 1ull << 20;
// The host memory of a driver of GPUs (an estimate), and the buffers for each GPU.
constexpr uint64_t kDriverMemory = 256 * kMiB;
constexpr uint64_t kDeviceBuffers = 32 * kMiB;

// "host.capacity 1GiB + ... + 196 MiB for the process"
std::string Describe(MemoryAccount::Bounds bounds, uint64_t host_capacity) {
  uint64_t& host = bounds[static_cast<size_t>(MemoryItem::kHost)];
  std::string text =
      fmt::format("{} for retired memory + ", config::FormatBytes(host - host_capacity));
  host = host_capacity;
  uint64_t others = 0;
  for (size_t i = 0; i < kMemoryItems; ++i) {
    const std::string_view setting = SettingOf(static_cast<MemoryItem>(i));
    if (setting.empty()) {
      others += bounds[i];
    } else {
      text += fmt::format("{} {} + ", setting, config::FormatBytes(bounds[i]));
    }
  }
  return text + fmt::format("{} MiB for the process", others / kMiB);
}

std::string DescribeMemory(const NodeConfig& config) {
  const MemoryAccount::Bounds bounds = config.MemoryBounds();
  return fmt::format("memory: {} = {} MiB", Describe(bounds, config.host_capacity),
                     Sum(bounds) / kMiB);
}

// One budget at the start instead of a kill later.
Status CheckMemory(const NodeConfig& config) {
  const MemoryAccount::Bounds bounds = config.MemoryBounds();
  const uint64_t need = Sum(bounds);
  if (config.memory_limit != 0 && need > config.memory_limit) {
    return InvalidArgument("memory.limit: got {}, expected at least the {} MiB of {}",
                           config::FormatBytes(config.memory_limit), (need + kMiB - 1) / kMiB,
                           Describe(bounds, config.host_capacity));
  }
  return CheckFits(ReadMachineMemory(), need, DescribeMemory(config), "lower host.capacity");
}

Status CheckNetwork(NodeConfig* config) {
  net::TlsOptions& tls = config->rpc.tls;
  tls.allow_plaintext_beyond_loopback =
      tls.allow_plaintext_beyond_loopback || config->accept_plaintext;
  CAIRN_RETURN_IF_ERROR(net::Check(tls));
  config->rpc.admin.certificates = tls.mutual();
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress listen,
                         net::ParseListenAddress(config->listen, "listen"));
  CAIRN_RETURN_IF_ERROR(net::CheckBind(listen, tls, "listen"));
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress admin,
                         service::ParseAdminListen(config->process));
  std::vector<net::NamedAddress> all = {{"listen", listen}, {"admin.listen", admin}};
  if (!config->listen_unix.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress local,
                           net::ParseListenAddress(config->listen_unix, "listen_unix"));
    if (!local.is_unix) {
      return InvalidArgument("listen_unix: got '{}', expected unix:/path", config->listen_unix);
    }
    all.push_back({"listen_unix", local});
  }
  for (const auto& [setting, path] : {std::pair("admin.socket", &config->admin_socket),
                                      std::pair("local.socket", &config->local_socket)}) {
    if (*path == "auto" || *path == "off") continue;
    const auto socket = net::ParseListenAddress("unix:" + *path, setting);
    if (!socket.ok()) {
      return InvalidArgument(
          "{}: got '{}', expected auto, off, or an absolute path of at most 107 characters",
          setting, *path);
    }
    all.push_back({setting, *socket});
  }
  CAIRN_RETURN_IF_ERROR(AppendEventsAddresses(config->events, &all));
  return net::CheckDistinct(all);
}

void RegisterNetwork(NodeConfig* c, config::Schema* s) {
  s->Text("listen", &c->listen, "Data port, host:port or unix:/path. Port 0 picks a free one.");
  s->Text(
      "listen_unix", &c->listen_unix,
      "A second data port for workers on this machine: a Unix socket, unix:/path. Empty: none.");
  s->Text("admin.listen", &c->process.admin_listen,
          "HTTP port of probes and metrics, without TLS. No request there changes anything.");
  s->Text(
      "admin.socket", &c->admin_socket,
      "Unix socket for operators: the node's own user and root may call the Admin service over "
      "it. A path, off, or auto. auto: cairn-<port>-admin.sock, or cairn-pid<pid>-admin.sock if "
      "listen is a Unix socket, in $XDG_RUNTIME_DIR or else in cairn-<uid> in the folder for "
      "temporary files. The log line listening_for_operators has the path.",
      {.max_length = 100});
  s->Bool("admin.allow_loopback", &c->rpc.admin.allow_loopback,
          "Without tls.client_ca: let everybody on this machine call the Admin service, also "
          "through a proxy or a forwarded port.");
  s->Text("tls.cert", &c->rpc.tls.certificate,
          "PEM file with the server's certificate chain. Empty: no TLS.",
          {.env = "CAIRN_TLS_CERTIFICATE"});
  s->Text("tls.key", &c->rpc.tls.private_key, "PEM file with the server's private key.",
          {.env = "CAIRN_TLS_PRIVATE_KEY"});
  s->Text("tls.client_ca", &c->rpc.tls.client_ca,
          "PEM file with the authority that signs clients' certificates. If set, clients must show "
          "one.",
          {.env = "CAIRN_TLS_CLIENT_CA"});
  s->Time("tls.reload_interval", &c->rpc.tls.reload_interval,
          "How often the node reads these files again.", {.min = std::chrono::seconds(1)});
  s->TextList("tls.admin_identities", &c->rpc.admin.identities,
              "The clients that may call the Admin service when clients show certificates: SPIFFE "
              "URIs or DNS names, as they stand among the certificate's alternative names. cn:NAME "
              "allows a common name; use it only if the authority, and not its client, chooses "
              "that name. Empty: nobody.");
  service::RegisterPolicy(&c->policy, s);
  s->Bool("tls.allow_plaintext_beyond_loopback", &c->rpc.tls.allow_plaintext_beyond_loopback,
          "Allow a data port on the network without TLS: anyone there can read and write.");
  s->Switch("i-accept-plaintext-on-the-network", &c->accept_plaintext,
            "The same as tls.allow_plaintext_beyond_loopback.");
  service::Settings::RegisterJson(&c->process, s);
}

Status CheckLocal(const NodeConfig& config) {
  for (const std::string& text : config.local_allow_uids) {
    const bool digits = !text.empty() && text.size() <= 10 &&
                        text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoull(text) > UINT32_MAX) {
      return InvalidArgument("local.allow_uids: got '{}', expected user ids from 0 to {}", text,
                             UINT32_MAX);
    }
  }
  if (config.local_scratch % 4096 != 0) {
    return InvalidArgument("local.scratch: got {} bytes, expected a multiple of 4096",
                           config.local_scratch);
  }
  if (config.local_spin != "auto") {
    const auto spin = config::ParseDuration(config.local_spin);
    if (!spin.ok() || *spin > std::chrono::seconds(1)) {
      return InvalidArgument("local.spin: got '{}', expected auto or a time from 0s to 1s",
                             config.local_spin);
    }
  }
  return OkStatus();
}

void RegisterLocal(NodeConfig* c, config::Schema* s) {
  s->Text("local.socket", &c->local_socket,
          "Unix socket of the same-node path, which clients on this machine find by themselves: a "
          "path, off, or auto. auto: cairn-<port>.sock in $XDG_RUNTIME_DIR if that is set, "
          "otherwise in this user's folder below the folder for temporary files.",
          {.max_length = 100});
  s->TextList(
      "local.allow_uids", &c->local_allow_uids,
      "User ids that may connect to local.socket in addition to the node's own. If set, everybody "
      "may open the socket's file, and the node checks the user id of each connection.");
  s->Bool(
      "local.require_tenant", &c->local_require_tenant,
      "Refuse same-node connections of clients that name no tenant when they open their session. "
      "Such a client may map the memory of any tenant that it names later. The Python client "
      "names one with `tenant`, a worker always does. Refused clients go on over gRPC.");
  s->Bytes("local.session_quota", &c->local_session_quota,
           "Bytes that one same-node session may lease and reserve. 0: a quarter of the host tier. "
           "The node gets them back only when the client's process is gone, so a stopped process "
           "can hold this much.");
  s->Bytes(
      "local.scratch", &c->local_scratch,
      "Address space of a session's ring for keys and answers. It takes memory only as it is used.",
      {.min = 64 << 10, .max = 64 << 20});
  s->Text("local.spin", &c->local_spin,
          "How long the node looks for more work of same-node sessions before it sleeps. auto: "
          "150us with more than one CPU, otherwise 0s.");
}

void RegisterDevices(NodeConfig* c, config::Schema* s) {
  s->Bytes("device.capacity", &c->device_capacity,
           "Memory of the device tier on each GPU, taken as it is needed. 0: no device tier.",
           {.max = 1ull << 40});
  s->TextList("device.ids", &c->device_ids,
              "The GPUs of the device tier: numbers, or the beginnings of uuids (GPU-...). Empty: "
              "all that the node sees.");
  s->Text("device.library", &c->device_library,
          "The library that drives the GPUs: a path, or empty for libcairn_cuda.so next to the "
          "program, in ../lib, or where the linker looks.",
          {.max_length = 4096});
  s->Bytes("device.chunk", &c->device_chunk,
           "Memory of a GPU that is given to a tenant, and to its same-node clients, at a time. A "
           "stored part is at most this large.",
           {.min = 64 << 10, .max = 1ull << 30});
  s->Bool("device.pin_host", &c->device_pin_host,
          "Pin a segment of the arena when it is first copied to or from a GPU. off: copy through "
          "a few pinned buffers.");
}

void RegisterTiers(NodeConfig* c, config::Schema* s) {
  s->Bytes("host.capacity", &c->host_capacity, "Size of the arena, the memory of the host tier.",
           {.min = 1 << 20, .max = 1ull << 44});
  s->Text("host.huge_pages", &c->host_huge_pages,
          "Pages of 2 MiB for the arena: off, try, or require.",
          {.choices = {"off", "try", "require"}});
  s->Bool("host.prefault", &c->host_prefault,
          "Touch the arena's pages at start, in the background.");
  s->Text("eviction.policy", &c->eviction_policy,
          "Which block of a namespace leaves a tier first. lru: the one that was not used for the "
          "longest time. s3fifo: one that was used less than twice. gdsf: one that is used rarely "
          "and quickly computed again. cairn: the one with the fewest expected hits, learned from "
          "the requests and from the hints of clients.",
          {.choices = {"lru", "s3fifo", "gdsf", "cairn"}});
  s->Text("disk.path", &c->disk_path, "Directory of the disk tier. Empty: no disk tier.");
  s->Bytes("disk.capacity", &c->disk_capacity,
           "Bytes of blocks on disk. The directory stays below 1.3 times this.",
           {.min = 16 << 20, .max = 1ull << 50});
  s->Time("disk.flush_after", &c->engine.disk_flush_after,
          "The time in which a committed block should be on disk. Later ones are counted as late. "
          "A block that disk.write_budget delays longer than this stays only in RAM.",
          {.min = std::chrono::milliseconds(10), .max = std::chrono::minutes(10)});
  s->Real("disk.high_water", &c->engine.disk_high_water,
          "When more than this share of disk.capacity is used, blocks are copied to disk only "
          "after they were asked for a second time. 1: this rule is off.",
          {.min = 0, .max = 1});
  s->Bytes(
      "disk.write_budget", &c->engine.disk_write_budget,
      "Most bytes per second that are copied to disk, with bursts of one second. 0: no limit.");
  s->Bool("disk.direct_io", &c->disk_direct_io, "Use O_DIRECT if the file system supports it.");
  s->Text("disk.io_backend", &c->disk_io_backend,
          "How the node reads and writes the disk. auto: the best one that works here.",
          {.choices = {"auto", "io_uring", "aio", "threads"}});
  s->Integer("disk.queue_depth", &c->disk_queue_depth,
             "Most reads, and most writes, that are at the device at the same time. Reads of parts "
             "of blocks are small: eight times as many, but at most 64.",
             {.min = 1, .max = 64, .unit = "requests"});
  s->Bytes("disk.scrub_rate", &c->disk_scrub_rate,
           "Bytes per second of stored blocks that the node verifies in the background. 0: none.");
  s->Bytes("disk.min_free", &c->disk_min_free,
           "The node writes nothing while the file system has less free room than this.");
  s->Bool("disk.wipe_on_mismatch", &c->disk_wipe_on_mismatch,
          "Delete a directory of another format or of another node instead of refusing to start.");
  s->Bool("disk.wipe_on_damage", &c->disk_wipe_on_damage,
          "Delete a directory whose database cannot be opened instead of refusing to start.");
  s->Bool("disk.take_over", &c->disk_take_over,
          "A directory of another node becomes that of node.id, with its blocks, instead of being "
          "refused: for a node that was alone and gets a name.");
}

Status CheckDevices(const NodeConfig& config) {
  constexpr uint64_t kPage = 4096;
  if (config.device_chunk % kPage != 0) {
    return InvalidArgument("device.chunk: got {} bytes, expected a multiple of {}",
                           config.device_chunk, kPage);
  }
  for (auto id = config.device_ids.begin(); id != config.device_ids.end(); ++id) {
    if (std::find(config.device_ids.begin(), id, *id) != id) {
      return InvalidArgument("device.ids: got '{}' twice, expected each GPU once", *id);
    }
  }
  if (config.device_capacity == 0 || config.device_capacity >= config.device_chunk) {
    return OkStatus();
  }
  return InvalidArgument("device.capacity: got {}, expected 0 or at least device.chunk, {}",
                         config::FormatBytes(config.device_capacity),
                         config::FormatBytes(config.device_chunk));
}

Status CheckPolicy(const NodeConfig& config) {
  if (config.policy.empty()) return OkStatus();
  if (!config.rpc.admin.identities.empty()) {
    return InvalidArgument(
        "tls.admin_identities: got '{}' next to auth.policy, expected none: give it the role admin "
        "in the policy",
        config.rpc.admin.identities.front());
  }
  if (!config.listen_unix.empty()) {
    return InvalidArgument(
        "listen_unix: got '{}' next to auth.policy, expected none: it says nothing of its callers",
        config.listen_unix);
  }
  return service::CheckPolicy(config.policy, config.rpc.tls, config.listen);
}

// The folder itself, or the nearest one above it: a start makes those that are missing.
fs::path NearestThere(const std::string& folder) {
  std::error_code error;
  fs::path there = fs::absolute(folder, error);
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  return there;
}

// The errors that a start would find, without starting anything.
Status CheckBeforeStart(const NodeConfig& config) {
  CAIRN_RETURN_IF_ERROR(CheckDescriptorLimit());
  if (config.disk_path.empty()) return OkStatus();
  std::error_code error;
  const fs::path there = NearestThere(config.disk_path);
  if (!fs::is_directory(there, error)) {
    return Errorf(StatusCode::kFailedPrecondition, "disk.path: '{}' is not a folder",
                  there.string());
  }
  // Permissions do not tell: nobody can make a folder in /proc.
  std::string made = (there / ".cairn-check-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "disk.path: cannot write to '{}': {}",
                  there.string(), std::strerror(errno));
  }
  rmdir(made.c_str());
  return OkStatus();
}

Status CheckEviction(NodeConfig* config) {
  config->engine.eviction = *ParseEvictionKind(config->eviction_policy);
  return OkStatus();
}

void RegisterLimits(NodeConfig* c, config::Schema* s) {
  EngineOptions& e = c->engine;
  const config::TimeOptions ttl = {.min = std::chrono::milliseconds(10),
                                   .max = std::chrono::minutes(10)};
  s->Time("lease.default_ttl", &e.default_lease_ttl,
          "Lifetime of a lease if the client does not name one.", ttl);
  s->Time("reservation.default_ttl", &e.default_reservation_ttl,
          "Lifetime of a reservation if the client does not name one.", ttl);
  s->Time("match.max_wait", &e.max_match_wait,
          "The most that a match waits for blocks that somebody writes, if its client says that it "
          "may wait. 0: it never does.",
          {.max = std::chrono::minutes(10)});
  s->Time("incomplete.ttl", &e.incomplete_ttl,
          "After this time the node drops a block of which parts are missing.", ttl);
  s->Bytes("index.capacity", &e.max_index_bytes,
           "Most memory of the index, about 160 bytes per block, and 50 to 100 more for a block on "
           "disk.",
           {.min = 1 << 20});
  s->Bytes("limits.reserved", &e.max_reserved_bytes,
           "Most room of the host tier that is reserved and not committed. 0: half of it.");
  s->Bytes("limits.incomplete", &e.max_incomplete_bytes,
           "Most room that blocks of which parts are missing take in the host tier. 0: a quarter "
           "of it.");
  s->Bytes("limits.transfers", &e.max_transfer_bytes,
           "Memory for the buffers of fetches that read from disk without the host tier.",
           {.min = 1 << 20});
  s->Bytes(
      "limits.lease_memory", &c->lease_memory,
      "Memory of leases and reservations in addition to the blocks themselves: keys, places and "
      "pins.",
      {.min = 1 << 20});
  s->Bytes("limits.namespace_memory", &c->namespace_memory,
           "Memory for the texts and layouts of namespaces, and for known bumps.",
           {.min = 1 << 20});
  s->Bytes("limits.session_memory", &c->session_memory,
           "Memory for sessions, and for the rings of the same-node path.", {.min = 1 << 20});
  s->Bytes("limits.fetch_headers", &c->fetch_headers,
           "Memory for keys and places of the blocks that fetches under way have taken.",
           {.min = 4 << 20});
  s->Bytes("limits.hinted", &e.max_hinted_bytes,
           "Most bytes that prefetch hints protect at a time. 0: a quarter of the host tier.");
  s->Integer("limits.sessions", &e.max_sessions, "Most open sessions.", {.min = 1, .max = 1000000});
  s->Integer("limits.leases_per_session", &e.max_leases_per_session, "Most leases of one session.",
             {.min = 1, .max = 1000000});
  s->Integer(
      "limits.namespaces", &e.max_namespaces,
      "Most namespaces. One tenant has at most half of what others leave of them. Those without "
      "blocks make way.",
      {.min = 1, .max = 1000000});
  s->Time("blocks.life", &e.block_life,
          "How long a block is served after its last use, in namespaces that are new and whose "
          "client says nothing. 0: forever.",
          // As for a life that a client asks for.
          {.min = kShortestBlockLife, .max = kLongestBlockLife, .or_zero = true});
  s->Integer("mover.queue", &e.mover_queue_capacity, "Most moves that wait between two tiers.",
             {.min = 16, .max = 1 << 20, .unit = "blocks"});
  s->Integer("mover.threads", &c->mover_threads, "Threads that move blocks between tiers.",
             {.min = 1, .max = 64, .unit = "threads"});
  s->Time("prefetch.grace", &e.prefetch_grace,
          "How much longer than its own time a prefetch hint protects blocks.",
          {.max = std::chrono::minutes(10)});
  s->Integer("watch.queue", &e.watch_queue_capacity, "Most events that wait for a slow watcher.",
             {.min = 16, .max = 1 << 24, .unit = "events"});
  s->Bytes("watch.memory", &c->watch_memory, "Memory for the events that wait for all watchers.",
           {.min = 1 << 20});
  s->Bytes("memory.limit", &c->memory_limit,
           "The node refuses to start if its memory settings add up to more than this. 0: no limit "
           "but what the machine or the control group has left.");
}

void RegisterRpc(NodeConfig* c, config::Schema* s) {
  RpcOptions& r = c->rpc;
  s->Integer("rpc.max_in_flight", &r.max_in_flight,
             "Most running calls. The node refuses more with RESOURCE_EXHAUSTED, and calls of a "
             "connection that has more of them than there are free places.",
             {.min = 1, .max = 100000, .unit = "calls"});
  s->Integer("rpc.max_watches", &r.max_watches, "Most open watches.", {.min = 1, .max = 10000});
  s->Bytes("rpc.max_frame", &c->rpc_max_frame, "The largest data frame of Push.",
           {.min = 64 << 10, .max = 64 << 20});
  s->Bytes("rpc.fetch_frame", &c->rpc_fetch_frame, "Data in one frame of Fetch.",
           {.min = 4 << 10, .max = 16 << 20});
  s->Bytes("rpc.memory", &c->rpc_memory,
           "Memory for the bytes in flight of all calls: one half for frames on their way to "
           "readers, three eighths for messages that gRPC receives, one for requests that were "
           "decoded and wait. When it is used up, calls wait; further large requests are refused.",
           {.min = 16 << 20});
  s->Text(
      "rpc.congestion_control", &c->rpc_congestion_control,
      "TCP congestion control of the data port, such as cubic or bbr. auto: the kernel's default, "
      "but cubic or reno instead of bbr, because bbr paces. Empty: the kernel's default.",
      {.max_length = 15});
  s->Integer("rpc.threads", &c->rpc_threads, "Threads for calls that may take long.",
             {.min = 1, .max = 256, .unit = "threads"});
  s->Integer("rpc.fetch_threads", &c->rpc_fetch_threads,
             "Most fetches that wait for the disk at the same time.",
             {.min = 1, .max = 256, .unit = "threads"});
  s->Time("rpc.heartbeat", &r.heartbeat, "Time between two messages of an idle session.",
          {.min = std::chrono::milliseconds(100)});
  s->Time("rpc.fetch_stall", &r.fetch_stall,
          "A fetch ends with DEADLINE_EXCEEDED if the node waits longer than this for the bytes of "
          "one frame, and with RESOURCE_EXHAUSTED if its reader takes no frame for so long.",
          {.min = std::chrono::milliseconds(10)});
  s->Time("rpc.push_stall", &r.push_stall,
          "A push whose client sends no frame for longer than this ends with DEADLINE_EXCEEDED.",
          {.min = std::chrono::milliseconds(10)});
  s->Time("rpc.max_connection_age", &c->max_connection_age,
          "After this time the node asks a client to connect again, so that the client sees a "
          "changed DNS entry. Open streams continue. 0: never.");
  s->Time("rpc.keepalive", &c->keepalive,
          "After this time without a message the node pings a client, so that the leases of a dead "
          "client end. 0: never.");
  s->Time("drain.grace", &c->drain_grace,
          "After SIGTERM: how long clients that hold leases or reservations may continue.");
  s->Time("drain.timeout", &c->drain_timeout, "After SIGTERM: how long running calls may take.");
  s->Time("drain.flush_timeout", &c->drain_flush_timeout,
          "After SIGTERM: how long the last copies to disk may take.");
}

}  // namespace

MemoryAccount::Bounds NodeConfig::MemoryBounds() const {
  MemoryAccount::Bounds bounds{};
  const auto at = [&bounds](MemoryItem item) -> uint64_t& {
    return bounds[static_cast<size_t>(item)];
  };
  at(MemoryItem::kHost) =
      host_capacity + (local_socket == "off" ? 0 : HostTier::RetiredLimit(host_capacity));
  at(MemoryItem::kIndex) = engine.max_index_bytes;
  at(MemoryItem::kLeases) = lease_memory;
  at(MemoryItem::kNamespaces) = namespace_memory;
  at(MemoryItem::kFetchHeaders) = fetch_headers;
  at(MemoryItem::kTransfers) = engine.max_transfer_bytes;
  at(MemoryItem::kRpc) = rpc_memory;
  at(MemoryItem::kWatches) = watch_memory;
  at(MemoryItem::kSessions) = session_memory;
  at(MemoryItem::kCluster) = cluster.enabled() ? cluster.memory : 0;
  at(MemoryItem::kEvents) = events.enabled() ? events.memory : 0;
  at(MemoryItem::kDisk) = disk_path.empty() ? 0 : kDiskMemory;
  at(MemoryItem::kProcess) = kProcessMemory;
  if (device_capacity > 0) {
    at(MemoryItem::kProcess) +=
        kDriverMemory + kDeviceBuffers * std::max<size_t>(1, device_ids.size());
  }
  return bounds;
}

size_t NodeConfig::Threads() const {
  constexpr size_t kAlways = 6;  // flush, timers, operators, the same-node path, arena.
  constexpr size_t kDisk = 12;   // The database's, and one for each step of the tier.
  constexpr size_t kClusterAlways = 6;
  constexpr size_t kEvents = 3;  // The publisher, and two of ZeroMQ.
  return kAlways + mover_threads + rpc_threads + rpc_fetch_threads +
         (disk_path.empty() ? 0 : kDisk) +
         (cluster.enabled() ? kClusterAlways + cluster.threads : 0) +
         (events.enabled() ? kEvents : 0);
}

void NodeConfig::Register(NodeConfig* config, config::Schema* schema) {
  RegisterNetwork(config, schema);
  RegisterLocal(config, schema);
  RegisterTiers(config, schema);
  RegisterDevices(config, schema);
  RegisterLimits(config, schema);
  RegisterRpc(config, schema);
  RegisterCluster(config, schema);
  RegisterLinks(config, schema);
  RegisterEvents(config, schema);
  schema->Text("node.id", &config->node_id,
               "Name of the node in events and statistics. Empty: the name in the disk tier's "
               "directory, or a new one.",
               {.env = "CAIRN_NODE_ID", .max_length = 64});
  service::Settings::RegisterLog(&config->process, schema);
  service::Settings::RegisterTracing(&config->process, schema);
  schema->Check([config] {
    // The number of pushes whose frames may come at once. Clients are told the size.
    constexpr uint64_t kPushesAtOnce = 32, kLeastFrame = 64 << 10;
    const uint64_t frame = std::max(kLeastFrame, config->receive_bytes() / kPushesAtOnce);
    config->rpc.max_frame_bytes = static_cast<uint32_t>(std::min(config->rpc_max_frame, frame));
    config->rpc.fetch_frame_bytes = static_cast<uint32_t>(config->rpc_fetch_frame);
    return OkStatus();
  });
  schema->Check([config] { return CheckNetwork(config); });
  schema->Check([config] { return CheckPolicy(*config); });
  schema->Check([config] { return CheckEviction(config); });
  schema->Check([config] { return CheckLocal(*config); });
  schema->Check([config] { return CheckDevices(*config); });
  schema->Check([config] { return CheckMemory(*config); });
  schema->CheckOnRequest([config] { return CheckBeforeStart(*config); });
  schema->TellOnRequest([config] { return DescribeMemory(*config); });
  schema->TellOnRequest([config] {
    const std::string reason = config->DiskTooFull();
    return reason.empty() ? "" : "warning: " + reason;
  });
}

std::string NodeConfig::DiskTooFull() const {
  if (disk_path.empty()) return "";
  std::error_code error;
  // Room of blocks that are there is used again.
  const fs::path values = fs::path(disk_path) / "tier" / "values";
  if (fs::exists(values, error) && !fs::is_empty(values, error)) return "";
  const fs::path there = NearestThere(disk_path);
  const fs::space_info room = fs::space(there, error);
  const uint64_t need = disk_min_free + DiskTier::LeastRoom(disk_capacity);
  if (error || room.available >= need) return "";
  return fmt::format(
      "disk.path: the file system of '{}' has {} free, expected at least {}, the sum of "
      "disk.min_free and a value file; no block is written to disk before there is more room",
      there.string(), config::FormatBytesUp(room.available), config::FormatBytesUp(need));
}

}  // namespace cairn::cache
