#pragma once
// A prompt that is longer than the model's context: it loses its oldest tokens, all but the first
// block, and goes on over what the cache node has of the rest. The keys of these blocks are turned
// back to the positions that their tokens have now.
//
//   whole      | sinks | dropped ...... | kept, at the node ...... | new ... |
//                                         │ keys turned back by the dropped tokens
//   shortened  | sinks | kept ............................ | new ... |
//
// Turned blocks are pushed under keys of their own, and blocks that were computed over them too, so
// the next turn of a chat finds both. A key stands for one set of bytes: it is made of the block's
// own key and of how far it was turned.
//
// Difference from computing the shortened prompt: the kept rows were computed with the dropped
// tokens in view. In the first layer they are the same but for rounding, in later layers
// they still know of them.
//
// Sources: StreamingLLM (arXiv 2309.17453, section 3.2), which keeps first and newest tokens and
// counts positions in what is kept; CachedAttention (arXiv 2403.19708), which decouples positions
// from stored KV so that a shortened history stays valid. It stores keys before RoPE; here they are
// turned after it.

#include <cstdint>
#include <memory>
#include <utility>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/kernels/selection/selection_kernels.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/push_turn.h"

namespace cairn::worker {

// The services that turning needs. Everything outlives the prompts.
struct TurnServices {
  client::CacheClient& client;
  const PrefixSession& session;  // A session of a namespace with the recipe raw.
  const KvCodec& codec;
  const Clock& clock;
  Executor& executor;
  Wakeup& wakeup;   // The engine's.
  PushQueue& push;  // Turned prompts drive it, nobody else.
  const kernels::SelectionKernels& kernels;
  KvLayout kv;
  int32_t rope_dim = 0;
  float rope_base = 0;
  Duration match_deadline = std::chrono::milliseconds(500);
  Duration progress = std::chrono::seconds(1);   // Between two slices.
  Duration deadline = std::chrono::seconds(10);  // Limit for some blocks.
};

// The way of such a prompt: turns what the node has, in the background, then goes the usual way
// over it. As PromptWay. Not thread-safe: the engine's thread.
class TurnedPrompt final : public PromptWay {
 public:
  // `turn`: of the services' queue. Both must outlive it.
  TurnedPrompt(const TurnServices& services, PushTurn& turn, PromptTask task);
  ~TurnedPrompt() override;

  Step Next(int64_t max_rows, bool alone) override;
  void Computed(const Status& status, const Pass& pass) override { way_->Computed(status, pass); }
  TimePoint WakeAt() const override { return way_ != nullptr ? way_->WakeAt() : TimePoint::max(); }
  bool finished() const override { return way_ != nullptr && way_->finished(); }
  PromptReport TakeReport() override;
  bool begun() const override { return way_ != nullptr ? way_->begun() : turning_ != nullptr; }
  bool awaits() const override { return way_ != nullptr && way_->awaits(); }
  // A push under way would be waited for.
  bool stays() const override { return turning_ != nullptr; }

 private:
  struct Turning;

  const TurnServices& services_;
  PushTurn& turn_;
  PromptTask task_;
  uint32_t turned_blocks_ = 0;
  std::unique_ptr<Turning> turning_;  // Null: not begun, or over.
  std::unique_ptr<PromptWay> way_;    // Null: blocks are not turned yet.
};

// As PromptWays. Not thread-safe: the engine's thread.
class TurnedPrompts final : public PromptWays {
 public:
  explicit TurnedPrompts(const TurnServices& services) : services_(services) {}
  std::unique_ptr<PromptWay> New(PromptTask task) override {
    return std::make_unique<TurnedPrompt>(services_, turn_, std::move(task));
  }

 private:
  const TurnServices services_;
  PushTurn turn_;
};

}  // namespace cairn::worker
