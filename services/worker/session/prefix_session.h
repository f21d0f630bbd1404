#pragma once
// A worker's dealings with a cache node about prefixes: which blocks of a prompt it has, and bringing
// them into KV pages.
//
//   Keys(tokens) -> Match(keys) -> PrefixFetch, which fills pages in the background
//
// Nothing here fails a request: every trouble is a miss with a reason, and no call outlasts its
// deadline.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "services/common/clock/clock.h"
#include "services/common/concurrency/executor.h"
#include "services/common/concurrency/mutex.h"
#include "services/common/keys/namespace_spec.h"
#include "services/common/status/status.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/fetch_progress.h"
#include "services/worker/session/miss_reason.h"

namespace cairn::client {
class CacheClient;
}

namespace cairn::worker {

class PrefixFetch;

class PrefixSession {
 public:
  struct Options {
    // For the first contact, when the session is made: how long to wait for a node that is away.
    std::chrono::milliseconds connect_deadline{1000};
    std::chrono::milliseconds match_deadline{50};
    // A fetch that brings nothing new for so long is over; longer when recomputing what it brings
    // would take more than four times as long, up to max_stall.
    std::chrono::milliseconds stall_deadline{250};
    std::chrono::milliseconds max_stall{2000};
    // Compute the first chunk while later layers still arrive.
    bool overlap = true;
  };

  // Totals since start unless said otherwise.
  struct Stats {
    uint64_t matches = 0;
    uint64_t matched_blocks = 0;
    uint64_t fetched_blocks = 0;    // Used.
    uint64_t abandoned_blocks = 0;  // Matched, but not used: failed, or not in time.
    BytesByTier fetched;
    // Full blocks that were computed instead of fetched, by the reason of the first of them.
    std::array<uint64_t, kMissReasonCount> missed_blocks{};
    bool connected = false;    // Now.
    bool breaker_open = false;  // Now.
  };

  // What the node has of a prompt, under a lease.
  class Match {
   public:
    Match();
    ~Match();
    Match(Match&&) noexcept;
    Match& operator=(Match&&) noexcept;

    uint32_t blocks = 0;                     // Of the prompt, from its first.
    MissReason reason = MissReason::kNone;   // Why the next one is missing; kNone when none is.
    double seconds = 0;                      // That asking took.

   private:
    friend class PrefixSession;
    friend class PrefixFetch;
    struct Lease;
    std::unique_ptr<Lease> lease_;
  };

  // Registers the namespace at the node; one that cannot be reached within connect_deadline is asked
  // again later. Logs a warning for each field in which the node has a similar namespace. `client`
  // must outlive the session. REQUIRES: Validate(spec).ok(), the layout of `spec` is that of `kv`.
  PrefixSession(client::CacheClient& client, NamespaceSpec spec, const KvLayout& kv,
                const Options& options);
  ~PrefixSession();

  const Digest& fingerprint() const { return fingerprint_; }
  const NamespaceSpec& spec() const { return spec_; }
  const Options& options() const { return options_; }

  // Keys of all full blocks. Thread-safe.
  std::vector<BlockKey> Keys(std::span<const int32_t> tokens) const;

  // How many of `keys` the node can serve. Returns within match_deadline. `prefill_speed`: tokens per
  // second, for the node's metric of seconds saved; 0 if unknown.
  Match Lookup(std::span<const BlockKey> keys, double prefill_speed, const std::string& trace);

  // Starts to bring the matched blocks into the first pages of `sequence`, which must have capacity
  // for them and must not be computed on before Finish, but through before_layer = WaitLayer.
  // `recompute_seconds`: what computing them would take, 0 if unknown: a fetch may not take longer.
  // One at a time.
  std::unique_ptr<PrefixFetch> Fetch(Match match, KvSequence& sequence, double recompute_seconds,
                                     const std::string& trace);

  // Counts the full blocks of a prompt that were computed instead of fetched.
  void CountMissed(MissReason reason, uint64_t blocks);

  Stats GetStats() const;

 private:
  friend class PrefixFetch;

  void OpenNamespace(Duration deadline);
  void OpenAgainAfterReconnect();

  client::CacheClient& client_;
  const NamespaceSpec spec_;
  const KvLayout kv_;
  const Digest fingerprint_;
  const Options options_;
  // Runs fetches, so that the engine's thread can compute meanwhile. The second thread asks for what
  // differs after a reconnect, so that this never holds a fetch up.
  ThreadPool fetch_thread_;

  mutable Mutex mu_;
  Stats totals_ ABSL_GUARDED_BY(mu_);
  uint64_t opened_in_session_ ABSL_GUARDED_BY(mu_) = 0;  // The client's count of sessions then.
  bool opening_ ABSL_GUARDED_BY(mu_) = false;
};

// One fetch under way. Not thread-safe. Destroying it stops the fetch and waits until nothing writes
// to the pages any more.
class PrefixFetch {
 public:
  ~PrefixFetch();
  PrefixFetch(const PrefixFetch&) = delete;
  PrefixFetch& operator=(const PrefixFetch&) = delete;

  // Waits until the layer is there for all blocks. An error means that it will not be: Finish.
  Status WaitLayer(int layer);

  struct Outcome {
    uint32_t blocks = 0;  // Complete and verified, from the prompt's first.
    MissReason reason = MissReason::kNone;  // Why the next one is missing.
    BytesByTier bytes;
    double seconds = 0;
  };
  // Waits for what can still come, stops the fetch and says what is there. After it nothing writes to
  // the pages.
  Outcome Finish();

 private:
  friend class PrefixSession;
  struct State;  // Shared with the fetch thread.
  PrefixFetch(PrefixSession& session, std::shared_ptr<State> state);
  void StopAndWait();

  PrefixSession& session_;
  std::shared_ptr<State> state_;
  bool finished_ = false;
};

}  // namespace cairn::worker
