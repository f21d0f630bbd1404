#pragma once
// The request of a caller to the worker, and the answer. Fields mean what the messages of the
// same names in proto/cairn/v1/worker.proto say.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cairn/client/types.h"
#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/next_use.h"
#include "model/chat_template.h"
#include "model/request_limits.h"
#include "model/tokenizer.h"
#include "services/worker/compute/read_counters.h"
#include "services/worker/compute/sampler.h"
#include "services/worker/engine/timeline.h"
#include "services/worker/session/fetched_bytes.h"

namespace cairn::worker {

struct ChatPrompt {
  std::vector<model::ChatMessage> messages;  // 1 to 1024, through the model's chat template.
};
struct RawPrompt {
  std::string text;  // As it is; special tokens in it are recognised. No begin-of-text token added.
};
struct TokenPrompt {
  std::vector<model::TokenId> ids;
};

struct GenerateRequest {
  std::variant<ChatPrompt, RawPrompt, TokenPrompt> prompt;
  uint32_t max_tokens = 256;  // 1 to context length; fewer when the context ends before.
  SamplingOptions sampling;   // Greedy by default.
  bool no_cache = false;      // Neither fetch nor push.
  bool ignore_eos = false;
  bool want_logits_digest = false;
  // A prompt that leaves no room for max_tokens in the context loses its oldest tokens after the
  // first block. Not with score_tokens, prefill_only and await_prefill.
  bool drop_oldest = false;
  // The full blocks of prompt and answer are prefilled in idle time and pushed, so that the next
  // turn of the conversation finds them.
  bool keep_turn = false;
  // If not empty: nothing is generated; these tokens are computed after the prompt, and their
  // logits go to on_scores. The prompt must then be whole blocks, so that all of it may come from
  // the cache. 1 to kMaxScoreTokens.
  std::vector<model::TokenId> score_tokens = {};
  // Tokens of the prompt that others share, where the recipe selects tokens; no effect elsewhere.
  // 0:
  // not said. At most the prompt's tokens.
  uint32_t prefix_end = 0;
  // The answer ends before the first of these texts. At most kMaxStops, each 1 to kMaxStopBytes
  // bytes of UTF-8.
  std::vector<std::string> stop = {};
  // kLeastPriority to kGreatestPriority; a greater one goes first. docs/operate/scheduling.md says
  // what it counts next to other tenants' requests.
  int32_t priority = 0;
  // Whom the request is charged to when prompts are ordered. Empty: the worker's own tenant. The KV
  // is the worker's tenant's in any case.
  std::string tenant = {};
  // The answer is of no use after this time, on the engine's clock: the request ends then, with
  // what it has. In the past: an error.
  std::optional<TimePoint> deadline = std::nullopt;
  NextUse next = NextUse::kUnknown;  // The expectation of the caller for the conversation.
  bool want_timeline = false;        // Fill GenerateSummary::timeline.
  // Compute and push the prompt's full blocks, but those of its last token, and end there
  // (docs/operate/disaggregation.md). Nothing is generated.
  bool prefill_only = false;
  // How long to wait for blocks of the prompt that another worker has announced. Blocks that have
  // not come by then are computed.
  Duration await_prefill{0};
  std::string trace;  // Goes with every request to the cache node. May be empty.
};
inline constexpr size_t kMaxScoreTokens = 1024;
inline constexpr Duration kMaxAwaitPrefill = std::chrono::minutes(10);

// How a context was read by rows, in a worker with a read policy (docs/methods/long-context.md).
struct ContextReading {
  std::string policy;  // With all parameters. Empty: it was not read by rows, and `off` says why.
  std::string off;     // For people. Empty also without a read policy.
  uint32_t far_tokens =
      0;  // Tokens of the prompt whose whole KV lay elsewhere while tokens were decoded.
  uint64_t near_bytes = 0;  // Copy or index, working set and rows that arrive.
  ReadCounters counters;
};

struct GenerateSummary {
  uint32_t prompt_tokens = 0;   // Without dropped ones.
  uint32_t dropped_tokens = 0;  // With drop_oldest.
  // The part of fetched_tokens with keys that were turned back for that.
  uint32_t turned_tokens = 0;
  uint32_t fetched_tokens = 0;
  uint32_t shared_tokens = 0;  // Taken from other requests, which computed the same tokens.
  // prompt_tokens - fetched_tokens - shared_tokens; fewer if the request ended during its prompt.
  uint32_t computed_tokens = 0;
  std::vector<model::TokenId> tokens;  // The end token is not among them; those of a stop text are.
  std::string text;                    // Without the stop text, and what its tokens had after it.
  double ttft_seconds = 0;   // From leaving the queue to the first token; 0: there was none.
  double total_seconds = 0;  // From leaving the queue to the last token.
  double queue_seconds = 0;
  double match_seconds = 0;
  double fetch_seconds = 0;   // From the match's answer to the last slice.
  std::string finish_reason;  // "stop", "length", "prefill", "cancelled" or "deadline".
  // SHA-256 of the last prompt token's float32 logits, little-endian. Only with want_logits_digest.
  std::optional<Digest> prompt_logits_sha256;
  // The same of all the logits that tokens were taken from, one row after the other.
  std::optional<Digest> answer_logits_sha256;
  // Why the first full block that was not fetched was not; kNone when all were, or with no_cache.
  MissReason miss_reason = MissReason::kNone;
  // For a prompt that was spilt: each time that it was read back.
  BytesByTier fetched;
  client::Path fetch_path = client::Path::kGrpc;  // That these bytes came by.
  // Part of computed_tokens: tokens that the node had, but that were faster to compute.
  uint32_t chosen_tokens = 0;
  // Where the recipe selects: tokens of the prompt of which some rows are forgotten, and the share
  // of their rows that is kept, over all layers and KV heads.
  uint32_t selected_tokens = 0;
  double kept_share = 0;
  ContextReading reading;
  Timeline timeline;  // Only with want_timeline.
};

// All run on the thread that called Generate.
struct GenerateCallbacks {
  // A new token; `text` is valid UTF-8 and may be empty while a character is incomplete (the rest
  // of the text may come with the summary only). False cancels.
  std::function<bool(model::TokenId id, std::string_view text)> on_token;
  // Logits after score_tokens[first] to score_tokens[first + rows - 1]: [rows][vocab]. False
  // cancels.
  std::function<bool(size_t first, size_t rows, std::span<const float> logits)> on_scores = nullptr;
  // The request is with prefill_only, and its blocks are announced: another worker may wait for
  // them now. At most once. False cancels.
  std::function<bool()> on_announced = nullptr;
  // Polled about every 20 ms while there is nothing else to do. True cancels.
  std::function<bool()> cancelled;
};

}  // namespace cairn::worker
