#pragma once
// A worker without its network: a model, a KV pool, and a prefix session with a cache node.
//
// Requests wait in a bounded queue and run on the engine's own thread, in steps that a scheduler
// orders (../scheduling). While none is waiting, the engine prefills finished turns. A cache node
// that is away, slow or wrong costs at most the deadlines below and never changes an answer.
//
// This is the engine with its threads, which live in real time. engine_core.h is the same without
// threads, on any clock.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/kv/statistic.h"
#include "cairn/common/status.h"
#include "common/tenants/tenant_accounts.h"
#include "model/model.h"
#include "model/worker_role.h"
#include "services/worker/compute/read_counters.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/memory_items.h"
#include "services/worker/engine/request.h"
#include "services/worker/scheduling/scheduler.h"
#include "services/worker/session/kv_codec.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/spill_stats.h"
#include "services/worker/session/spilled_kv.h"

namespace cairn::client {
class CacheClient;
}

namespace cairn::worker {

// clang-format off
// ROW(kind, name, metric, labels, help)
#define CAIRN_WORKER_STATISTICS(ROW)                                                               \
  ROW(kTotal, requests, "", "",                                                                    \
      "Requests that finished, cancelled ones included.")                                          \
  ROW(kTotal, requests_cancelled, "cairn_worker_requests_total", "result=cancelled",               \
      "Finished requests that were cancelled.")                                                    \
  ROW(kTotal, requests_expired, "cairn_worker_requests_total", "result=deadline",                  \
      "Finished requests that ran into their deadline.")                                           \
  ROW(kTotal, requests_refused, "cairn_worker_requests_total", "result=refused",                   \
      "Requests that were refused: too many waited, or they would have waited too long.")          \
  ROW(kTotal, requests_failed, "cairn_worker_requests_total", "result=failed",                     \
      "Requests that failed after they were accepted.")                                            \
  ROW(kTotal, pool_refusals, "", "",                                                               \
      "Requests that ended because the pool had no pages for them, and no cache node had room.")   \
  ROW(kTotal, near_refusals, "", "",                                                               \
      "Requests that were refused because kv_budget is too small for their context.")              \
  ROW(kTotal, requests_parked, "cairn_worker_parked_total", "",                                    \
      "Times that a request gave its pages to others.")                                            \
  ROW(kTotal, prompt_tokens, "", "",                                                               \
      "Tokens of prompts.")                                                                        \
  ROW(kTotal, fetched_tokens, "cairn_worker_tokens_total", "kind=fetched",                         \
      "Tokens of prompts that were fetched.")                                                      \
  ROW(kTotal, computed_tokens, "cairn_worker_tokens_total", "kind=computed",                       \
      "Tokens of prompts that were computed.")                                                     \
  ROW(kTotal, shared_tokens, "cairn_worker_tokens_total", "kind=shared",                           \
      "Tokens of prompts that another request computed at the same time.")                         \
  ROW(kTotal, chosen_tokens, "", "",                                                               \
      "Computed tokens that the node had, because computing them was faster.")                     \
  ROW(kTotal, generated_tokens, "cairn_worker_tokens_total", "kind=generated",                     \
      "Tokens that were generated.")                                                               \
  ROW(kTotal, idle_prefilled_tokens, "cairn_worker_tokens_total", "kind=idle",                     \
      "Tokens of finished turns that were prefilled in idle time.")                                \
  ROW(kTotal, far_tokens, "cairn_worker_far_tokens_total", "",                                     \
      "Prompt tokens whose KV was read by rows while tokens were decoded.")                        \
  ROW(kTotal, lookahead_blocks, "cairn_worker_lookahead_blocks_total", "",                         \
      "Blocks on disk that the node brings to memory while their request waits.")                  \
  ROW(kTotal, idle_turns_dropped, "cairn_worker_idle_turns_dropped_total", "",                     \
      "Finished turns that were not prefilled because there were too many or there was no "        \
      "room.")                                                                                     \
  ROW(kNow, queued_requests, "cairn_worker_queued_requests", "",                                   \
      "Requests that wait in the queue.")                                                          \
  ROW(kNow, kv_pages_free, "cairn_worker_kv_pages", "state=free",                                  \
      "Pages of the KV pool that are free.")                                                       \
  ROW(kNow, kv_pages_total, "", "",                                                                \
      "Pages of the KV pool.")
// clang-format on

// Thread-safe.
class WorkerEngine {
 public:
  struct Options {
    std::string model_path;  // A GGUF file.
    Arithmetic arithmetic = Arithmetic::kFast;
    int threads = 0;                               // That compute. 0: one per CPU.
    int32_t max_context = 0;                       // Tokens of prompt and answer. 0: the model's.
    std::string device = "cpu";                    // Where the forward pass runs: cpu, or cuda:N.
    std::string device_library = {};               // That drives it; empty: libcairn_cuda.so.
    uint64_t device_kv_bytes = uint64_t{1} << 30;  // Memory of the device for copies of pages.
    // KV memory. 0: two sequences of max_context, at least 256 MiB.
    uint64_t kv_pool_bytes = 0;
    uint32_t queue_capacity = 16;        // Requests that wait; running ones are not counted.
    uint32_t tenant_queue_capacity = 0;  // Limit for one tenant. 0: as many as in all.
    // A request that would wait longer is refused. 0: none is refused for that.
    Duration queue_max_wait = std::chrono::seconds(60);
    std::map<std::string, TenantTerms> tenant_terms = {};  // By tenant; others have the defaults.
    // Requests that run at the same time. 1: one at a time.
    uint32_t max_running = 1;
    // Memory for the KV of requests that gave their pages to more urgent ones. KV that does not fit
    // is computed again.
    uint64_t parking_bytes = 256ull << 20;
    // The share of the time that decodes get while prompts wait. More than 0, less than 1.
    double decode_share = 0.5;
    // Most memory that the process takes, all of it. 0: what the machine has left.
    uint64_t memory_limit = 0;
    // The part of it for requests that were decoded, and again for messages that arrive; less,
    // where the rest does not fit.
    uint64_t request_bytes = 0;
    uint64_t least_request_bytes = 0;
    uint32_t idle_turns = 4;  // Finished turns that wait for prefill; the oldest is dropped.
    std::string tenant = "default";
    std::string salt;  // The salt of the tenant's namespaces; see proto/cairn/v1/common.proto.
    // How KV is stored at the cache: common/recipe. A selection of tokens holds without a
    // cache, too.
    std::string recipe = "raw";
    // Folder of the files that recipes name by their digest: docs/methods/calibration.md.
    std::string calibration = "calibration";
    // Further recipes: what is computed over exact KV is pushed to a namespace of each, too.
    std::vector<std::string> publish = {};
    // How contexts are read by rows (methods/reading). Empty: all KV stays in the pool.
    std::string read_policy;
    // Near memory for that, shared evenly among max_running requests. 0: what the longest contexts
    // need, or what is left of memory_limit and the machine if that is less. Only with read_policy.
    uint64_t kv_budget = 0;
    std::string cache_address;  // For GetInfo only.
    model::WorkerRole role = model::WorkerRole::kBoth;
    PrefixSession::Options prefix;
    PushQueue::Options push;
    SpilledKv::Options spill;
  };

