#pragma once
// A worker that takes time by a formula, under the policies of a real one.

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "benchmarks/model/requests.h"
#include "common/tenants/tenant_accounts.h"
#include "services/router/policy/worker_load.h"
#include "services/worker/scheduling/batch_scheduler.h"
#include "services/worker/scheduling/prompt_queue.h"

namespace cairn::simulated {

// Seconds, and tokens per second.
struct WorkerSpeeds {
  double step = 0.008;
  double decode = 0.00015;
  double prefill_rate = 8000;
  int64_t step_tokens = 2048;    // The most prompt tokens of a step.
  double context_unit = 60'000;  // A token at this context takes twice as long.
  double fetch_rate = 160'000;
  int64_t cache_tokens = 3'000'000;

  double PrefillSeconds(int64_t position, int64_t tokens) const {
    const double middle = static_cast<double>(position) + static_cast<double>(tokens) / 2;
    return static_cast<double>(tokens) / prefill_rate * (1 + middle / context_unit);
  }
  double DecodeSeconds(int64_t context) const {
    return decode * (1 + static_cast<double>(context) / context_unit);
  }
  // Everything takes `factor` times as long.
  WorkerSpeeds Slower(double factor) const;
};

// Blocks of prompts, the least recently used evicted first.
class LruBlocks {
 public:
  explicit LruBlocks(int64_t tokens) : capacity_(static_cast<size_t>(tokens / kTraceBlock)) {}
  // Blocks at the beginning that are there.
  size_t Match(std::span<const uint64_t> blocks) const;
  void Use(std::span<const uint64_t> blocks);

 private:
  const size_t capacity_;
  std::list<uint64_t> order_;  // Last used first.
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> where_;
};

struct WorkerOptions {
  WorkerSpeeds speeds;
  bool first_in_first_out = false;  // Instead of PromptOrder.
  worker::PromptQueue::Options queue = {.capacity = 1 << 20};
  size_t max_running = 256;
  // Prompts get nearly all of the time, as in an engine whose budget is in tokens.
  double decode_share = 0.05;
};

// The answer to a request.
struct Answered {
  size_t request = 0;
  double first_token = 0;  // Times since the beginning.
  double last_token = 0;
};

// A request has this many tokens now.
struct Generated {
  size_t request = 0;
  int64_t tokens = 0;
};

// The present state of a worker, as rules of other routers want it.
struct WorkerFacts {
  int64_t waiting = 0;         // Requests that the worker has not taken up.
  int64_t not_begun = 0;       // The same, and those it has taken up without computing any of them.
  int64_t requests = 0;        // That wait or run.
  int64_t prefill_tokens = 0;  // Tokens of prompts that are not computed yet.
  int64_t resident_tokens = 0;  // Tokens of prompts and answers of all requests, at their ends.
  double kv_use = 0;            // The share of the cache's room that running requests use: 0 to 1.
};

// Not thread-safe.
class WorkerModel {
 public:
  // `requests` must outlive it. More may be added between two calls.
  WorkerModel(const WorkerOptions& options, const std::vector<Request>& requests);

  // False: refused. `displaced`: a request that lost its place.
  bool Arrive(size_t request, double now, std::optional<size_t>* displaced);
  // When the step under way ends; nullopt: the worker is idle and nothing waits.
  std::optional<double> next_event() const { return step_end_; }
  // Ends the step, begins the next one. Answers that are complete go to `done`, and each new token
  // to `generated`.
  void Step(double now, std::vector<Answered>* done, std::vector<Generated>* generated = nullptr);

  router::WorkerLoad Report() const;
  WorkerFacts Facts() const;
  int64_t CachedTokens(const Request& request) const;
  double busy_seconds() const { return busy_seconds_; }
  const WorkerOptions& options() const { return options_; }

 private:
  struct Run {
    size_t request = 0;
    uint64_t id = 0;
    worker::PromptClaim claim;
    double ready = 0;      // Its fetch is over.
    int64_t position = 0;  // Tokens that are there.
    int64_t generated = 0;
    double first_token = 0;
    int64_t rows = 0;  // In the step under way.
  };

  void Start(double now);
  void BeginStep(double now);
  void EndStep(double now, std::vector<Answered>* done, std::vector<Generated>* generated);
  std::vector<worker::PromptClaim> Prompts() const;
  worker::Scheduler::Candidate CandidateOf(const Run& run) const;

  const WorkerOptions options_;
  const std::vector<Request>& requests_;
  TenantAccounts accounts_;
  worker::BatchScheduler scheduler_;
  worker::PromptQueue queue_;
  LruBlocks cache_;
  std::vector<Run> running_;
  uint64_t next_id_ = 0;
  std::optional<double> step_end_;
  double step_seconds_ = 0;  // 0: no pass is under way, only a wait for a fetch.
  worker::PassShape pass_;
  double busy_seconds_ = 0;
};

}  // namespace cairn::simulated
