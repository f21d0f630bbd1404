#pragma once
// Flags that several commands share.

#include <string>
#include <string_view>

#include "cairn/common/status.h"
#include "tools/cairn/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace cairn::cli {

void AddTlsFlags(CLI::App& command, TlsFlags& tls);
// --cache of commands that find a node themselves without it (default_target.h).
void AddNodeAddress(CLI::App& command, std::string& cache, const char* help);
// Adds the flags of generate and chat.
void AddWorkerFlags(CLI::App& command, WorkerOptions& options);
void AddSamplingFlags(CLI::App& command, SamplingFlags& flags);
// A size that a person typed after `flag`: of a bare number below 1024 the unit was forgotten.
// INVALID_ARGUMENT naming the flag.
Result<uint64_t> ParseSize(const char* flag, const std::string& text);
// An error's text with flags instead of the names that the libraries give to options. `address` is
// the flag of the address that the error is about.
std::string InFlags(std::string text, std::string_view address = "--cache");
Status InFlags(const Status& status, std::string_view address);
// --json; `what` is its help text.
void AddJson(CLI::App& command, bool& json, const char* what);

}  // namespace cairn::cli
