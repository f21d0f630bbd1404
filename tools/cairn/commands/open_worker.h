#pragma once
// The part that generate and chat share: a worker as asked for, and requests from flags.

#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "tools/cairn/generator/generator.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

// INVALID_ARGUMENT or UNIMPLEMENTED: a flag of a worker in this process is wrong whatever the model
// is.
Status CheckWorker(const WorkerOptions& options);

// A worker at an address, or one in this process. With a cache, waits a little for the connection;
// a node that is away gives a warning on stderr, not an error.
Result<std::unique_ptr<Generator>> OpenWorker(const WorkerOptions& options);

// Everything but the prompt.
worker::GenerateRequest RequestFromFlags(const SamplingFlags& flags, const WorkerOptions& worker);

// "-" is standard input. NOT_FOUND naming the file.
Result<std::string> ReadText(const std::string& path);

// Time for background pushes after a request.
inline constexpr std::chrono::seconds kPushTimeout(60);

}  // namespace cairn::cli
