#pragma once
// The parameters that many selections share, and their values by name.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "cairn/kernels/selection/selection_kernels.h"
#include "kernels/selections/budget.h"
#include "kernels/selections/registry.h"

namespace cairn::selections {

inline ParameterInfo KeepParameter() {
  return {"keep", "share of the rows that stay", 3, 1, kKeepUnits, std::nullopt};
}
inline ParameterInfo SinkParameter() {
  return {"sink", "1: the sequence's first token always stays", 0, 0, 1, 1};
}
inline ParameterInfo SinksParameter() {
  return {"sinks", "how many of the first tokens stay", 0, 0, 64, 4};
}
inline ParameterInfo WindowParameter(int64_t least, int64_t fallback) {
  return {"window", "how many of the last rows are asked, and stay", 0, least, 512, fallback};
}
inline ParameterInfo PoolParameter() {
  return {"pool", "scores are pooled over this many neighbours on each side", 0, 0, 16, 2};
}
inline ParameterInfo MaxPoolParameter() {
  return {
      "maxpool", "0: pooled by the mean, 1: by the maximum, before the group's mean, 2: after it",
      0,         0,
      2,         0};
}
inline ParameterInfo AlphaParameter() {
  return {"alpha", "share of an even budget that each head has at least", 3, 0, 1000, 200};
}
inline ParameterInfo BetaParameter() {
  return {"beta", "how many times smaller the last layer's budget is than the mean", 0, 2, 100, 20};
}
inline ParameterInfo BesideParameter() {
  return {
      "beside",
      "1: the window lies outside the pyramid, 0: in it, and the pyramid is even where it has no "
      "room",
      0,
      0,
      1,
      1};
}
inline ParameterInfo MixParameter() {
  return {"mix", "1: alpha mixes with even budgets, 0: it is a floor", 0, 0, 1, 0};
}
inline ParameterInfo FirstStageParameter() {
  return {"first", "share of the budget that attention alone decides", 3, 0, 1000, 500};
}
inline ParameterInfo MassParameter() {
  return {"mass", "rows that hold this share of the mean attention stay", 3, 0, 1000, 900};
}
inline ParameterInfo RelativeParameter() {
  return {"relative", "1: mass is a share of the ranked rows' attention, 0: of all", 0, 0, 1, 0};
}

inline ParameterInfo HeadsParameter() {
  return {"heads",
          "the calibration that scores heads",
          0,
          std::numeric_limits<int64_t>::min(),
          std::numeric_limits<int64_t>::max(),
          std::nullopt,
          ParameterKind::kCalibration};
}

// One value for each parameter of a selection. Immutable: any thread may use it at any time.
class Values {
 public:
  // All must outlive this. REQUIRES: as many values as parameters, and `heads` if a parameter names
  // a calibration.
  Values(const SelectionInfo& info, std::span<const int64_t> values,
         const HeadScores* heads = nullptr)
      : info_(info), values_(values), heads_(heads) {}

  // In units of the parameter's last digit. REQUIRES: the selection has the parameter.
  int64_t operator[](std::string_view name) const {
    size_t i = 0;
    while (info_.parameters[i].name != name) ++i;
    return values_[i];
  }
  // REQUIRES: the selection has a parameter that names a calibration.
  const HeadScores& heads() const { return *heads_; }

 private:
  const SelectionInfo& info_;
  std::span<const int64_t> values_;
  const HeadScores* heads_;
};

}  // namespace cairn::selections
