#pragma once
// The router's line to one worker, as an interface: over gRPC in rpc/, to engines over HTTP in
// relay/, a fake in tests.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/next_use.h"
#include "cairn/common/status.h"
#include "model/tokenizer.h"
#include "model/worker_role.h"
#include "services/router/policy/worker_load.h"
#include "services/router/registry/raw_call.h"

namespace cairn::router {

using model::WorkerRole;

// A model that an engine lists in /v1/models.
struct EngineModel {
  std::string id = {};
  uint32_t context_tokens = 0;  // 0: it does not say.
  std::string object = {};      // All that it says, as JSON.
};

// A worker's description of itself: the message WorkerInfo of proto/cairn/v1/worker.proto.
struct WorkerInfo {
  std::string version = {};
  std::string model = {};
  std::string weights_digest = {};
  uint32_t context_tokens = 0;
  uint32_t block_tokens = 0;
  std::string cache_address = {};  // Empty: no cache.
  // The fingerprint of its namespace. nullopt: it has none.
  std::optional<Digest> fingerprint = {};
  WorkerRole role = WorkerRole::kBoth;
  // Not a worker of Cairn, but an engine with OpenAI's API. It gets raw calls, its cache is its
  // own, and it can get nothing of what others hold.
  bool engine = false;
  std::vector<EngineModel> models = {};  // The models of an engine.
};

// A request as it goes to a worker. Fields mean what those of GenerateRequest (engine/router.h) do.
struct WorkerRequest {
  // Shared, since it may go to several workers, one after the other.
  std::shared_ptr<const std::vector<model::TokenId>> tokens = {};
  std::optional<uint32_t> max_tokens = {};
  double temperature = 0;
  uint32_t top_k = 0;
  double top_p = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop = {};
  bool ignore_eos = false;
  int32_t priority = 0;
  std::string tenant = {};
  std::optional<TimePoint> deadline = {};
  NextUse next = NextUse::kUnknown;
  std::string trace = {};
  // Compute the prompt for another worker and end there (docs/operate/disaggregation.md).
  bool prefill_only = false;
  // How long to wait for blocks of the prompt that another worker has announced. 0: not at all.
  Duration await_prefill{0};
  // For engines, instead of what stands above.
  std::shared_ptr<const RawCall> raw = {};
  uint32_t prompt_tokens = 0;  // As far as the router knows.
  uint32_t held_tokens = 0;    // Tokens of the prompt that the worker was believed to hold.
};

struct WorkerAnswer {
  uint32_t prompt_tokens = 0;
  uint32_t fetched_tokens = 0;  // From the cache.
  uint32_t shared_tokens = 0;   // From requests that ran at the same time.
  double fetch_seconds = 0;     // The time that the fetch took.
  uint32_t completion_tokens = 0;
  std::string finish_reason = {};
  std::string text = {};  // The whole answer.
};

// Gets one answer: any number of OnToken, then OnDone or OnError, once. One thread at a time, and
// possibly before the call that it belongs to has returned. Must not block.
//
// The answer to a raw call has OnRawHead and OnRawBytes instead of OnToken, or ends with OnRefused.
class WorkerAnswerObserver {
 public:
  virtual ~WorkerAnswerObserver() = default;
  // With prefill_only, at most once, before the end: another worker of the same cache node may wait
  // for the blocks of the prompt now.
  virtual void OnAnnounced() {}
  virtual void OnToken(model::TokenId id, std::string_view text) = 0;
  virtual void OnRawHead(const RawHead& /*head*/) {}
  // Whole events of a stream, with about `tokens` tokens; or the body.
  virtual void OnRawBytes(std::string_view /*bytes*/, uint32_t /*tokens*/) {}
  // As OnError, and this is what the engine said: RESOURCE_EXHAUSTED or UNAVAILABLE.
  virtual void OnRefused(const Status& status, const RawAnswer& /*answer*/) { OnError(status); }
  virtual void OnDone(const WorkerAnswer& answer) = 0;
  // UNAVAILABLE also when the worker died in mid-stream.
  virtual void OnError(const Status& status) = 0;
  // As OnError, and it has got nothing of the request, which therefore cannot be the reason.
  virtual void OnUnreached(const Status& status) { OnError(status); }
};

struct WorkerReport {
  WorkerLoad load = {};
  bool draining = false;
  // The id of the node that it reads from; for an engine whose events are followed, its address.
  // Empty: none now.
  std::string cache_node_id = {};
};

// Gets what a worker says of itself: OnInfo, then any number of OnReport, then OnEnd once. As
// above.
class WorkerWatchObserver {
 public:
  virtual ~WorkerWatchObserver() = default;
  virtual void OnInfo(const WorkerInfo& info) = 0;
  virtual void OnReport(const WorkerReport& report) = 0;
  virtual void OnEnd(const Status& status) = 0;
};

// Something under way. Thread-safe. May be destroyed before its end, which changes nothing.
class WorkerCall {
 public:
  virtual ~WorkerCall() = default;
  // The observer gets its end soon, unless it has got it. Does nothing the second time.
  virtual void Cancel() = 0;
};

// A request that somebody else sends to a worker.
struct ForeignRequest {
  uint32_t prompt_tokens = 0;
  uint32_t held_tokens = 0;  // Tokens of the prompt that the worker was believed to hold.
  bool stream = false;       // Its tokens will be told as they come.
};

// Destroying it is the request's end. Thread-safe.
class ForeignCall {
 public:
  virtual ~ForeignCall() = default;
  virtual void Generated(uint32_t tokens) = 0;
};

// Thread-safe.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  // So that the load of a worker that tells none is right. nullptr: the worker tells its own.
  virtual std::unique_ptr<ForeignCall> FollowForeign(const ForeignRequest& /*request*/) {
    return nullptr;
  }
  virtual std::shared_ptr<WorkerCall> Generate(const WorkerRequest& request,
                                               std::shared_ptr<WorkerAnswerObserver> observer) = 0;
  virtual std::shared_ptr<WorkerCall> Watch(std::shared_ptr<WorkerWatchObserver> observer) = 0;
};

using MakeWorkerLink = std::function<std::unique_ptr<WorkerLink>(const std::string& address)>;

}  // namespace cairn::router
