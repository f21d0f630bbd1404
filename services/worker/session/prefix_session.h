#pragma once
// A worker's dealings with a cache node about prefixes: which blocks of a prompt it has, and
// bringing them into KV pages.
//
//   Keys(tokens) -> Match(keys) -> PrefixFetch, which fills pages in the background
//
// Nothing here fails a request: every trouble is a miss with a reason, and no call outlasts its
// deadline.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/types.h"
#include "cairn/common/clock.h"
#include "cairn/common/kv/answers.h"
#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/next_use.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/compute/slice_loader.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/cost_model.h"
#include "services/worker/session/fetch_pilot.h"
#include "services/worker/session/fetch_progress.h"
#include "services/worker/session/fetched_bytes.h"
#include "services/worker/session/kv_codec.h"

namespace cairn::client {
class CacheClient;
class FetchSink;
}  // namespace cairn::client

namespace cairn::worker {

class AwaitedBlocks;
class PrefixFetch;
struct AwaitedState;
struct PrefixFetchState;

class PrefixSession {
 public:
  struct Options {
    // For the first contact, when the session is made: how long to wait for a node that is away.
    std::chrono::milliseconds connect_deadline{1000};
    std::chrono::milliseconds match_deadline{50};
    // A fetch that brings nothing new for so long is over; longer when recomputing what it brings
    // would take more than four times as long, up to max_stall. A fetch may always take so long.
    std::chrono::milliseconds stall_deadline{250};
    std::chrono::milliseconds max_stall{2000};
    // Compute what is left of a prompt while later layers still arrive.
    bool overlap = true;
    // Compute the front of a matched prefix instead of fetching it, if that is faster.
    bool choose = true;
    // On the same machine: read blocks where they lie in the node's memory.
    bool lend = true;
  };

  // Totals since start unless said otherwise.
  struct Stats {
    uint64_t matches = 0;
    uint64_t matched_blocks = 0;
    uint64_t fetched_blocks = 0;    // Used.
    uint64_t abandoned_blocks = 0;  // Matched, but not used: failed, or not in time.
    uint64_t chosen_blocks = 0;     // Matched, but computed, since that was faster.
    BytesByTier fetched;
    // Full blocks that were computed instead of fetched, by the reason of the first of them.
    std::array<uint64_t, kMissReasonCount> missed_blocks{};
    bool connected = false;     // Now.
    bool breaker_open = false;  // Now.
  };

  // The part of a prompt that the node has, under a lease.
  class Match {
   public:
    Match();
    ~Match();
    Match(Match&&) noexcept;
    Match& operator=(Match&&) noexcept;

    uint32_t blocks = 0;                    // Blocks of the prompt, from its first.
    MissReason reason = MissReason::kNone;  // Why the next one is missing; kNone when none is.
    double seconds = 0;                     // The time that asking took.

   private:
    friend class PrefixSession;
    friend class PrefixFetch;
    friend struct PrefixFetchState;
    struct Lease;
    std::unique_ptr<Lease> lease_;
  };

  // All must outlive the session.
  struct Dependencies {
    client::CacheClient& client;
    const KvCodec& codec;  // Made of the namespace and the layout.
    const Clock& clock;
    // Runs fetches, so that the engine's thread can compute meanwhile, and questions about the
    // namespace after a reconnect. A task may wait for the node, so two must be able to run at the
    // same time.
    Executor& executor;
    SliceLoader* loader = nullptr;  // Null: pages in the host are all there is.
    // Notified when something has come of a fetch, or of a wait for blocks. Null: nobody waits for
    // several of them.
    Wakeup* wakeup = nullptr;
  };
  // Registers the namespace at the node; one that cannot be reached within connect_deadline is
  // asked again later. Logs a warning for each field in which the node has a similar namespace.
  // REQUIRES: the layout of `ns` is that of `kv`; the codec is made of both.
  PrefixSession(const Dependencies& dependencies, CheckedNamespace ns, const KvLayout& kv,
                const Options& options);
  ~PrefixSession();  // Waits for its tasks.

  const Digest& fingerprint() const { return ns_.fingerprint; }
  const NamespaceSpec& spec() const { return ns_.spec; }
  const Options& options() const { return options_; }

