#pragma once
// How long this worker takes to compute and to fetch blocks, learned from its own work.
//
// Pure: no clock, no I/O, no lock. Times are seconds, sizes bytes.

#include <array>
#include <cstddef>
#include <cstdint>

#include "cairn/common/tier_kind.h"

namespace cairn::worker {

// Seconds of a prefill chunk, as  base + per_token * n + per_pair * n * p:  n tokens at mean
// position p. The last term is attention, which makes late chunks slower than early ones. Fitted by
// least squares over relative errors; old chunks are forgotten. Not thread-safe.
class PrefillModel {
 public:
  // A chunk of `tokens` tokens from position `begin` took `seconds`. REQUIRES: all of them
  // sensible:
  // tokens > 0, begin >= 0; a time of 0 or less is ignored.
  void Observe(int64_t begin, int64_t tokens, double seconds);
  bool known() const { return samples_ > 0; }
  // 0 while nothing is known.
  double Seconds(int64_t begin, int64_t tokens) const;
  // Seconds for tokens [begin, end), computed `chunk` tokens at a time.
  double RangeSeconds(int64_t begin, int64_t end, int64_t chunk) const;

 private:
  void Solve();

  std::array<std::array<double, 3>, 3> normal_{};
  std::array<double, 3> target_{};
  std::array<double, 3> weights_{};
  int64_t samples_ = 0;
};

// The current estimate of the way to the cache node.
struct FetchRate {
  double latency_seconds = 0;   // From asking to the first slice.
  double bytes_per_second = 0;  // While nothing is computed meanwhile.
};

// How fast fetches were, by the tier that the node read from, and how fetching and computing slow
// each other down when they share processors. Not thread-safe.
class FetchModel {
 public:
  // A fetch that has ended.
  struct Sample {
    TierKind tier = TierKind::kHost;  // Most of its bytes came from it.
    double latency_seconds = 0;       // To the first slice.
    uint64_t bytes_alone = 0;         // Bytes that came while nothing was computed, ...
    double seconds_alone = 0;         // ... and the time that took.
    uint64_t bytes_beside = 0;        // While blocks were computed.
    double seconds_beside = 0;
  };
  void Observe(const Sample& sample);
  // A chunk was computed while a fetch ran: the time that it took, and the time that it would have
  // taken alone.
  void ObserveSlowdown(double seconds, double expected_seconds);

  bool known(TierKind tier) const { return rates_[tier].bytes_per_second > 0; }
  // kUnknownRate until a fetch from the tier was seen.
  FetchRate Rate(TierKind tier) const;
  // Part of the rate that is left to a fetch while blocks are computed; 0.2 to 1.
  double share_beside() const { return share_beside_; }
  // How much longer computing takes while a fetch runs; 1 to 3.
  double slowdown() const { return slowdown_; }

  // Before anything was measured a fetch is assumed to be fast, so that it is tried and measured
  // while it runs.
  static constexpr FetchRate kUnknownRate{0.001, 1e9};

 private:
  ByTier<FetchRate> rates_;
  double share_beside_ = 0.8;
  double slowdown_ = 1.1;
};

// The rate of a running fetch: first the estimate from before, which measurements replace within
// about kMemory. Not thread-safe.
class LiveRate {
 public:
  explicit LiveRate(double bytes_per_second);
  // `seconds` during which the fetch was asked for something, and the bytes that came in that time.
  void Add(double seconds, uint64_t bytes);
  double bytes_per_second() const;

 private:
  static constexpr double kMemory = 0.15;  // Seconds.
  static constexpr double kPrior = 0.03;   // The estimate from before counts as this many seconds.
  double seconds_;
  double bytes_;
};

}  // namespace cairn::worker
