#include "services/cache/serve/node/link_config.h"

namespace cairn::cache {
namespace {

Status CheckLinks(const NodeConfig& config) {
  if (!config.link.enabled) return OkStatus();
  if (!config.cluster.enabled()) {
    return InvalidArgument(
        "link.enabled: got true, expected false with cluster.discovery {}, because links go to "
        "other members",
        config.cluster.discovery);
  }
  if (config.device_capacity == 0) {
    return InvalidArgument(
        "link.enabled: got true, expected false with device.capacity 0, because links move "
        "blocks of the device tier");
  }
  return OkStatus();
}

}  // namespace

void RegisterLinks(NodeConfig* config, config::Schema* s) {
  LinkConfig* const c = &config->link;
  s->Bool("link.enabled", &c->enabled,
          "Move blocks between the GPUs of members with NCCL, where both sides switch it on. Needs "
          "device.capacity.");
  s->Text("link.library", &c->library,
          "NCCL: a path, or empty for libnccl.so.2 where the linker looks.", {.max_length = 4096});
  s->Bool("link.trusted_network", &c->trusted_network,
          "Blocks may go between hosts, though NCCL does not encrypt them. false: only between "
          "processes of one host.");
  s->Text("link.host", &c->host,
          "Names the machine and its network: without link.trusted_network blocks go only between "
          "members with the same one. Empty: the id of the kernel's start and of the network "
          "namespace.",
          {.max_length = 128});
  s->Time("link.timeout", &c->timeout,
          "Most time that one block may take over a link, and at most half of what is left of "
          "cluster.read_timeout. Then it comes over gRPC.",
          {.min = std::chrono::milliseconds(10), .max = std::chrono::minutes(1)});
  s->Bytes("link.buffer", &c->buffer,
           "Memory of the GPU for blocks on their way, in addition to device.capacity, a half for "
           "each direction. A larger block goes over gRPC.",
           {.min = 64 << 10, .max = 16ull << 30});
  s->Check([config] { return CheckLinks(*config); });
}

}  // namespace cairn::cache
