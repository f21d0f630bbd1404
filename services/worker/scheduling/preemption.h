#pragma once
// Which running request gives its place and its pages to one that waits.

#include <cstddef>
#include <optional>
#include <span>

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

}  // namespace cairn::worker
