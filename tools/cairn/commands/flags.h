#pragma once
// Flags that several commands share.

#include "tools/cairn/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace cairn::cli {

void AddTlsFlags(CLI::App& command, TlsFlags& tls);
// Of generate and chat.
void AddWorkerFlags(CLI::App& command, WorkerOptions& options);
void AddSamplingFlags(CLI::App& command, SamplingFlags& flags);
// --json; `what` is its help text.
void AddJson(CLI::App& command, bool& json, const char* what);

}  // namespace cairn::cli