  struct Info {
    std::string model;
    Digest weights_digest;
    std::string numerics;
    uint32_t context_tokens = 0;
    uint32_t block_tokens = 0;
    int threads = 0;
    std::string cache_address;
    bool cache_connected = false;
    model::WorkerRole role = model::WorkerRole::kBoth;
    // The fingerprint of the namespace; nullopt without a cache.
    std::optional<Digest> fingerprint;
  };

  // Totals since start unless said otherwise.
  struct Stats {
    CAIRN_WORKER_STATISTICS(CAIRN_STATISTIC_FIELD)
    ReadCounters reading;  // The counters of finished requests.
    PrefixSession::Stats prefix;
    PushQueue::Stats push;
    SpillStats spill;
    Transformer::GraphStats graphs;
    std::vector<KvCodec::Stats> codecs;  // None without a cache.
  };

  // The present work of the worker.
  struct Load {
    // Seconds of the prompts that wait and that run, before those of a new request.
    double prefill_seconds = 0;
    uint64_t running_prompts = 0;  // Being matched, fetched or computed.
    uint64_t running_decodes = 0;
    uint64_t parked = 0;
    uint64_t parked_bytes = 0;
    uint64_t near_bytes = 0;  // The memory that read policies keep of contexts.
    uint64_t kv_pages_total = 0;
    uint64_t kv_pages_free = 0;
    MeasuredRates rates;
    struct Queued {
      int32_t priority = 0;
      uint64_t requests = 0;
      uint64_t prefill_tokens = 0;  // As far as is known.
    };
    std::vector<Queued> queued;  // Greatest priority first; none without requests.
    std::string cache_node_id;   // The id of the node that it reads from. Empty: none now.
  };

