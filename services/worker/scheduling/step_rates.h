#pragma once
// How long steps take, learnt from the forward passes of this worker.
//
// Pure: no clock, no lock. Times are seconds.

#include <array>
#include <cstdint>

#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// y = a * x0 + b * x1 with a, b >= 0, by least squares over relative errors; old samples are
// forgotten. Not thread-safe.
class TwoTermFit {
 public:
  // A y of 0 or less is ignored.
  void Observe(double x0, double x1, double y);
  bool known() const { return known_; }
  double a() const { return a_; }
  double b() const { return b_; }

 private:
  void Solve();

  double s00_ = 0, s01_ = 0, s11_ = 0, t0_ = 0, t1_ = 0;
  double a_ = 0, b_ = 0;
  bool known_ = false;
};

// Seconds of a step, as two sums: step + decode * n for n requests that decode, and
// per_token * p + per_pair * p * position for p rows of prompts. The last term is attention. Not
// thread-safe.
class StepRates {
 public:
  // A forward pass took `seconds`. Returns how much of that the decodes took; the rest is the
  // prompts'.
  double Observe(const PassShape& pass, double seconds);

  // 0 while nothing is known.
  double DecodeSeconds(int64_t decodes) const;
  double PrefillSeconds(int64_t position, int64_t tokens) const;
  MeasuredRates rates() const;

 private:
  TwoTermFit decode_;
  TwoTermFit prefill_;
};

}  // namespace cairn::worker
