#pragma once
// The text about an answer.

#include <string>

#include "services/worker/engine/request.h"
#include "tools/cairn/output/json.h"

namespace cairn::cli {

// The fields that docs/operate/cli.md lists for --json.
Json ToJson(const worker::GenerateSummary& summary);
// For people: "1,600 prompt tokens: 1,536 fetched (46.0 MiB from shared memory, none copied), 64
// computed; first token 40 ms, all 1.20 s". With a read policy, it goes on with "; 1,536 tokens
// read by rows: 20.5 MiB near, 1.2 MiB read, 97 % of the rows hit, 0 late".
std::string AnswerLine(const worker::GenerateSummary& summary);
// Whether nothing of the prompt was looked for at the node: its last tokens decide what is kept,
// and no `prefix_end` says which tokens others share.
bool NothingWasShared(const worker::GenerateRequest& request,
                      const worker::GenerateSummary& summary);

}  // namespace cairn::cli