  // `cache` may be null: then everything is computed. Nothing is asked of the cache node here, so a
  // node that is away does not delay the start. `scheduler`: which requests run at the same time;
  // null: a BatchScheduler of max_running requests. Errors: those of Model::Load,
  // Transformer::Create and KvPool::Create; INVALID_ARGUMENT naming an option; FAILED_PRECONDITION
  // for a calibration that a recipe or the read policy names and that is not there, damaged, or of
  // another model.
  static Result<std::unique_ptr<WorkerEngine>> Create(
      const Options& options, std::unique_ptr<client::CacheClient> cache,
      std::unique_ptr<Scheduler> scheduler = nullptr);
  virtual ~WorkerEngine() = default;  // Shutdown(0).
  WorkerEngine(const WorkerEngine&) = delete;
  WorkerEngine& operator=(const WorkerEngine&) = delete;

  // Runs one request; returns when it is done. Thread-safe.
  // INVALID_ARGUMENT naming field, value and what was expected; RESOURCE_EXHAUSTED when the queue
  // is full, the request would wait too long, another tenant's request took its place, or the KV
  // pool is too small for it; UNAVAILABLE while shutting down. A request that was cancelled or ran
  // into its deadline is no error: its finish_reason is "cancelled" or "deadline".
  virtual Result<GenerateSummary> Generate(const GenerateRequest& request,
                                           const GenerateCallbacks& callbacks) = 0;

  // Waits until no request runs or waits, finished turns are prefilled and pushes are through.
  // False when `timeout` passed before.
  virtual bool WaitIdle(std::chrono::milliseconds timeout) = 0;

  virtual Info GetInfo() const = 0;
  virtual Stats GetStats() const = 0;
  virtual Load GetLoad() const = 0;
  // The most that the process takes, and into `account` what the engine's items take now.
  virtual MemoryAccount::Bounds memory_bounds() const = 0;
  virtual void MeasureMemory(MemoryAccount* account) const = 0;
  virtual const model::Model& model() const = 0;

  // Refuses new requests, lets accepted ones finish and pushes go out until `drain` has passed,
  // then cancels what is left. Idempotent.
  virtual void Shutdown(std::chrono::milliseconds drain) = 0;

 protected:
  WorkerEngine() = default;
};

// Calls f(const Statistic&, value) for each row of the tables, in their order.
template <typename Visitor>
void ForEachStatistic(const WorkerEngine::Stats& stats, Visitor&& f) {
  CAIRN_WORKER_STATISTICS(CAIRN_STATISTIC_VISIT)
  ForEachStatistic(stats.reading, f);
  ForEachStatistic(stats.push, f);
  ForEachStatistic(stats.spill, f);
}

}  // namespace cairn::worker
