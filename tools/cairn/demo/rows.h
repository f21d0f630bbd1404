#pragma once
// From what a worker says of a request to a row of the report.

#include <cstdint>
#include <string>

#include "services/worker/engine/request.h"
#include "tools/cairn/demo/report.h"

namespace cairn::cli {

Answer AnswerOf(const worker::GenerateSummary& summary);

// Without what the node counted, and without a comparison.
DemoRow RowOf(std::string name, const worker::GenerateSummary& summary);

// `token_bytes`: KV of a token. `pool_bytes`: of the worker's pages.
HeldKv HeldOf(const worker::GenerateSummary& summary, uint64_t token_bytes, uint64_t pool_bytes);

}  // namespace cairn::cli
