#pragma once
// The measurements of the demo, and whether they are what Cairn promises.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

// An answer that is compared has at least this many generated tokens.
inline constexpr uint32_t kComparedTokens = 64;

// The parts of two runs that must be equal, to the last bit.
struct Answer {
  std::vector<int32_t> tokens;
  std::optional<Digest> prompt_logits;  // SHA-256 of the last prompt token's logits.
};
// False also when either is too short or has no logits: equal emptiness proves nothing.
bool Identical(const Answer& answer, const Answer& reference);
// How many tokens both begin with.
uint32_t SameIds(const Answer& answer, const Answer& reference);

// A node that was killed with SIGKILL for a row.
struct KilledNode {
  std::string node;            // "holder": only it had the prompt's KV. "home": the worker's.
  bool during_answer = false;  // Before the first token, when the node had sent a part.
  uint64_t sent_bytes = 0;     // The bytes that the holder sent to other nodes for this row.
};

// The KV of a prompt that a worker held, in rows that compare that.
struct HeldKv {
  uint64_t prompt_bytes = 0;  // All KV of the prompt.
  uint64_t pool_bytes = 0;    // Bytes that the worker's pages may take.
  // While it answered: a copy in few bits, a working set, and rows that arrive. 0: all KV is in
  // pages.
  uint64_t near_bytes = 0;
  uint64_t read_bytes = 0;   // Exact rows that the answer's tokens read at the node.
  double token_s = 0;        // Between two tokens of the answer.
  bool same_prompt = false;  // The prompt's last logits are those of full KV.
};

struct DemoRow {
  std::string name;  // "phase/item": "cold/q1", "chat/turn2".
  uint32_t prompt_tokens = 0;
  uint32_t fetched_tokens = 0;
  uint32_t shared_tokens = 0;  // Computed by another request at the same time.
  uint32_t computed_tokens = 0;
  double ttft_s = 0;
  uint64_t bytes = 0;       // Sent to the worker, counted at the node.
  uint64_t host_bytes = 0;  // The part of these that was read from the host tier.
  uint64_t disk_bytes = 0;  // The part of these that was read from the disk tier.
  bool identical = false;
  // First token of the same prompt without a cache, for the eye; not in the report.
  std::optional<double> cold_ttft_s = {};
  // The path that the bytes came by: "local" (shared memory), "grpc"; empty: none came.
  std::string path = {};
  // The bytes that the worker fetched, without the parts' headers: read where they lie, or copied.
  uint64_t lent_bytes = 0;
  uint64_t copied_bytes = 0;
  // How the node stores the KV of the worker's namespace, and what that takes. Cold: nothing.
  std::optional<std::string> recipe = {};  // As the worker was told.
  std::optional<double> bits_per_number = {};
  std::string answer = {};
  // Blocks that the worker's node read from other nodes for the row, with their headers.
  uint64_t peer_bytes = 0;
  std::optional<KilledNode> killed = {};
  uint32_t same_ids_as_full = 0;  // The generated tokens before the first one that differs.
  std::optional<HeldKv> held = {};

  std::string phase() const { return name.substr(0, name.find('/')); }
  std::string item() const { return name.substr(name.find('/') + 1); }
  // KV that is fetched, or read, differs from computed KV, so the answer may differ.
  bool lossy() const { return (recipe && *recipe != "raw") || (held && held->near_bytes > 0); }
};

struct DemoReport {
  std::string model;
  std::string machine;
  std::string commit;
  std::vector<DemoRow> rows;
};

// build/demo/report.json.
std::string ReportJson(const DemoReport& report);

// Every promise that a row breaks, as a sentence that names the row; empty when all is well: each
// answer is identical, unless its recipe is lossy; rows of a warm phase fetched tokens,
// disk/* from the disk and cluster/* from another node; the holder of holder-killed/* died while it
// answered (its row need not have fetched a whole block); beyond/rows was read by rows after a
// prompt with the right logits.
std::vector<std::string> BrokenPromises(const DemoReport& report);

// One row while the demo runs, without what the node evicted for it: "cold/q1   4,300 prompt ...".
// Says ANSWER DIFFERS of a row that must not differ. For other rows, it says from which token on
// the answer differs.
std::string RowLine(const DemoRow& row);

// All rows with a bar for the time to the first token, then one line per phase.
std::string RenderRows(const DemoReport& report, const Terminal& terminal);
std::string RenderSummary(const DemoReport& report, const Terminal& terminal);
// Rows with HeldKv: memory, time and answer, compared with full KV. Empty when there are none.
std::string RenderHeld(const DemoReport& report, const Terminal& terminal);
// Each answer over lossy KV under the full one to the same question. Empty when there is none.
std::string RenderAnswers(const DemoReport& report, const Terminal& terminal);

}  // namespace cairn::cli
