#pragma once
// The router's service for its edges, HTTP and gRPC: it takes a request, sends it to the worker
// where it costs least, and hands the answer on.
//
// A request goes to another worker if its worker fails before the first token. After the first
// token a failure ends the answer with an error.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/next_use.h"
#include "cairn/common/status.h"
#include "common/memory/fair_budget.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "services/router/policy/candidate.h"
#include "services/router/registry/raw_call.h"

namespace cairn::router {

// The span of a request, from its arrival until its answer has left.
inline constexpr std::string_view kRouteSpan = "route";

// The names of a request in logs and spans. Each may be empty.
struct RequestNames {
  std::string id = {};         // The edge's: the answer's x-request-id.
  std::string caller_id = {};  // The caller's own x-request-id.
  std::string trace = {};      // The trace id in the logs of router, worker and node.
  std::string word = {};       // The caller's word for logs, where `trace` is a place for spans.
};

// A request that is routed. It cannot be copied, because its bytes count. Fields mean what those of
// the message GenerateRequest of proto/cairn/v1/worker.proto do.
struct GenerateRequest {
  std::string model = {};  // Empty: the only one that is served.
  // Messages go through the model's chat template. Text and ids are used as they are.
  std::variant<std::vector<model::ChatMessage>, std::string, std::vector<model::TokenId>> prompt =
      {};
  std::optional<uint32_t> max_tokens = {};  // nullopt: the worker's default.
  // The caller's name for max_tokens, for errors. Text that lives as long as the process.
  std::string_view max_tokens_name = "max_tokens";
  double temperature = 0;  // 0: greedy.
  uint32_t top_k = 0;      // 0: off.
  double top_p = 0;        // 0: off.
  uint64_t seed = 0;
  std::vector<std::string> stop = {};
  bool ignore_eos = false;
  int32_t priority = 0;
  std::string tenant = {};  // Empty: the configured one. An edge has checked who the caller is.
  std::optional<TimePoint> deadline = {};
  NextUse next = NextUse::kUnknown;
  RequestNames names = {};
  // Set if and only if the workers are engines that speak OpenAI's API: they get this. The fields
  // above are for the decision then.
  std::shared_ptr<const RawCall> raw = {};
  // The share of the prompt in the budget of the edge that it came through, and later the share of
  // the tokens that the router made of it.
  ByteShare share = {};
};

// Memory of the prompt, as it came.
inline uint64_t PromptBytes(const GenerateRequest& request) {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) return text->size();
  if (const auto* ids = std::get_if<std::vector<model::TokenId>>(&request.prompt)) {
    return ids->size() * sizeof(model::TokenId);
  }
  uint64_t bytes = 0;
  for (const auto& message : std::get<std::vector<model::ChatMessage>>(request.prompt)) {
    bytes += sizeof message + message.role.size() + message.content.size();
  }
  return bytes;
}

struct GenerateSummary {
  uint32_t prompt_tokens = 0;
  // The part of them that was not computed for this request: from the cache, or from requests that
  // ran at the same time.
  uint32_t cached_tokens = 0;
  uint32_t completion_tokens = 0;
  std::string finish_reason = {};   // "stop", "length", "cancelled" or "deadline".
  std::string text_tail = {};       // Text that follows the last token's, for example after a stop.
  std::string worker = {};          // The address of the worker that answered.
  std::string prefill_worker = {};  // The worker that computed the prompt for it. Empty: none.
  // The part of cached_tokens that came from requests that ran at the same time.
  uint32_t shared_tokens = 0;
};

struct GenerateError {
  // INVALID_ARGUMENT: the message names field, value and what was expected. NOT_FOUND: no such
  // model. RESOURCE_EXHAUSTED: shed. UNAVAILABLE: no worker can answer, or no memory is left.
  Status status = OkStatus();
  // The field of GenerateRequest that is at fault, if there is one.
  std::string field = {};
  bool prompt_too_long = false;              // For the model's context. INVALID_ARGUMENT.
  std::optional<Duration> retry_after = {};  // For RESOURCE_EXHAUSTED and UNAVAILABLE, if known.
};

