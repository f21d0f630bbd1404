#pragma once
// A matched prefix on its way into the sequence.
//
// It may come from both ends: its front is computed, block by block, while its tail streams in
// (session/fetch_plan.h). Then the rest of the prompt is computed, layer by layer as the fetch
// brings them.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cairn/common/status.h"
#include "services/worker/engine/prompt_work.h"
#include "services/worker/session/prefix_session.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread. Destroying it stops the fetch and waits until nothing
// writes to the sequence's pages any more.
class PromptFetch {
 public:
  enum class Way : uint8_t {
    kPolled,      // The engine does other work until the fetch is over.
    kOverlapped,  // The rest of the prompt is computed on what the fetch brings.
    kBothEnds,    // And so are blocks of the prefix's front, while that is faster.
  };
  // `held`: blocks that are in the sequence already, fewer than matched. `work` must outlive it.
  PromptFetch(PromptWork& work, PrefixSession::Match match, uint32_t held, Way way);

  enum class Progress : uint8_t {
    kWaiting,  // For fetched bytes.
    kGaveWay,  // Others want to run: it is kPolled from now on.
    // The request was stopped. The blocks in the sequence may stand on KV that never came.
    kStopped,
    kEnded,  // Finish says what came of it.
  };
  // Goes on. A fetch that is not polled ends or gives way in one call, which may wait; not so with
  // others that run, which have come since the last call.
  Progress Next(bool alone);
  // When to call Next again although nothing arrives.
  TimePoint WakeAt() const { return fetch_->PollDeadline(); }

  struct End {
    uint32_t blocks = 0;    // That are there, from the prompt's first.
    uint32_t front = 0;     // The first ones of these that were computed, or there before.
    bool computed = false;  // The rest of the prompt was computed on all of the matched blocks.
    bool decoded = false;   // Blocks were decoded from a lossy form,
    bool as_pushed = true;  // and all of their slices were in the codec in which parts are pushed.
  };
  // After kEnded, once: nothing writes to the pages any more. Fills in the report.
  End Finish();

 private:
  using GiveWay = std::function<bool()>;  // True: others want to run, so waiting must end.
  Progress Overlap();
  Progress PollFromNowOn();
  // Computes blocks of the front until the fetch is better waited for, or is over.
  Status ComputeFront(const GiveWay& give_way);
  // Computes the rest of the prompt on what the fetch brings.
  Status ComputeRest(const GiveWay& give_way);
  // Computes from the sequence's length to `end` tokens at once, if anything is left.
  Status Prefill(int64_t end, const std::function<Status(int)>& before_layer);

  PromptWork& work_;
  const int64_t block_tokens_;
  const uint32_t held_;
  const uint32_t matched_;
  Way way_;
  uint32_t front_;  // Blocks that are there: fetched whole, or computed.
  // The number of blocks that were to be computed before anything was measured.
  std::optional<uint32_t> first_target_;
  bool computed_ = false;
  std::unique_ptr<PrefixFetch> fetch_;
};

}  // namespace cairn::worker
