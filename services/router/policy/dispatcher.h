#pragma once
// Decides which worker gets a request, from what the workers report and from what this router has
// sent them itself.
//
//   registry ── Report, Remove ──►  Dispatcher  ◄── Decide ──────── engine
//                                               ◄── OnEnd ─────────
//
// A request counts at its worker as soon as Decide has returned: a burst does not go to one worker
// because its next report has not come yet. Several routers share nothing but the workers' reports.
//
// When a worker is picked, a second one may compute the prompt for it (pairing.h). Both count then,
// each for its part.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "common/tenants/tenant_terms.h"
#include "services/router/policy/candidate.h"
#include "services/router/policy/pairing.h"
#include "services/router/policy/pending_prompts.h"
#include "services/router/policy/policy.h"
#include "services/router/policy/usage_window.h"
#include "services/router/policy/worker_state.h"

namespace cairn::router {

// The first tokens of a prompt that a worker need not compute, by where they are: all of `memory`
// and `disk` are at its own nodes, in any order; `elsewhere` follows them, and its node can get
// these from another one.
struct HeldTokens {
  uint32_t memory = 0;
  uint32_t disk = 0;
  uint32_t elsewhere = 0;
};

// A worker that may get the request.
struct Offer {
  std::string worker = {};  // Address.
  bool usable = true;       // False: it fails, drains, or has been tried.
  std::string reason = {};  // Why an offer is unusable, for people.
  HeldTokens held = {};     // More than the prompt has counts as all of it.
  // Workers of one site read what the others write: they have the same cache node and namespace. 0:
  // none.
  uint32_t site = 0;
  uint32_t block_tokens = 0;  // Tokens of a block of its namespace.
  // It may compute the prompt for a usable worker of its site. Such a worker is not usable itself.
  bool prefills = false;
};

struct Ask {
  uint32_t prompt_tokens = 0;
  std::optional<uint32_t> max_tokens = {};  // Limit for the tokens of the answer.
  int32_t priority = 0;
  // The tenant of the request: its priority counts before other tenants' requests as far as the
  // tenant's terms say. Empty: nobody knows, and the priority counts as it is.
  std::string tenant = {};
  std::vector<Offer> offers = {};
  // False: the request was accepted before and its worker failed. It counts as no new arrival and
  // is not shed.
  bool first_try = true;
  // False: nobody will call OnEnd (Router::PickWorker). The request counts until the worker's
  // reports must show it.
  bool followed = true;
};

struct Decision {
  enum class Kind : uint8_t {
    kPicked,
    kShed,      // Every usable worker would let it wait for too long, by its tenant's share.
    kNoWorker,  // None is usable.
  };
  Kind kind = Kind::kNoWorker;
  size_t picked = 0;    // An index into the offers. For kPicked.
  uint64_t ticket = 0;  // For OnEnd. 0: none.
  // The prompt is computed by another worker than the picked one, since that costs less.
  struct Prefill {
    size_t worker = 0;           // An index into the offers.
    uint64_t ticket = 0;         // The ticket of this prefill. 0: none.
    double seconds = 0;          // Expected until all of it is computed, the queue included.
    uint32_t cached_tokens = 0;  // Tokens of the prompt that it is not expected to compute.
  };
  std::optional<Prefill> prefill = {};
  // Expected until the request's prefill begins, by its priority, at the worker where that is
  // least; where that is too long, by its tenant's share. 0: kNoWorker.
  double wait_seconds = 0;
  Duration retry_after{0};                 // For kShed: at least a second.
  std::vector<Candidate> candidates = {};  // One for each offer, in the order of the offers.
};

// How a request ended.
struct RequestEnd {
  uint32_t generated_tokens = 0;
  // False: it failed or was cancelled, so that its length says nothing about answers.
  bool complete = false;
  uint32_t fetched_tokens = 0;  // Tokens of the prompt that the worker fetched.
  double fetch_seconds = 0;     // The time that this took.
};

// Thread-safe. No call blocks for longer than a few microseconds for each worker.
class Dispatcher {
 public:
  struct Options {
    // A request is shed if it would wait longer everywhere. 0: none is shed.
    double max_wait_seconds = 0;
    std::map<std::string, TenantTerms> tenants = {};  // By name. Others have the defaults.
    // Reports that are older than this say nothing any more: then the router's own picks count.
    Duration stale_after = std::chrono::seconds(3);
    // A request that was sent within this time before a report came may be missing in it.
    Duration report_delay = std::chrono::milliseconds(10);
    // Until a worker reports speeds, and of what it fetches until one fetch was measured.
    double prefill_tokens_per_second = 2'000;
    double memory_tokens_per_second = 160'000;
    double disk_tokens_per_second = 80'000;
    double elsewhere_tokens_per_second = 32'000;
    double answer_tokens = 300;  // Until one was complete.
  };

