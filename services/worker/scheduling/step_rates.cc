#include "services/worker/scheduling/step_rates.h"

#include <algorithm>

namespace cairn::worker {
namespace {

// The weight that a sample still has when the next one comes: about fifty count.
constexpr double kForget = 0.98;
// Positions enter as multiples of this, so that both terms are of one size.
constexpr double kPositionUnit = 1024;
// Where rates() quotes the speed of a prefill.
constexpr int64_t kQuotedPosition = 512;
constexpr int64_t kQuotedTokens = 64;

}  // namespace

void TwoTermFit::Observe(double x0, double x1, double y) {
  if (y <= 0) return;
  const double r0 = x0 / y, r1 = x1 / y;
  s00_ = kForget * s00_ + r0 * r0;
  s01_ = kForget * s01_ + r0 * r1;
  s11_ = kForget * s11_ + r1 * r1;
  t0_ = kForget * t0_ + r0;
  t1_ = kForget * t1_ + r1;
  known_ = true;
  Solve();
}

void TwoTermFit::Solve() {
  const double determinant = s00_ * s11_ - s01_ * s01_;
  // Samples that are all alike say nothing about the two terms apart.
  if (determinant > 1e-6 * s00_ * s11_) {
    a_ = (t0_ * s11_ - t1_ * s01_) / determinant;
    b_ = (t1_ * s00_ - t0_ * s01_) / determinant;
    if (a_ >= 0 && b_ >= 0) return;
  }
  // The better of the two with one term. The part of the samples that it explains is t * t / s.
  const double only0 = s00_ > 0 ? t0_ * t0_ / s00_ : 0;
  const double only1 = s11_ > 0 ? t1_ * t1_ / s11_ : 0;
  a_ = only0 >= only1 && s00_ > 0 ? t0_ / s00_ : 0;
  b_ = only0 >= only1 || s11_ <= 0 ? 0 : t1_ / s11_;
}

double StepRates::Observe(const PassShape& pass, double seconds) {
  if (seconds <= 0) return 0;
  const auto decodes = static_cast<double>(pass.decodes);
  const auto tokens = static_cast<double>(pass.prefill_tokens);
  if (pass.prefill_tokens == 0) {
    decode_.Observe(1, decodes, seconds);
    return seconds;
  }
  const double decoding = std::min(seconds, DecodeSeconds(pass.decodes));
  // A pass that was shorter than its decodes alone says nothing about the prompts.
  prefill_.Observe(tokens, tokens * static_cast<double>(pass.prefill_position) / kPositionUnit,
                   seconds - decoding);
  return decoding;
}

double StepRates::DecodeSeconds(int64_t decodes) const {
  if (decodes == 0 || !decode_.known()) return 0;
  return decode_.a() + decode_.b() * static_cast<double>(decodes);
}

double StepRates::PrefillSeconds(int64_t position, int64_t tokens) const {
  if (!prefill_.known()) return 0;
  const double middle = static_cast<double>(position) + static_cast<double>(tokens) / 2;
  return static_cast<double>(tokens) * (prefill_.a() + prefill_.b() * middle / kPositionUnit);
}

MeasuredRates StepRates::rates() const {
  MeasuredRates rates;
  rates.step_seconds = decode_.a();
  rates.decode_seconds = decode_.b();
  const double seconds = PrefillSeconds(kQuotedPosition, kQuotedTokens);
  if (seconds > 0) rates.prefill_tokens_per_second = kQuotedTokens / seconds;
  rates.pair_seconds = prefill_.b() / kPositionUnit;
  return rates;
}

}  // namespace cairn::worker
