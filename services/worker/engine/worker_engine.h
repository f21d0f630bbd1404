#pragma once
// A worker without its network: a model, a KV pool, and a prefix session with a cache node.
//
// Requests wait in a bounded queue and run on the engine's own thread, in steps that a scheduler
// orders (../scheduling). While none is waiting, the
// engine prefills finished turns. A cache node that is away, slow or wrong costs at most the
// deadlines below and never changes an answer.
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
#include "cairn/common/status.h"
#include "common/tenants/tenant_accounts.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/memory_items.h"
#include "services/worker/engine/request.h"
#include "services/worker/reading/read_counters.h"
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

// What a worker is for, where prefill and decode are apart (docs/operate/disaggregation.md).
enum class WorkerRole : uint8_t {
  kBoth,
  kPrefill,  // Only requests with prefill_only.
  kDecode,   // None of these.
};
std::string_view Name(WorkerRole role);  // "both", "prefill", "decode".

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
    uint64_t device_kv_bytes = uint64_t{1} << 30;  // Of the device, for copies of pages.
    // KV memory. 0: two sequences of max_context, at least 256 MiB.
    uint64_t kv_pool_bytes = 0;
    uint32_t queue_capacity = 16;        // Requests that wait; running ones are not counted.
    uint32_t tenant_queue_capacity = 0;  // Of one tenant. 0: as many as in all.
    // A request that would wait longer is refused. 0: none is refused for that.
    Duration queue_max_wait = std::chrono::seconds(60);
    std::map<std::string, TenantTerms> tenant_terms = {};  // By tenant; others have the defaults.
    // Requests that run at the same time. 1: one at a time.
    uint32_t max_running = 1;
    // Memory for the KV of requests that gave their pages to more urgent ones. What does not fit is
    // computed again.
    uint64_t parking_bytes = 256ull << 20;
    // Of the time, what decodes get while prompts wait. More than 0, less than 1.
    double decode_share = 0.5;
    // Most memory that the process takes, all of it. 0: what the machine has left.
    uint64_t memory_limit = 0;
    // Of it, for requests that were decoded, and again for messages that arrive; less, where the
    // rest does not fit.
    uint64_t request_bytes = 0;
    uint64_t least_request_bytes = 0;
    uint32_t idle_turns = 4;  // Finished turns that wait for prefill; the oldest is dropped.
    std::string tenant = "default";
    std::string salt;  // Of the tenant's namespaces; see proto/cairn/v1/common.proto.
    // How KV is stored at the cache: common/recipe. A selection of tokens holds without a
    // cache, too.
    std::string recipe = "raw";
    // Folder of the files that recipes name by their digest: docs/methods/calibration.md.
    std::string calibration = "calibration";
    // Further recipes: what is computed over exact KV is pushed to a namespace of each, too.
    std::vector<std::string> publish = {};
    // How contexts are read by rows (reading/read_policy.h). Empty: all KV stays in the pool.
    std::string read_policy;
    // Near memory for that, shared evenly among max_running requests. 0: no limit. Only with
    // read_policy.
    uint64_t kv_budget = 0;
    std::string cache_address;  // For GetInfo only.
    WorkerRole role = WorkerRole::kBoth;
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
    WorkerRole role = WorkerRole::kBoth;
    std::optional<Digest> fingerprint;  // Of the namespace; nullopt without a cache.
  };

  // Totals since start unless said otherwise.
  struct Stats {
    uint64_t requests = 0;  // Finished, cancelled ones included.
    uint64_t requests_cancelled = 0;
    uint64_t requests_expired = 0;  // Past their deadline. Of `requests`.
    uint64_t requests_parked = 0;   // Times that a request gave its pages to a more urgent one.
    uint64_t requests_refused = 0;  // Too many wait, or it would have waited too long.
    uint64_t requests_failed = 0;   // Errors after the request was accepted.
    uint64_t prompt_tokens = 0;
    uint64_t fetched_tokens = 0;
    uint64_t computed_tokens = 0;
    uint64_t shared_tokens = 0;  // Of prompts, computed by another request at the same time.
    uint64_t chosen_tokens = 0;  // Of these: at the node, but computed, since that was sooner.
    uint64_t generated_tokens = 0;
    uint64_t far_tokens = 0;  // Of prompts whose contexts were read by rows.
    ReadCounters reading;     // Of finished requests.
    // On disk when their request had to wait; the node was asked to bring them to memory.
    uint64_t lookahead_blocks = 0;
    uint64_t idle_prefilled_tokens = 0;
    uint64_t idle_turns_dropped = 0;
    uint64_t queued_requests = 0;  // Now.
    uint64_t kv_pages_total = 0;
    uint64_t kv_pages_free = 0;  // Now.
    PrefixSession::Stats prefix;
    PushQueue::Stats push;
    SpillStats spill;
    Transformer::GraphStats graphs;
    std::vector<KvCodec::Stats> codecs;  // None without a cache.
  };

  // What the worker has to do now.
  struct Load {
    // Of the prompts that wait and that run, before those of a new request.
    double prefill_seconds = 0;
    uint64_t running_prompts = 0;  // Being matched, fetched or computed.
    uint64_t running_decodes = 0;
    uint64_t parked = 0;
    uint64_t parked_bytes = 0;
    uint64_t near_bytes = 0;  // What read policies keep of contexts.
    uint64_t kv_pages_total = 0;
    uint64_t kv_pages_free = 0;
    MeasuredRates rates;
    struct Queued {
      int32_t priority = 0;
      uint64_t requests = 0;
      uint64_t prefill_tokens = 0;  // As far as is known.
    };
    std::vector<Queued> queued;  // Greatest priority first; none without requests.
    std::string cache_node_id;   // Of the node that it reads from. Empty: none now.
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
  virtual const Model& model() const = 0;

  // Refuses new requests, lets accepted ones finish and pushes go out until `drain` has passed,
  // then cancels what is left. Idempotent.
  virtual void Shutdown(std::chrono::milliseconds drain) = 0;

 protected:
  WorkerEngine() = default;
};

}  // namespace cairn::worker
