#include "kernels/selections/methods.h"
#include "kernels/selections/registry.h"

namespace cairn::selections {
namespace {

template <typename... Method>
std::vector<SelectionInfo> InfoOf(MethodList<Method...>) {
  return {Method::Info()...};
}

}  // namespace

const std::vector<SelectionInfo>& AllSelections() {
  static const std::vector<SelectionInfo> all = InfoOf(AllMethods());
  return all;
}

const SelectionInfo* FindSelection(std::string_view name) {
  for (const SelectionInfo& info : AllSelections()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

PresetOfSelection FindPreset(std::string_view name) {
  for (const SelectionInfo& info : AllSelections()) {
    for (const Preset& preset : info.presets) {
      if (preset.name == name) return {&info, &preset};
    }
  }
  return {};
}

std::optional<uint64_t> CalibrationOf(const SelectionInfo& info, std::span<const int64_t> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (info.parameters[i].kind == ParameterKind::kCalibration) {
      return static_cast<uint64_t>(values[i]);
    }
  }
  return std::nullopt;
}

}  // namespace cairn::selections
