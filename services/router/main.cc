// cairn-router: sends each request to the worker where it costs least. See --help.

#include "common/service/service.h"
#include "services/router/rpc/router_config.h"
#include "services/router/rpc/router_process.h"

int main(int argc, char** argv) {
  cairn::router::RouterConfig config;
  return cairn::service::Main(
      {.name = "cairn-router",
       .summary = "Sends each request to the worker where it costs least.\n"
                  "`cairn-router health` asks the router on admin.listen whether it is ready, for "
                  "container probes.",
       .example = "cairn-router --model model.gguf --workers 127.0.0.1:7500,127.0.0.1:7510 "
                  "--cache 127.0.0.1:7400\n"
                  "  cairn-router --workers http://127.0.0.1:8001,http://127.0.0.1:8002",
       .starting = "loading the model",
       .settings = &config.process,
       .add_settings = [&](auto* schema) { cairn::router::Register(*schema, config); },
       .make = [&](auto* registry,
                   auto* tracer) { return cairn::router::MakeRouter(config, registry, tracer); },
       .threads = [&] { return cairn::router::Threads(config); }},
      {argv + 1, argv + argc});
}