  // `clock` must outlive it. `seed`: of the random choices between equal workers.
  Dispatcher(const Options& options, std::unique_ptr<Policy> policy, const Clock* clock,
             uint64_t seed);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // A report of the worker has come. Workers come into being with their first report or offer.
  void Report(std::string_view worker, const WorkerLoad& load);
  // Forgets the worker: it is not configured any more. Its requests may still end.
  void Remove(std::string_view worker);

  Decision Decide(const Ask& ask);
  // The prompt of the request is computed: others do not wait for it any more. Unknown tickets are
  // ignored.
  void OnComputed(uint64_t ticket);
  // Once for each ticket, whatever became of the request. Unknown tickets are ignored.
  void OnEnd(uint64_t ticket, const RequestEnd& end);

  // The dispatcher's present assumptions.
  struct WorkerNumbers {
    std::string worker = {};
    double queue_seconds = 0;
    double requests = 0;
    bool reports = false;           // A report came within stale_after.
    double report_age_seconds = 0;  // The age of the last report. 0: none came.
    uint64_t picks = 0;             // Since it is known.
    uint64_t followed = 0;          // Requests whose end has not come.
  };
  // Decisions by how much of the prompt the picked worker held.
  struct Picks {
    uint64_t held_most = 0;     // As much as any other usable one.
    uint64_t held_less = 0;     // Less than another usable one.
    uint64_t held_nowhere = 0;  // No usable one held any of it.
  };
  struct Numbers {
    double arrivals_per_second = 0;
    double use = 0;
    double answer_tokens = 0;  // Mean of complete answers, recent ones count more.
    uint64_t shed = 0;
    Picks picks;
    std::vector<WorkerNumbers> workers = {};  // By name.
  };
  Numbers numbers() const;
  std::string_view policy() const { return policy_name_; }

 private:
  struct Ticket {
    std::string worker;
    // The generation of the worker: it may have been removed and come back.
    uint64_t generation = 0;
    HeldTokens held;
    PendingPrompts::Claim claim;
    bool pending = false;  // Its prompt is not computed.
    double seconds = 0;    // Seconds of prefill.
  };
  // A usable offer.
  struct Usable {
    size_t offer = 0;  // Its index.
    WorkerState* state = nullptr;
    HeldTokens held;  // Within the prompt.
  };
  TenantTerms TermsOf(std::string_view tenant) const;
  PendingPrompts::Claim ClaimOf(const Ask& ask) const;
  // How long the request would wait where that is least.
  double WaitOf(const Ask& ask, const Situation& situation, std::span<const Usable> usable,
                TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The ticket's worker, or nullptr: it has left or was replaced.
  WorkerState* WorkerOf(const Ticket& ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StopPending(Ticket* ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WorkerState& StateOf(std::string_view worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WorkerView ViewOf(const Ask& ask, const HeldTokens& held, const WorkerState& state,
                    TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sheds, or picks one of the usable offers, whose views these are.
  void Choose(const Ask& ask, const Situation& situation, std::span<const Usable> usable,
              TimePoint now, Decision* decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts the request at the picked worker, or parts of it at two if that costs less.
  void Send(const Ask& ask, const WorkerView& view, Usable picked, TimePoint now,
            Decision* decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The least busy worker that may compute prompts for those of this site; nullopt: none may.
  std::optional<Usable> PrefillWorkerAt(const Ask& ask, uint32_t site, TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts so much prefill at the worker. The ticket of it, if its end is followed.
  uint64_t Count(const Ask& ask, const Usable& worker, double prefill_seconds, TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountPick(std::span<const WorkerView> workers, const WorkerView& picked)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Measure(const HeldTokens& held, const RequestEnd& end, WorkerState* state) const;
  double Use(TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Clock* const clock_;
  const std::unique_ptr<Policy> policy_;
  const std::string policy_name_;
  const Pairing pairing_;
  mutable Mutex mu_;
  Random random_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, WorkerState, std::less<>> workers_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Ticket> tickets_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t next_generation_ ABSL_GUARDED_BY(mu_) = 1;
  ArrivalWindow arrivals_ ABSL_GUARDED_BY(mu_);
  double answer_tokens_ ABSL_GUARDED_BY(mu_);
  uint64_t shed_ ABSL_GUARDED_BY(mu_) = 0;
  Picks picks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::router
