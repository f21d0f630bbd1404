#pragma once
// A worker and its way to a node, simulated: the real FetchPilot, PrefillModel and FetchModel
// decide; only computing and the wire are made up. Time is virtual.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "services/worker/session/fetch_pilot.h"

namespace cairn::worker {

// The truth, whatever the worker believes.
struct SimulatedMachine {
  uint32_t layers = 30;
  int64_t block_tokens = 64;
  int64_t chunk_tokens = 256;
  uint64_t cell_bytes = 49152;
  // SmolLM2-135M on two cores: about 4,000 tokens/s early in the context, half of that at 8k.
  double chunk_base = 0.002;
  double token_seconds = 0.00024;
  double pair_seconds = 3e-8;
  double bytes_per_second = 1e9;
  double latency_seconds = 0.001;  // The latency of each call.
  double queue_seconds = 0;        // Before the first call is served: other fetches are ahead.
  double share_beside = 0.9;       // The share of the wire while computing.
  // The slowdown of computing while fetching: by this much for each gigabyte a second that comes.
  double slowdown_per_gigabyte = 0.25;
  // The rate changes to this part of it at that time.
  double change_at = std::numeric_limits<double>::infinity();
  double change_to = 1;

  double ChunkSeconds(int64_t begin, int64_t n) const {
    const auto tokens = static_cast<double>(n);
    return chunk_base + token_seconds * tokens +
           pair_seconds * tokens * (static_cast<double>(begin) + tokens / 2);
  }
};

enum class Policy { kChoose, kFetchAll, kComputeAll };

class FetchSimulation {
 public:
  explicit FetchSimulation(const SimulatedMachine& machine) : machine_(machine) {}

  SimulatedMachine& machine() { return machine_; }
  uint32_t computed_blocks() const { return front_; }

  // Seconds until a prompt of `matched` blocks at the node and `rest` more tokens is computed.
  // Learns as the worker does, unless it only fetches or only computes.
  double Run(uint32_t matched, int64_t rest, Policy policy) {
    const int64_t prefix = matched * machine_.block_tokens;
    now_ = 0;
    fetching_ = false;
    front_ = 0;
    if (policy == Policy::kComputeAll) {
      ComputeRange(0, prefix + rest, /*learn=*/true);
      return now_;
    }
    FetchPilot::Setup setup;
    setup.blocks = matched;
    setup.layers = machine_.layers;
    setup.cell_bytes = machine_.cell_bytes;
    setup.block_tokens = machine_.block_tokens;
    setup.prompt_tokens = prefix + rest;
    setup.chunk_tokens = machine_.chunk_tokens;
    setup.rate = fetch_.Rate(TierKind::kHost);
    setup.share_beside = fetch_.share_beside();
    setup.slowdown = fetch_.slowdown();
    setup.choose = policy == Policy::kChoose;
    // The node says what waits before this fetch.
    setup.node_first_seconds = setup.node_last_seconds = machine_.queue_seconds;
    pilot_.emplace(setup, prefill_);
    while (true) {
      const uint32_t target = std::max(front_, pilot_->Decide(front_, now_));
      StartCall();
      if (target == matched && front_ < matched) {
        // All is computed; a chunk may reach into the rest.
        const int64_t begin = front_ * machine_.block_tokens;
        const int64_t end = std::min(begin + machine_.chunk_tokens, prefix + rest);
        ComputeChunk(begin, end);
        front_ = static_cast<uint32_t>(std::min(end, prefix) / machine_.block_tokens);
        if (end > prefix) {
          ComputeRange(end, prefix + rest, false);
          break;
        }
        continue;
      }
      if (front_ < target) {
        const int64_t begin = front_ * machine_.block_tokens;
        const int64_t end = std::min(begin + machine_.chunk_tokens, target * machine_.block_tokens);
        ComputeChunk(begin, end);
        front_ = static_cast<uint32_t>(end / machine_.block_tokens);
        continue;
      }
      if (front_ == matched) fetching_ = false;  // Nothing of it is wanted: cancelled.
      if (ComputeRest(prefix, rest)) break;
    }
    pilot_->Ended(now_);
    if (policy == Policy::kChoose) fetch_.Observe(pilot_->Sample(TierKind::kHost));
    return now_;
  }