  // Keys of all full blocks, of exact lineage: computed over KV that no codec has changed.
  // Thread-safe.
  std::vector<BlockKey> Keys(std::span<const int32_t> tokens) const;
  // Keys of all full blocks where those from path.size() on were computed over the blocks `path`,
  // all of them fetched and decoded from a lossy form. Their bytes depend on where the decoded KV
  // ends, so their keys do too: the chain goes on from SHA256("over decoded", path.back()), and
  // that block is still their parent. The path may itself go over decoded KV. So one key stands for
  // one set of bytes. REQUIRES: path is not empty.
  std::vector<BlockKey> KeysOverDecoded(std::span<const int32_t> tokens,
                                        std::span<const BlockKey> path) const;
  const KvCodec& codec() const { return codec_; }
  SliceLoader* loader() const { return loader_; }  // Null: there is no device.

  // How many of `keys` the node can serve. Returns within match_deadline. `prefill_speed`: tokens
  // per second, for the node's metric of seconds saved; 0 if unknown.
  Match Lookup(std::span<const BlockKey> keys, double prefill_speed, const std::string& trace,
               NextUse next = NextUse::kUnknown);

  struct FetchWanted {
    int64_t prompt_tokens = 0;   // Tokens of the whole prompt.
    int64_t chunk_tokens = 256;  // Tokens that the engine computes at a time.
    // The engine's knowledge of its speed. A fetch may not take longer than computing.
    PrefillModel prefill = {};
    bool overlap = false;  // The rest of the prompt is computed during the fetch.
    bool choose = false;   // So are blocks of the front: Decide and Claim are called.
    bool lend = true;      // Blocks may be read in the node's memory.
    uint32_t held = 0;     // First blocks, which are in the sequence already. Less than matched.
    std::string trace = {};
  };
  // Starts to bring the matched blocks into the first pages of `sequence`, which must have capacity
  // for them and must not be computed on before Finish, but on blocks that were claimed, and
  // through before_layer = WaitLayer. One at a time.
  std::unique_ptr<PrefixFetch> Fetch(Match match, KvSequence& sequence, const FetchWanted& wanted);

  // For blocks that go from one worker to another while they are computed
  // (docs/operate/disaggregation.md).
  // Tells the node that this worker computes and pushes those blocks of `keys` that the node does
  // not have. Others may wait for them until the last reference to the answer is gone. Null: the
  // node could not be told. Returns within match_deadline.
  std::shared_ptr<const void> Announce(std::span<const BlockKey> keys, const std::string& trace);
  // Waits in the background until the node has some more than `held` of the blocks, at best
  // `at_least`, or nobody writes the next one, or `until`. REQUIRES: held < at_least, which is at
  // most keys.size().
  std::unique_ptr<AwaitedBlocks> Await(std::span<const BlockKey> keys, uint32_t held,
                                       uint32_t at_least, TimePoint until,
                                       const std::string& trace);

  // For readers whose blocks are no pages (segment_session.h). ----------------------------------
  // Which blocks the node has, whole. Returns within match_deadline.
  Result<std::vector<bool>> Exist(std::span<const BlockKey> keys, const std::string& trace);
  struct Brought {
    MissReason reason = MissReason::kNone;  // Why what did not come did not.
    double seconds = 0;
    client::Path path = client::Path::kGrpc;
  };
  // Gives all matched blocks to `sink`, on this thread, within the deadlines of Fetch.
  Brought Bring(Match match, client::FetchSink& sink, const FetchWanted& wanted);
  // Counts blocks that were brought so: used, and not used.
  void CountFetched(uint64_t used, uint64_t abandoned, const BytesByTier& bytes);

  // Counts the full blocks of a prompt that were computed instead of fetched.
  void CountMissed(MissReason reason, uint64_t blocks);

  // The name that the cache node gives itself while there is a session with it, else empty.
  std::string node_id() const;
  Stats GetStats() const;

 private:
  friend class PrefixFetch;

  void OpenNamespace(Duration deadline);
  void OpenAgainAfterReconnect();
  void WarnOfWhatDiffers();
  static void NoteTiers(std::span<const client::TierRun> runs, Match::Lease* lease);
  FetchDeadlines DeadlinesOf(uint32_t blocks, const FetchWanted& wanted) const;
  FetchPilot::Setup PilotSetup(const Match& match, const FetchWanted& wanted) const;
  // The executor's work.
  void RunFetch(PrefixFetchState& state, KvSequence& sequence, bool lend, const std::string& trace);
  void RunAwait(AwaitedState& state, std::span<const BlockKey> keys, const std::string& trace);
  void ObserveSlowdown(double seconds, double expected_seconds);

