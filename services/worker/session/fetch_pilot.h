#pragma once
// Makes all decisions about one fetch: what to ask for next, how many blocks to compute instead,
// and when to stop waiting. It measures the fetch while it runs and decides again.
//
// Pure: the caller gives the time, in seconds since the fetch began, never less than before. The
// same object steers real fetches (FetchProgress holds one under its lock) and simulated ones
// (tests/unit/worker/session/fetch_simulation.h). Not thread-safe.

#include <cstdint>
#include <optional>

#include "services/worker/session/cost_model.h"
#include "services/worker/session/fetch_plan.h"

namespace cairn::worker {

class FetchPilot {
 public:
  struct Setup {
    uint32_t blocks = 1;  // Matched.
    uint32_t layers = 1;
    uint64_t cell_bytes = 0;  // One layer of one block.
    int64_t block_tokens = 64;
    int64_t prompt_tokens = 0;   // At least those of the matched blocks.
    int64_t chunk_tokens = 256;  // Computed at a time.
    // Time from the start until the node could send the first and the last byte. 0: unknown.
    double node_first_seconds = 0;
    double node_last_seconds = 0;
    FetchRate rate = {};      // Believed of this fetch.
    double share_beside = 1;  // FetchModel's.
    double slowdown = 1;
    bool overlap = true;
    bool choose = true;  // False: fetch everything.
    // A slow fetch asks for only some layers at a time. Not from disk: the node reads whole blocks
    // there and would read them again for each call.
    bool split = true;
  };
  FetchPilot(const Setup& setup, const PrefillModel& prefill);

  // The computing side. -------------------------------------------------------------------------
  // Compute blocks up to the answer now; `front`: wait for the rest of the fetch; all matched
  // blocks:
  // compute everything. May differ from the last answer in both directions.
  uint32_t Decide(uint32_t front, double now);
  // Called while the engine waits for layer `layer`, after it computed the rest of the prompt up to
  // this layer. True: computing more of the front is clearly better, although that work is then
  // lost.
  bool ShouldTurnBack(uint32_t front, uint32_t layer, double now);
  // Says whether blocks are computed from now on while the fetch runs.
  void SetComputing(bool computing, double now);

  // The fetching side. --------------------------------------------------------------------------
  // The range to ask the node for. nullopt: nothing is missing now. One request at a time: until
  // Ended.
  std::optional<FetchPlan::Range> Next(double now);
  // A cell has come (its last head, if it came in parts).
  void Arrived(uint32_t block, uint32_t layer, double now);
  void Ended(double now);

  // False: it fetches everything, and never turns back.
  bool chooses() const { return setup_.choose; }
  FetchPlan& plan() { return plan_; }
  const FetchPlan& plan() const { return plan_; }
  // The sample that this fetch gave.
  FetchModel::Sample Sample(TierKind tier) const;
  // The lowest target so far. The node was never asked for blocks before it.
  uint32_t first_wanted() const { return first_wanted_; }
  double bytes_per_second() const { return live_.bytes_per_second(); }

 private:
  // Records the time since the last call, and the bytes that came.
  void Account(double now, uint64_t bytes);
  // Seconds until the first byte of the call under way, or of the next one.
  double UntilFirst(double now) const;
  Choice Chosen(uint32_t front, double now) const;

  const Setup setup_;
  const PrefillModel prefill_;  // A copy: the engine's thread goes on learning.
  FetchPlan plan_;
  LiveRate live_;
  FetchModel::Sample sample_;
  double last_ = 0;
  double asked_at_ = 0;
  bool asking_ = false;
  bool first_came_ = false;  // Whether the first byte of the range that was asked for has come.
  bool computing_ = false;
  bool ahead_ = false;  // The last decision was to compute more of the front.
  uint32_t first_wanted_ = 0;
};

}  // namespace cairn::worker
