// cairn-worker: runs a model; fetches its prompts' KV from a cache node and pushes what it
// computes. See --help.

#include "common/service/service.h"
#include "services/worker/rpc/worker_config.h"
#include "services/worker/rpc/worker_process.h"

int main(int argc, char** argv) {
  cairn::worker::WorkerConfig config;
  return cairn::service::Main(
      {.name = "cairn-worker",
       .summary = "Runs a GGUF model whose prompts' KV is shared through a cache node.\n"
                  "`cairn-worker health` asks the worker on admin.listen whether it is ready, for "
                  "container probes.",
       .example = "cairn-worker --model model.gguf --cache 127.0.0.1:7400",
       .starting = "loading the model",
       // Pushes, fetches and steps run on threads of their own and take large buffers one after the
       // other. With an arena each, the process would keep all of them.
       .arenas = 1,
       .settings = &config.process,
       .add_settings = [&](auto* schema) { cairn::worker::Register(*schema, config); },
       .make = [&](auto* registry,
                   auto* tracer) { return cairn::worker::MakeWorker(config, registry, tracer); },
       .threads = [&] { return cairn::worker::Threads(config); }},
      cairn::worker::ExpandShortFlags({argv + 1, argv + argc}));
}