// Gets one answer: any number of OnToken, then OnDone or OnError, once. Called by one thread at a
// time, never while a lock of the router is held, and possibly before Generate has returned. Must
// not block: what reads slowly has to buffer, or cancel.
//
// The answer to a raw request has one OnRawHead and any number of OnRawBytes instead of OnToken,
// whatever its status: OnError is for what no engine has answered, or not to its end.
class GenerateObserver {
 public:
  virtual ~GenerateObserver() = default;
  // `text` is UTF-8, and empty while a character or a stop text is incomplete.
  virtual void OnToken(model::TokenId id, std::string_view text) = 0;
  virtual void OnRawHead(const RawHead& /*head*/) {}
  virtual void OnRawBytes(std::string_view /*bytes*/) {}
  virtual void OnDone(const GenerateSummary& summary) = 0;
  virtual void OnError(const GenerateError& error) = 0;
  // The HTTP status that the caller gets, or got, if the answer ends now: with `error`, or well
  // (nullptr). 0: the caller does not speak HTTP. Called before the end, for spans.
  virtual int HttpStatus(const GenerateError* /*error*/) const { return 0; }
};

// One request under way. Destroying it cancels. Thread-safe.
class GenerateCall {
 public:
  virtual ~GenerateCall() = default;
  // The worker frees what the request holds within a step. The observer gets its end as usual, or
  // has got it.
  virtual void Cancel() = 0;
};

struct ServedModel {
  std::string id = {};
  uint32_t context_tokens = 0;  // 0: not known.
  uint32_t workers = 0;         // Workers that can answer now.
  // The engine's own description of it, as JSON. Empty: it is a model of Cairn.
  std::string object = {};
};

// A request that its caller sends to the worker that was picked. It counts there, and among the
// requests under way, until this is destroyed. Thread-safe.
class PickLease {
 public:
  virtual ~PickLease() = default;
  // More tokens of the answer have come, as far as the caller sees them.
  virtual void Generated(uint32_t tokens) = 0;
  // The answer is whole, so that its length says how long answers are.
  virtual void Completed() = 0;
};

struct FollowedPick {
  Pick pick = {};
  std::unique_ptr<PickLease> lease = {};
};

struct PickAsk {
  GenerateRequest request = {};
  // False: nobody says when the request ends.
  bool followed = true;
  // False: it has no prompt, or one that the caller does not know. Then loads alone decide.
  bool has_prompt = true;
  // The caller will tell of the answer's tokens as they come.
  bool sees_tokens = false;
  // Whether the worker with this address may get it. Any thread. Default: all may.
  std::function<bool(const std::string&)> may = {};
};

// A question of who holds how much of a prompt.
struct HoldersQuery {
  std::string model = {};  // Empty: the only one that is served.
  // Tokens, or the keys of their full blocks, in order.
  std::variant<std::vector<model::TokenId>, std::vector<BlockKey>> prompt = {};
  uint32_t block_tokens = 0;  // Tokens of a block of the workers' namespace.
  std::string holder = {};    // A worker's address, or a cache node's id. Empty: all workers.
};

// A worker that need not compute the first tokens of a prompt, or a node that has them.
struct PromptHolder {
  std::string id = {};  // The worker's address, or the node's id.
  uint32_t tokens = 0;  // Tokens of full blocks, from the first one on without a gap. At least 1.
  // These tokens by where they are; they may be in several places. Tokens that were sent to a
  // worker that tells nothing count as in its own memory: on its device.
  uint32_t device_tokens = 0, host_tokens = 0, disk_tokens = 0;
};

// Thread-safe.
class Router {
 public:
  virtual ~Router() = default;

  // Returns at once. Errors of the request go to the observer, too.
  virtual std::unique_ptr<GenerateCall> Generate(GenerateRequest request,
                                                 std::shared_ptr<GenerateObserver> observer) = 0;
  // The decision alone. It counts as a request that went there. Returns at once. `done` is called
  // once, by any thread, possibly before this has returned; it must not block. Errors as
  // GenerateError's.
  using PickOnceDone = std::function<void(Result<Pick>)>;
  virtual void PickWorker(GenerateRequest request, PickOnceDone done) = 0;
  // The same for a caller that says when the request has ended.
  using PickDone = std::function<void(std::variant<FollowedPick, GenerateError>)>;
  virtual void PickAndFollow(PickAsk ask, PickDone done) = 0;
  // The holders of a prompt, those with most of it first: ready workers, or the one holder that is
  // asked for. Errors as GenerateError's; UNAVAILABLE: no worker has told its namespace yet.
  virtual std::variant<std::vector<PromptHolder>, GenerateError> Holders(
      const HoldersQuery& query) = 0;
  virtual std::vector<ServedModel> Models() = 0;
};

}  // namespace cairn::router
