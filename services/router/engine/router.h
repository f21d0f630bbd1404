#pragma once
// What the router does for its edges, HTTP and gRPC: it takes a request, sends it to the worker
// where it costs least, and hands the answer on.
//
// A request goes to another worker if its worker fails before the first token. After the first
// token a failure ends the answer with an error.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/next_use.h"
#include "cairn/common/status.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "services/router/policy/candidate.h"
#include "services/router/registry/raw_call.h"

namespace cairn::router {

// What is routed. Fields mean what the message GenerateRequest of proto/cairn/v1/worker.proto says.
struct GenerateRequest {
  std::string model = {};  // Empty: the only one that is served.
  // Messages go through the model's chat template. Text and ids are used as they are.
  std::variant<std::vector<worker::ChatMessage>, std::string, std::vector<worker::TokenId>> prompt =
      {};
  std::optional<uint32_t> max_tokens = {};  // nullopt: the worker's default.
  double temperature = 0;                   // 0: greedy.
  uint32_t top_k = 0;                       // 0: off.
  double top_p = 0;                         // 0: off.
  uint64_t seed = 0;
  std::vector<std::string> stop = {};
  bool ignore_eos = false;
  int32_t priority = 0;
  std::string tenant = {};  // Empty: the configured one. An edge has checked who the caller is.
  std::optional<TimePoint> deadline = {};
  NextUse next = NextUse::kUnknown;
  std::string trace = {};  // Of the logs of router, worker and node. May be empty.
  // Set if and only if the workers are engines that speak OpenAI's API: they get this. What stands
  // above is for the decision then.
  std::shared_ptr<const RawCall> raw = {};
};

struct GenerateSummary {
  uint32_t prompt_tokens = 0;
  // Of them, those that were not computed for this request: from the cache, or from requests that
  // ran at the same time.
  uint32_t cached_tokens = 0;
  uint32_t completion_tokens = 0;
  std::string finish_reason = {};  // "stop", "length", "cancelled" or "deadline".
  std::string text_tail = {};      // Text that follows the last token's, for example after a stop.
  std::string worker = {};         // The address of the worker that answered.
  uint32_t shared_tokens = 0;      // Of cached_tokens: from requests that ran at the same time.
};

struct GenerateError {
  // INVALID_ARGUMENT: the message names field, value and what was expected. NOT_FOUND: no such
  // model. RESOURCE_EXHAUSTED: shed. UNAVAILABLE: no worker can answer.
  Status status = OkStatus();
  std::string field = {};                    // Of GenerateRequest, where one is at fault.
  std::optional<Duration> retry_after = {};  // Of RESOURCE_EXHAUSTED and UNAVAILABLE, if known.
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
  virtual void OnToken(worker::TokenId id, std::string_view text) = 0;
  virtual void OnRawHead(const RawHead& /*head*/) {}
  virtual void OnRawBytes(std::string_view /*bytes*/) {}
  virtual void OnDone(const GenerateSummary& summary) = 0;
  virtual void OnError(const GenerateError& error) = 0;
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
  uint32_t workers = 0;         // That can answer now.
  std::string object = {};  // What the engine says of it, as JSON. Empty: it is a model of Cairn.
};

// Thread-safe.
class Router {
 public:
  virtual ~Router() = default;

  // Returns at once. What is wrong with the request goes to the observer, too.
  virtual std::unique_ptr<GenerateCall> Generate(GenerateRequest request,
                                                 std::shared_ptr<GenerateObserver> observer) = 0;
  // The decision alone. It counts as a request that went there. Errors as GenerateError's.
  virtual Result<Pick> PickWorker(const GenerateRequest& request) = 0;
  virtual std::vector<ServedModel> Models() = 0;
};

}  // namespace cairn::router
