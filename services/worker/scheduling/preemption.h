#pragma once
// Which running request gives its place and its pages to one that waits.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "services/worker/scheduling/prompt_order.h"
#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// The running request to park for `waiting`, as an index; nullopt: none. Only one whose priority,
// as far as it counts before other tenants, is lower: so two requests never park each other in
// turns. Among the lowest ones, the one with the least KV: it is the cheapest to park and to bring
// back.
inline std::optional<size_t> ChooseVictim(std::span<const Scheduler::Candidate> running,
                                          const PromptClaim& waiting, const PromptOrder& order) {
  const auto counted = [&](const PromptClaim& claim) { return -order.Rank(claim, 0, {}).priority; };
  const int32_t bound = counted(waiting);
  std::optional<size_t> victim;
  for (size_t i = 0; i < running.size(); ++i) {
    const Scheduler::Candidate& one = running[i];
    const int32_t priority = counted(one.claim);
    if (one.ending || !one.can_park || priority >= bound) continue;
    if (victim) {
      const int32_t lowest = counted(running[*victim].claim);
      if (priority > lowest || (priority == lowest && one.position >= running[*victim].position)) {
        continue;
      }
    }
    victim = i;
  }
  return victim;
}

// The running request to park because others find no page for their next token, as an index;
// nullopt: none of them lacks one, or nobody can give any. Of the lowest priorities, as far as they
// count, the one that began last, which may be one that lacks a page itself. So the first one of
// the greatest priority always goes on.
inline std::optional<size_t> ChooseGiver(std::span<const Scheduler::Candidate> running,
                                         const PromptOrder& order) {
  if (std::ranges::none_of(running, &Scheduler::Candidate::starved)) return std::nullopt;
  std::optional<size_t> giver;
  std::pair<int32_t, uint64_t> best;
  for (size_t i = 0; i < running.size(); ++i) {
    const Scheduler::Candidate& one = running[i];
    if (one.ending || !one.can_park) continue;
    const std::pair<int32_t, uint64_t> rank{order.Rank(one.claim, 0, {}).priority, one.id};
    if (giver && rank <= best) continue;
    giver = i;
    best = rank;
  }
  return giver;
}

}  // namespace cairn::worker
