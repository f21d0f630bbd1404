#pragma once
// One prompt under way, as the parts of its PromptRun see it.

#include <cstdint>
#include <vector>

#include "cairn/common/clock.h"
#include "services/worker/engine/prompt_services.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/session/fetch_progress.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread.
struct PromptWork {
  // `all` and what `wanted` points to must outlive it.
  PromptWork(PromptServices& all, PromptRequest wanted);
  PromptWork(const PromptWork&) = delete;
  PromptWork& operator=(const PromptWork&) = delete;

  PromptServices& services;
  const PromptRequest request;
  KvSequence& sequence;  // The request's.
  const TimePoint start;
  std::vector<double> block_seconds;  // That each block took to compute. 0: it was not computed.
  PromptReport report;

  int64_t tokens() const { return std::ssize(request.tokens); }
  bool uses_cache() const { return request.use_cache && services.session != nullptr; }
  bool stopped() const { return request.stop && request.stop(); }
  // Ends a wait when it is stopped. Must not outlive this.
  FetchInterrupt Stop() const {
    return {.wanted = [this] { return stopped(); }, .at = request.stop_at};
  }
  // Tokens from `begin` to the sequence's length were computed since `from`: for the timeline.
  void NoteComputed(int64_t begin, TimePoint from);
};

}  // namespace cairn::worker
