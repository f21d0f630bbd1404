#include "services/cache/serve/node/cluster_config.h"

#include <algorithm>
#include <cctype>

#include "common/membership/static_discovery.h"
#include "common/net/address.h"
#include "services/cache/cluster/peer/peer_messages.h"

namespace cairn::cache {
namespace {

constexpr size_t kLongestName = 64;
constexpr size_t kLongestPlace = 128;

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

Status CheckCluster(NodeConfig* config) {
  ClusterConfig& cluster = config->cluster;
  if (!cluster.enabled()) return OkStatus();
  if (!IsName(cluster.name)) {
    return InvalidArgument("cluster.name: got '{}', expected 1 to {} characters of [A-Za-z0-9._-]",
                           cluster.name, kLongestName);
  }
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress listen,
                         net::ParseListenAddress(config->listen, "listen"));
  if (listen.is_unix) {
    return InvalidArgument("listen: got '{}', expected host:port, where other members can connect",
                           config->listen);
  }
  if (cluster.advertise.empty()) {
    const bool anywhere = listen.host == "0.0.0.0" || listen.host == "::" || listen.host == "*";
    if (anywhere || listen.port == 0) {
      return InvalidArgument(
          "cluster.advertise: got '', expected host:port, because listen is '{}'", config->listen);
    }
    cluster.advertise = config->listen;
  }
  CAIRN_RETURN_IF_ERROR(membership::CheckMemberAddress(cluster.advertise, "cluster.advertise"));
  const auto required = [&](const char* kind, const char* field, const auto& list) -> Status {
    if (cluster.discovery != kind || !list.empty()) return Status();
    return InvalidArgument(
        "{}: got nothing, expected at least one, because cluster.discovery is {}", field, kind);
  };
  CAIRN_RETURN_IF_ERROR(required("static", "cluster.members", cluster.members));
  CAIRN_RETURN_IF_ERROR(required("dns", "cluster.dns_names", cluster.dns_names));
  CAIRN_RETURN_IF_ERROR(required("etcd", "cluster.etcd_endpoints", cluster.etcd.endpoints));
  for (const std::string& member : cluster.members) {
    CAIRN_RETURN_IF_ERROR(membership::CheckMemberAddress(member, "cluster.members"));
  }
  if (!cluster.peer_identities.empty() && !config->rpc.tls.mutual()) {
    return InvalidArgument(
        "cluster.peer_identities: got {} names, expected none without tls.client_ca, because "
        "callers show no certificates",
        cluster.peer_identities.size());
  }
  config->engine.source_read_timeout = cluster.read_timeout;
  // Blocks that the members found in time have to reach the engine in time.
  config->engine.source_lookup_timeout =
      cluster.lookup_deadline / 7 * 8 + std::chrono::milliseconds(1);
  if (cluster.speak > kNewestPeerVersion) {
    return InvalidArgument("cluster.speak: got {}, expected {} to {}, or 0", cluster.speak,
                           kOldestPeerVersion, kNewestPeerVersion);
  }
  return OkStatus();
}

void RegisterEtcd(ClusterConfig* c, config::Schema* s) {
  s->TextList("cluster.etcd_endpoints", &c->etcd.endpoints,
              "host:port of each member of the etcd cluster.");
  s->Text("cluster.etcd_ca", &c->etcd.ca, "PEM file with etcd's authority. Empty: no TLS.");
  s->Text("cluster.etcd_cert", &c->etcd.certificate,
          "PEM file with the certificate that this node shows to etcd.");
  s->Text("cluster.etcd_key", &c->etcd.key, "PEM file with its key.");
  s->Text("cluster.etcd_user", &c->etcd.user, "User of etcd. Empty: none.");
  s->Text("cluster.etcd_password_file", &c->etcd.password_file,
          "File with the user's password, read at each log-in.");
  s->Time("cluster.etcd_ttl", &c->etcd_ttl,
          "After this time without a renewal etcd drops the record of a node that was killed.",
          {.min = std::chrono::seconds(2), .max = std::chrono::minutes(10)});
}

}  // namespace