  client::CacheClient& client_;
  const CheckedNamespace ns_;
  const KvLayout kv_;
  const KvCodec& codec_;
  const Options options_;
  const Clock& clock_;
  Executor& executor_;
  SliceLoader* const loader_;
  Wakeup own_wakeup_;
  Wakeup& wakeup_;

  mutable Mutex mu_;
  CondVar opened_;
  Stats totals_ ABSL_GUARDED_BY(mu_);
  FetchModel fetch_model_ ABSL_GUARDED_BY(mu_);
  uint64_t opened_in_session_ ABSL_GUARDED_BY(mu_) = 0;  // The client's count of sessions then.
  bool opening_ ABSL_GUARDED_BY(mu_) = false;
  // Namespaces that are not this one, until people were told.
  std::vector<OpenedNamespace::Similar> differs_ ABSL_GUARDED_BY(mu_);
  uint32_t awaits_ ABSL_GUARDED_BY(mu_) = 0;  // Under way.
};

// Blocks that another worker writes. Destroying it stops the wait. Not thread-safe.
class AwaitedBlocks {
 public:
  explicit AwaitedBlocks(std::shared_ptr<AwaitedState> state) : state_(std::move(state)) {}
  ~AwaitedBlocks();
  AwaitedBlocks(const AwaitedBlocks&) = delete;
  AwaitedBlocks& operator=(const AwaitedBlocks&) = delete;

  // True when the wait is over. The session's wakeup is notified then.
  bool PollDone() const;
  // When done: the blocks that the node has, from the first one, and why there are no more.
  uint32_t blocks() const;
  MissReason reason() const;

 private:
  const std::shared_ptr<AwaitedState> state_;
};

// One fetch under way. Not thread-safe. Destroying it stops the fetch and waits until nothing
// writes to the pages any more.
class PrefixFetch {
 public:
  ~PrefixFetch();
  PrefixFetch(const PrefixFetch&) = delete;
  PrefixFetch& operator=(const PrefixFetch&) = delete;

  // The decision for the time when the blocks before `front` are there: FetchProgress::Step.
  FetchProgress::Step Decide(uint32_t front);
  // Takes blocks [begin, end) out of the fetch, to be computed into their pages; see FetchProgress.
  // A false answer means that the fetch is over: Finish.
  bool Claim(uint32_t begin, uint32_t end);
  // Before and after claimed blocks are computed.
  void SetComputing(bool computing);
  // They took `seconds`; alone they should have taken `expected_seconds`.
  void Computed(double seconds, double expected_seconds);

  // Waits until the layer is there for all blocks that were not claimed; `front`: blocks that are
  // there. An error means that it will not be (Finish), or that computing is better now
  // (TurnedBack: Decide again), or that `interrupt` said true.
  Status WaitLayer(int layer, uint32_t front = 0, const FetchInterrupt& interrupt = {});
  bool TurnedBack() const;
  // Brings all blocks that were not claimed. No Decide or Claim follows.
  void FetchTheRest();
  // True when Finish would not wait for the node. Never waits.
  bool PollDone();
  // When PollDone says true although nothing arrives.
  TimePoint PollDeadline() const;
  // Failed, late, or ended before all was there.
  bool Broken() const;
  // Brings nothing more, as soon as can be; does not wait.
  void Cancel();

  struct Outcome {
    uint32_t blocks = 0;          // Complete and verified, or claimed, from the prompt's first.
    uint32_t fetched_blocks = 0;  // How many of these were not claimed.
    MissReason reason = MissReason::kNone;  // Why the next one is missing.
    BytesByTier bytes;
    bool as_pushed = true;  // All slices came in the codec in which parts are pushed.
    client::Path path = client::Path::kGrpc;
    TimePoint start;
    double seconds = 0;  // To the last slice.
    std::vector<FetchProgress::LayerTimes> layers;
  };
  // Waits for what can still come, unless `wait` is false, and not after `interrupt`. Then it stops
  // the fetch and says what is there. After it nothing writes to the pages.
  Outcome Finish(bool wait = true, const FetchInterrupt& interrupt = {});

 private:
  friend class PrefixSession;
  using State = PrefixFetchState;  // Shared with the fetch's task.
  PrefixFetch(PrefixSession& session, KvSequence& sequence, std::shared_ptr<State> state,
              uint32_t held);
  void StopAndWait();

  PrefixSession& session_;
  KvSequence& sequence_;
  std::shared_ptr<State> state_;
  const uint32_t held_;  // Blocks that were there before, among the claimed ones.
  bool finished_ = false;
};

}  // namespace cairn::worker
