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
// What differs from computing the shortened prompt: the kept rows were computed with the
// dropped tokens in view. In the first layer they are the same but for rounding, in later layers
// they still know of them.
//
// Sources: StreamingLLM (arXiv 2309.17453, section 3.2), which keeps first and newest tokens and
// counts positions in what is kept; CachedAttention (arXiv 2403.19708), which decouples positions
// from stored KV so that a shortened history stays valid. It stores keys before RoPE; here they are
// turned after it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/kernels/selection/selection_kernels.h"
#include "model/tokenizer.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// What turning needs. Everything outlives the calls.
struct TurnServices {
  client::CacheClient& client;
  const PrefixSession& session;  // A session of a namespace with the recipe raw.
  const KvCodec& codec;
  PushQueue& push;  // Nobody else drives it.
  const kernels::SelectionKernels& kernels;
  KvLayout kv;
  int32_t rope_dim = 0;
  float rope_base = 0;
  Duration match_deadline = std::chrono::milliseconds(500);
  Duration progress = std::chrono::seconds(1);   // Between two slices.
  Duration deadline = std::chrono::seconds(10);  // Limit for some blocks.
};

struct TurnedBlocks {
  // The keys of all full blocks of the shortened prompt. Empty: nothing was turned, and they are
  // those of any prompt of these tokens.
  std::vector<BlockKey> keys;
  uint32_t blocks = 0;  // The number of first blocks that are at the node: sinks and turned ones.
};

// Sees to it that the node has the turned blocks of `whole`, of which the first block and what
// stands behind `dropped` more tokens is kept. A node that does not do its part costs deadlines and
// turned blocks. The thread that drives `push`.
TurnedBlocks TurnBack(const TurnServices& services, std::span<const TokenId> whole, int64_t dropped,
                      const std::string& trace);

// The way of such a prompt: turns what the node has, then goes the usual way over it. As PromptWay.
class TurnedPrompt final : public PromptWay {
 public:
  // `services` must outlive it.
  TurnedPrompt(const TurnServices& services, PromptTask task)
      : services_(services), task_(std::move(task)) {}

  Step Next(int64_t max_rows, bool alone) override;
  void Computed(const Status& status, const Pass& pass) override { way_->Computed(status, pass); }
  TimePoint WakeAt() const override { return way_ != nullptr ? way_->WakeAt() : TimePoint::max(); }
  bool finished() const override { return way_ != nullptr && way_->finished(); }
  PromptReport TakeReport() override;
  bool begun() const override { return way_ != nullptr && way_->begun(); }
  bool awaits() const override { return way_ != nullptr && way_->awaits(); }

 private:
  const TurnServices& services_;
  PromptTask task_;
  uint32_t turned_blocks_ = 0;
  std::unique_ptr<PromptWay> way_;  // Null: nothing was asked of the node yet.
};

// As PromptWays.
class TurnedPrompts final : public PromptWays {
 public:
  explicit TurnedPrompts(const TurnServices& services) : services_(services) {}
  std::unique_ptr<PromptWay> New(PromptTask task) override {
    return std::make_unique<TurnedPrompt>(services_, std::move(task));
  }

 private:
  const TurnServices services_;
};

}  // namespace cairn::worker