void RegisterCluster(NodeConfig* config, config::Schema* s) {
  ClusterConfig* const c = &config->cluster;
  s->Text("cluster.discovery", &c->discovery,
          "How the node finds the other members of its cluster. none: it is alone.",
          {.choices = {"none", "static", "dns", "etcd"}});
  s->Text("cluster.name", &c->name, "Name of the cluster. Nodes with another name are no members.");
  s->Text("cluster.advertise", &c->advertise,
          "host:port under which other members reach this node. Empty: that of listen.");
  s->TextList("cluster.members", &c->members,
              "With static: host:port of all members, this one among them or not.");
  s->TextList("cluster.dns_names", &c->dns_names,
              "With dns: names to look up. One that begins with _ is asked for SRV records, others "
              "for A and AAAA.");
  s->Integer("cluster.dns_port", &c->dns_port,
             "With dns: the members' port, where the records have none.", {.min = 1, .max = 65535});
  s->Text("cluster.dns_servers", &c->dns_servers,
          "With dns: host:port of name servers, divided by commas. Empty: those of the system.");
  s->Time("cluster.dns_interval", &c->dns_interval, "With dns: time between two look-ups.",
          {.min = std::chrono::milliseconds(100), .max = std::chrono::minutes(10)});
  RegisterEtcd(c, s);
  s->Text("cluster.host", &c->host,
          "Name of the machine. Clients with the same name prefer this node. Empty: unknown.",
          {.env = "CAIRN_CLUSTER_HOST", .max_length = kLongestPlace});
  s->Text("cluster.zone", &c->zone,
          "Name of the zone of the network. Clients with the same name prefer this node. Empty: "
          "unknown.",
          {.env = "CAIRN_CLUSTER_ZONE", .max_length = kLongestPlace});
  s->TextList(
      "cluster.peer_identities", &c->peer_identities,
      "With tls.client_ca: who may call as a member, as in tls.admin_identities. {node_id} stands "
      "for the id that the caller says it has. Empty: everybody with a certificate.");
  s->Text(
      "cluster.tls_ca", &c->tls_ca,
      "PEM file with the authority of the members' certificates. Empty: tls.client_ca. The node "
      "shows tls.cert to other members.");
  s->Text("cluster.tls_server_name", &c->tls_server_name,
          "Name expected in the members' certificates. Empty: the name in the member's address.");
  s->Time("cluster.lookup_deadline", &c->lookup_deadline,
          "Most time that a match waits for other members, and at most half of what its caller "
          "allows.",
          {.min = std::chrono::milliseconds(1), .max = std::chrono::seconds(10)});
  s->Time("cluster.silence", &c->silence,
          "After this time without a byte the node asks the next holder for a block.",
          {.min = std::chrono::milliseconds(10), .max = std::chrono::seconds(10)});
  s->Time("cluster.read_timeout", &c->read_timeout,
          "Most time that the read of one block from other members may take, once it has begun.",
          {.min = std::chrono::milliseconds(10), .max = std::chrono::minutes(1)});
  s->Bytes("cluster.memory", &c->memory, "Memory for the directory: which member holds what.",
           {.min = 1 << 20});
  s->Integer("cluster.threads", &c->threads,
             "Threads that wait for the disk on behalf of other members.",
             {.min = 1, .max = 256, .unit = "threads"});
  s->Integer(
      "cluster.max_reads", &c->max_reads,
      "Most blocks that are sent to other members at a time. One member gets at most half of "
      "what others leave.",
      {.min = 1, .max = 10000, .unit = "blocks"});
  s->Integer("cluster.speak", &c->speak,
             "The newest version of the members' protocol that this node speaks, so that a new "
             "build can wait until all members are new. 0: the newest it knows.");
  s->Check([config] { return CheckCluster(config); });
}

}  // namespace cairn::cache
