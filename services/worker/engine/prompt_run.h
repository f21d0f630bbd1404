#pragma once
// The way of most prompts: what the cache node has is fetched, the rest is computed.
//
//   kMatch -> kFetching -> kChunk -> kFinished
//      |        ^  |         ^
//      |        |  v         |
//      |     kAwaiting ------+
//      +--- nothing found ---+
//
// kAwaiting, for a request that says so: another worker computes the next blocks, and they are
// fetched as they come (docs/operate/disaggregation.md).
//
// kMatch asks the cache node (one step, within the match deadline). kFetching waits for matched
// blocks (prompt_fetch.h). kChunk yields the rest of the prompt as chunks for Transformer::Forward.
//
// A run that is alone when its fetch begins overlaps fetching with computing: kFetching is then one
// step, which may wait until the fetch ends or until other requests come. A run that shares the
// engine never waits for fetched bytes: it says kWaiting until the fetch is over, and computes
// then. Both ways give the same KV.
//
// Prompts that begin alike compute what they share once (shared_blocks.h). A run publishes each
// block that it has computed under its key of exact lineage, and takes blocks that others have
// published instead of computing them. It waits for blocks that another run computes in the same
// round. So a late prompt joins at the block under way, and if the run that computes is cancelled
// or fails, another one goes on. With a lossy recipe a run for which the node had decoded blocks
// neither takes nor publishes any.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "services/worker/engine/prompt_fetch.h"
#include "services/worker/engine/prompt_push.h"
#include "services/worker/engine/prompt_services.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/engine/prompt_work.h"
#include "services/worker/engine/push_pause.h"
#include "services/worker/engine/shared_blocks.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread.
class PromptRun final : public PromptWay {
 public:
  // `services` and what the request points to must outlive it.
  PromptRun(PromptServices& services, PromptRequest request);

  Step Next(int64_t max_rows, bool alone) override;
  void Computed(const Status& status, const Pass& pass) override;
  TimePoint WakeAt() const override;
  bool finished() const override { return state_ == State::kFinished; }
  PromptReport TakeReport() override { return std::move(work_.report); }
  bool begun() const override { return state_ != State::kMatch; }
  bool awaits() const override {
    return work_.request.await > Duration(0) &&
           (state_ == State::kAwaiting || state_ == State::kFetching);
  }

 private:
  enum class State : uint8_t { kMatch, kAwaiting, kFetching, kChunk, kFinished };

  void Match(bool alone);
  // Takes deeper matches that somebody computed over decoded blocks. Only for lossy codecs.
  void MatchFurther(PrefixSession::Match* match);
  void StartFetch(PrefixSession::Match match, bool alone);
  PromptFetch::Way ChooseWay(bool alone) const;
  Step NextFetching(bool alone);
  // The fetch is over: notes what came of it, and goes on with what is missing.
  void SettleFetch();
  // Another worker may still bring blocks after the first `there`.
  bool MayAwait(uint32_t there, MissReason reason) const;
  void StartAwait(uint32_t there);
  Step NextAwaiting(bool alone);

  void BeginChunks();
  Step NextChunk(int64_t max_rows);
  // All chunks are computed, or `status` says why not.
  void EndChunks(const Status& status);

  // The prompt is over, with the report's status.
  void Finish();
  uint32_t CountComputed() const;
  // Under which keys its blocks are pushed. None: lineage_ says why there are no such keys.
  std::vector<BlockKey> KeysToPush() const;
  // The prompt's first blocks, which the node has under these keys.
  int64_t BlocksAtNode() const;
  void EndWatch();

  TimePoint await_until() const { return work_.start + work_.request.await; }

  PromptWork work_;
  const int64_t block_tokens_;
  const int64_t held_blocks_;  // That the sequence began with.
  // The keys of all full blocks, of exact lineage. None without a cache.
  const std::vector<BlockKey> keys_;
  const std::span<const BlockKey> wanted_;  // The keys of the blocks that may be fetched.
  std::optional<PushPause> pause_;
  SharedBlocks shared_;
  PromptPush push_;
  // Published selections look at the queries. Null: not of this prompt, or they have missed some.
  std::unique_ptr<StageWatch> watch_;

  State state_ = State::kMatch;
  uint32_t matched_ = 0;        // Blocks.
  uint32_t exact_ = 0;          // The part of the matched blocks that is of exact lineage.
  std::vector<BlockKey> path_;  // Keys of the matched blocks. Lossy codecs only.
  Lineage lineage_ = Lineage::kExact;
  uint32_t arrived_ = 0;                    // Blocks that were there before the fetch under way.
  std::unique_ptr<PromptFetch> fetch_;      // kFetching.
  std::unique_ptr<AwaitedBlocks> awaited_;  // kAwaiting.

  struct Chunks {
    int64_t begin = 0;  // Tokens that were there before the first one.
    TimePoint start;
    int64_t under_way = 0;  // Tokens of the chunk that is being computed.
    // Tokens that stay if the node took lent memory back. nullopt: nothing was lent.
    std::optional<int64_t> sure;
  };
  Chunks chunks_;  // kChunk.
};

}  // namespace cairn::worker
