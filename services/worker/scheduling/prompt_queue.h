#pragma once
// The prompts that wait, as numbers: which one goes next, and which ones are refused.
//
//   Put ──► refused: too many wait, of the tenant or in all, or it would wait too long
//       ──► waits; may push out one of a tenant that has more than its share of the places
//   Take ─► the first one in the PromptOrder that there is room for
//
// A prompt that there is no room for lets others begin before it, but only as often as kMostPasses
// says, and only those whose priority counts as much: so a large one does not stop the small ones
// behind it, and small ones do not keep it out. (Backfilling, as batch schedulers do: Mu'alem and
// Feitelson, IEEE TPDS 12(6), 2001, but with a count, since nobody knows how long answers get.)
//
// At overload a request is refused by the time that it would wait, so that those that are accepted
// wait as long as at saturation, and the refused client can go elsewhere at once.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "common/tenants/tenant_accounts.h"
#include "services/worker/scheduling/prompt_order.h"
#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// Not thread-safe. Tenants of the claims have entered the accounts, and leave them later than the
// prompt leaves the queue.
class PromptQueue {
 public:
  struct Options {
    size_t capacity = 16;        // Prompts that wait.
    size_t tenant_capacity = 0;  // Limit for one tenant. 0: as many as in all.
    // A prompt that would wait longer is refused. 0: none is refused for that.
    double max_wait_seconds = 0;
  };
  struct Prompt {
    uint64_t id = 0;  // Unique.
    PromptClaim claim;
    // When the answer must be complete, at the latest.
    TimePoint deadline = TimePoint::max();
    uint32_t passes = 0;  // Times that another one began before it. The queue counts.
  };
  // How often a prompt may be passed.
  static constexpr uint32_t kMostPasses = 16;

  // `accounts` must outlive it.
  PromptQueue(const Options& options, const TenantAccounts& accounts)
      : options_(options), accounts_(accounts), order_(accounts) {}

  // The engine's present work: what its running prompts have left to compute, and how many prompt
  // tokens it computes in a second while prompts wait. 0: not known, and then nothing is refused
  // for its wait.
  void SetRunning(std::vector<PromptClaim> running, double tokens_per_second);

  enum class Answer : uint8_t {
    kAccepted,
    kFull,        // All places are taken, and nobody who has more than its share waits.
    kTenantFull,  // The tenant has all the places that one may have.
    kTooLong,     // It would wait longer than max_wait_seconds, or than until its deadline.
  };
  struct Outcome {
    Answer answer = Answer::kAccepted;
    double wait_seconds = 0;             // That is expected for this prompt.
    double retry_seconds = 0;            // When refused: when it may be worth asking again.
    std::optional<uint64_t> pushed_out;  // Has lost its place to this one.
  };
  Outcome Put(const Prompt& prompt, TimePoint now);

  // The prompt that goes next, which leaves the queue. `fits`: whether there is room for it now;
  // null: there is. nullopt: none waits, or none may begin yet.
  std::optional<Prompt> Take(TimePoint now,
                             const std::function<bool(const Prompt&)>& fits = nullptr);
  // The prompt that would go next if there were room, which stays.
  std::optional<Prompt> First(TimePoint now) const;
  // False: it does not wait.
  bool Remove(uint64_t id);

  size_t size() const { return waiting_.size(); }
  const Options& options() const { return options_; }
  // In no particular order.
  std::vector<Prompt> All() const;
  // Seconds before a prompt with this claim would begin, if nobody else came.
  double ExpectedWait(const PromptClaim& claim, TimePoint now) const;
  // Seconds of the prompts that wait and that run.
  double BacklogSeconds() const;

 private:
  std::map<uint64_t, Prompt>::const_iterator FindFirst(TimePoint now) const;
  // The one to give its place to `prompt`; end(): none.
  std::map<uint64_t, Prompt>::const_iterator Surplus(const Prompt& prompt, TimePoint now) const;
  int32_t CountedPriority(const PromptClaim& claim) const;
  Outcome Refuse(Answer answer, double wait, double limit) const;

  const Options options_;
  const TenantAccounts& accounts_;
  const PromptOrder order_;
  std::map<uint64_t, Prompt> waiting_;  // By id.
  std::vector<PromptClaim> running_;
  double tokens_per_second_ = 0;
};

}  // namespace cairn::worker
