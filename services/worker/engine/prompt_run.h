#pragma once
// One prompt on its way through PromptKv, in steps that can be interleaved with other prompts.
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
// blocks. kChunk yields the rest of the prompt as chunks for Transformer::Forward.
//
// A run that is alone when its fetch begins overlaps fetching with computing, layer by layer, as
// prompt_kv.h describes: kFetching is then one step, which may wait until the fetch ends or until
// other requests come. A run that shares the engine never waits for fetched bytes: it says kWaiting
// until the fetch is over, and computes then. Both ways give the same KV.
//
// Prompts that begin alike compute what they share once. A run publishes each block that it has
// computed under its key of exact lineage (KvSequence::Publish), and takes blocks that others have
// published instead of computing them. It waits for blocks that another run computes in the same
// round. So a late prompt joins at the block under way, and if the run that computes is cancelled
// or fails, another one goes on. Only computed blocks of exact lineage are shared: with a lossy
// recipe a run for which the node had decoded blocks neither takes nor publishes any.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/push_pause.h"
#include "services/worker/engine/step.h"

namespace cairn::worker {

// Not thread-safe: the thread that uses its PromptKv. Destroying it stops the fetch and waits until
// nothing writes to the sequence's pages any more.
class PromptRun {
 public:
  enum class State : uint8_t { kMatch, kAwaiting, kFetching, kChunk, kFinished };

  // `kv` and what the request points to must outlive it.
  PromptRun(PromptKv& kv, PromptKv::Request request);
  ~PromptRun();
  PromptRun(const PromptRun&) = delete;
  PromptRun& operator=(const PromptRun&) = delete;

  // Does one piece of work. `max_rows`: tokens that a chunk may have. `alone`: no other run waits
  // to be stepped, so a fetch that begins now may overlap with computing. REQUIRES: the last chunk
  // was given to Computed.
  Step Next(int64_t max_rows, bool alone);
  // The chunk of the last step went through the forward pass with this result.
  void Computed(const Status& status, const Pass& pass);

  // Waits at most 10 ms for fetched bytes, when the last step was kWaiting. False: nothing is
  // fetched.
  bool WaitBriefly();

  State state() const { return state_; }
  // Another worker computes the blocks that are missing now.
  bool awaits() const {
    return request_.await > Duration(0) &&
           (state_ == State::kAwaiting || state_ == State::kFetching);
  }
  // Complete when the state is kFinished.
  PromptKv::Report& report() { return report_; }

 private:
  friend class PromptKv;

  void Match(bool alone);
  // Takes deeper matches that somebody computed over decoded blocks. Only for lossy codecs.
  void MatchFurther(PrefixSession::Match* match);
  void StartFetch(PrefixSession::Match match, bool alone);
  Step NextFetching();
  // Another worker may still bring blocks after the first `held`.
  bool MayAwait(uint32_t held, MissReason reason) const;
  void StartAwait(uint32_t held);
  Step NextAwaiting(bool alone);
  // Tells others that this run computes what the node does not have.
  void Announce();
  // For a run that hands over: the blocks before `end` are there.
  void PushNow(int64_t end);
  // Says whether others want to run: then waiting and computing in one step ends.
  bool GiveWay();
  // Computes on what the fetch brings, while it runs. False: not to be settled now, since it was
  // cancelled and is finished, or since others have come and the rest is polled.
  bool Overlap();
  // The fetch is over: notes what came of it, and goes on with what is missing. `wait`: for what
  // can still come.
  void SettleFetch(bool wait);
  void NoteFetched(const PrefixFetch::Outcome& outcome);
  // Computes blocks of the front until the fetch is better waited for, or is over.
  Status ComputeFront();
  // Computes the rest of the prompt on what the fetch brings.
  Status ComputeRest();
  // Computes from the sequence's length to `end` tokens at once, if anything is left.
  Status Prefill(int64_t end, const std::function<Status(int)>& before_layer);
  void NotePrefill(int64_t begin, TimePoint start);

  void BeginChunks();
  Step NextChunk(int64_t max_rows);
  // Takes the next blocks that others have published.
  void AdoptBlocks();
  // The part of `count` tokens from the sequence's length on that nobody else has or computes.
  int64_t Unshared(int64_t count) const;
  // Others wait for the blocks of the chunk, until Unclaim.
  void Claim();
  void Unclaim();
  // Blocks [begin, end) are computed: others may have them.
  void Publish(int64_t begin, int64_t end);
  // All chunks are computed, or `status` says why not.
  void EndChunks(const Status& status);
  void Finish();

  PromptKv& kv_;
  const PromptKv::Request request_;
  KvSequence& sequence_;
  const bool use_cache_;
  const int64_t total_;  // Tokens of the prompt.
  const int64_t held_;   // Tokens that the sequence began with.
  const TimePoint start_;
  std::optional<PushPause> pause_;
  std::vector<BlockKey> keys_;        // The keys of all full blocks; none without the cache.
  std::span<const BlockKey> wanted_;  // The keys of the blocks that may be fetched.
  // Under which full blocks are shared with other runs: their keys of exact lineage. Empty: nothing
  // is shared.
  std::vector<BlockKey> names_;
  size_t most_adopted_ = 0;    // The last token is computed when its logits are wanted.
  std::vector<bool> adopted_;  // By block.
  std::vector<double> block_seconds_;

  State state_ = State::kMatch;
  std::shared_ptr<const void> promise_;  // To push what was announced.
  int64_t pushed_ = 0;                   // Blocks that need no push any more.
  const TimePoint await_until_;
  std::unique_ptr<AwaitedBlocks> awaited_;
  uint32_t held_blocks_ = 0;  // Fetched before the fetch under way.
  std::unique_ptr<PrefixFetch> fetch_;
  bool overlap_ = false;
  bool choose_ = false;
  bool gave_way_ = false;
  uint32_t matched_ = 0;
  uint32_t exact_ = 0;  // The part of the matched blocks that is of exact lineage.
  // Keys under which the matched blocks were found. Lossy codecs only.
  std::vector<BlockKey> path_;
  bool as_pushed_ = true;  // No fetched slice was in the codec of a later rung.
  uint32_t front_ = 0;     // Blocks there: fetched whole, or computed.
  // The number of blocks that were to be computed before anything was measured.
  std::optional<uint32_t> first_target_;
  bool turned_lost_ = false;  // Turned blocks had to be computed again, so their bytes differ.
  // Published selections watch. Not if something was fetched, since they have not seen its queries.
  bool selecting_ = false;

  // kChunk.
  std::optional<int64_t> check_loans_;  // Tokens that stay if the node took lent memory back.
  int64_t chunks_begin_ = 0;
  TimePoint chunks_start_;
  int64_t chunk_tokens_ = 0;  // The tokens of the chunk that is being computed.
  std::span<const BlockKey> claimed_;

  PromptKv::Report report_;
};

}  // namespace cairn::worker
