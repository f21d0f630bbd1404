// cairn-cache: a cache node. See --help.

#include "common/service/service.h"
#include "services/cache/serve/node/node.h"

int main(int argc, char** argv) {
  using cairn::cache::NodeConfig;
  NodeConfig config;
  return cairn::service::Main(
      {.name = "cairn-cache",
       .summary =
           "Keeps KV blocks of LLM prompts in RAM and on disk, and serves them to workers.\n"
           "`cairn-cache health` asks the node on admin.listen whether it is ready, for container "
           "probes.",
       .example = "cairn-cache --host.capacity 4GiB --disk.path /var/lib/cairn",
       .settings = &config.process,
       .add_settings = [&](auto* schema) { NodeConfig::Register(&config, schema); },
       .make = [&](auto* registry,
                   auto* tracer) { return cairn::cache::MakeNode(config, registry, tracer); },
       .threads = [&] { return config.Threads(); }},
      {argv + 1, argv + argc});
}