 private:
  // A chunk during the fetch, of blocks that are not fetched then.
  void ComputeChunk(int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end && t / machine_.block_tokens < pilot_->plan().blocks();
         t += machine_.block_tokens) {
      pilot_->plan().Computed(static_cast<uint32_t>(t / machine_.block_tokens));
    }
    pilot_->SetComputing(true, now_);
    const double start = now_;
    const bool beside = fetching_;
    Advance(machine_.ChunkSeconds(begin, end - begin), /*computing=*/true);
    pilot_->SetComputing(false, now_);
    if (beside) {
      fetch_.ObserveSlowdown(now_ - start, prefill_.Seconds(begin, end - begin));
    } else {
      prefill_.Observe(begin, end - begin, now_ - start);
    }
  }

  void ComputeRange(int64_t begin, int64_t end, bool learn) {
    for (int64_t at = begin; at < end; at += machine_.chunk_tokens) {
      const int64_t n = std::min(machine_.chunk_tokens, end - at);
      const double seconds = machine_.ChunkSeconds(at, n);
      now_ += seconds;
      if (learn) prefill_.Observe(at, n, seconds);
    }
  }

  // Layer by layer; false when it turned back.
  bool ComputeRest(int64_t prefix, int64_t rest) {
    double seconds = 0;
    for (int64_t at = prefix; at < prefix + rest; at += machine_.chunk_tokens) {
      seconds += machine_.ChunkSeconds(at, std::min(machine_.chunk_tokens, prefix + rest - at));
    }
    for (uint32_t layer = 0; layer < machine_.layers; ++layer) {
      while (pilot_->plan().LayerMissing(layer) > 0) {
        if (pilot_->ShouldTurnBack(front_, layer, now_)) return false;
        Step(0.01, false, [&] { return pilot_->plan().LayerMissing(layer) == 0; });
      }
      Advance(seconds / machine_.layers, /*computing=*/true);
    }
    return true;
  }

  void StartCall() {
    if (fetching_) return;
    range_ = pilot_->Next(now_);
    fetching_ = range_.has_value();
    if (!fetching_) return;
    cell_ = 0;
    left_ = static_cast<double>(machine_.cell_bytes);
    begins_ = std::max(now_, machine_.queue_seconds) + machine_.latency_seconds;
  }

  // Lets `work` seconds of work pass; computing is slower while a fetch runs.
  void Advance(double work, bool computing) {
    while (work > 1e-12) {
      const bool coming = computing && fetching_ && now_ >= begins_;
      const double slow =
          coming ? 1 + machine_.slowdown_per_gigabyte * machine_.bytes_per_second / 1e9 : 1;
      // In short steps, since a fetch may begin or end meanwhile.
      work -= Step(std::min(work * slow, 0.001), computing, nullptr) / slow;
    }
  }

  // Passes up to `seconds`, or until the next cell is there. Returns what passed.
  double Step(double seconds, bool computing, const std::function<bool()>& stop) {
    const double end = now_ + seconds;
    const double start = now_;
    while (now_ < end) {
      if (!fetching_) {
        now_ = end;
        break;
      }
      if (now_ < begins_) {
        now_ = std::min(end, begins_);
        continue;
      }
      const double rate = machine_.bytes_per_second * (computing ? machine_.share_beside : 1) *
                          (now_ >= machine_.change_at ? machine_.change_to : 1);
      const double until = std::min(end, now_ + left_ / rate);
      left_ -= (until - now_) * rate;
      now_ = until;
      if (left_ > 1e-3) continue;
      left_ = static_cast<double>(machine_.cell_bytes);
      const uint32_t width = range_->block_end - range_->block_begin;
      pilot_->Arrived(range_->block_begin + static_cast<uint32_t>(cell_ % width),
                      range_->layer_begin + static_cast<uint32_t>(cell_ / width), now_);
      if (++cell_ == range_->cells()) {
        pilot_->Ended(now_);
        fetching_ = false;
        StartCall();
        if (!fetching_) break;
      }
      if (stop && stop()) break;
    }
    return now_ - start;
  }

  SimulatedMachine machine_;
  PrefillModel prefill_;
  FetchModel fetch_;
  std::optional<FetchPilot> pilot_;
  double now_ = 0;
  uint32_t front_ = 0;
  bool fetching_ = false;
  std::optional<FetchPlan::Range> range_;
  uint64_t cell_ = 0;
  double left_ = 0;
  double begins_ = 0;
};

}  // namespace cairn::worker
