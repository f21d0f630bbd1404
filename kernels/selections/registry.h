#pragma once
// Which selections exist, their parameters and legal values; and how one is made. The recipe
// grammar (common/recipe) reads its names, defaults and ranges from here.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cairn/kernels/selection/selection_kernels.h"
#include "kernels/selections/head_scores.h"
#include "kernels/selections/selection.h"

namespace cairn::selections {

enum class ParameterKind {
  // A number with at most `decimals` digits behind the point; values are counted in units of the
  // last digit: 0.4 with three decimals is 400.
  kDecimal,
  // Names a calibration file: the first eight bytes of its SHA-256, 16 hexadecimal digits in a
  // recipe. The value has these bits, the first byte highest; any may be.
  kCalibration,
};

struct ParameterInfo {
  std::string_view name;
  std::string_view meaning;
  int decimals = 0;
  int64_t least = 0;  // In units.
  int64_t most = 0;
  std::optional<int64_t> fallback;  // Nothing: the recipe must give it.
  ParameterKind kind = ParameterKind::kDecimal;
};

// Which part of a segment's KV a selection reads. Numbers that are not finite are found when they
// are read.
enum class Reads { kNoNumbers, kKeys, kKeysAndValues };

// Another name of a selection, with other fallbacks: a paper's settings.
struct Preset {
  struct Value {
    std::string_view parameter;
    int64_t value;  // In units.
  };
  std::string_view name;
  std::vector<Value> values;
};

struct SelectionInfo {
  std::string_view name = {};
  std::string_view meaning = {};
  std::vector<ParameterInfo> parameters = {};  // In canonical order; "keep" is the first.
  Reads reads = Reads::kKeys;
  // Heads share scores or compete for a budget, so the rows that one keeps depend on the queries of
  // the others.
  bool heads_share = false;
  std::vector<Preset> presets = {};
};

const std::vector<SelectionInfo>& AllSelections();
// Null when there is none of this name.
const SelectionInfo* FindSelection(std::string_view name);

struct PresetOfSelection {
  const SelectionInfo* selection = nullptr;  // Both are null when there is none of this name.
  const Preset* preset = nullptr;
};
PresetOfSelection FindPreset(std::string_view name);

// The value of the parameter that names a calibration; nullopt: the selection reads none. REQUIRES:
// as many values as parameters.
std::optional<uint64_t> CalibrationOf(const SelectionInfo& info, std::span<const int64_t> values);

// `values`: one for each parameter, in order. `heads`: the scores of the calibration that the
// values name, which are copied. Ignored if the values name none. Null: the name is unknown, a
// value is out of its range, or a calibration is missing. `kernels` must outlive the selection. All
// backends keep the same rows, but for scores that are within rounding of each other in the
// definition. REQUIRES: the kernels are those of a backend that runs inline.
std::unique_ptr<Selection> MakeSelection(
    std::string_view name, std::span<const int64_t> values, const HeadScores* heads = nullptr,
    const kernels::SelectionKernels& kernels = kernels::CpuSelectionKernels(kernels::BestIsa()));

}  // namespace cairn::selections
