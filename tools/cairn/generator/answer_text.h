#pragma once
// What is said of an answer.

#include <string>

#include "services/worker/engine/request.h"
#include "tools/cairn/output/json.h"

namespace cairn::cli {

// What docs/cli.md says of --json.
Json ToJson(const worker::GenerateSummary& summary);
// For people: "1,600 prompt tokens: 1,536 fetched (46 MB from shared memory, none copied), 64
// computed; first token 40 ms, all 1.2 s".
std::string AnswerLine(const worker::GenerateSummary& summary);
// "; 1,536 tokens read by rows: 20.5 MB near, 97 % of the rows there, 0 late". Empty without a read
// policy.
std::string HowRead(const worker::GenerateSummary& summary);
// Whether nothing was looked for at the node, since no flag says how much of a prompt that was
// selected others share.
bool NothingWasShared(const worker::GenerateRequest& request,
                      const worker::GenerateSummary& summary);

}  // namespace cairn::cli
