#include "kernels/selections/methods.h"
#include "kernels/selections/registry.h"

namespace cairn::selections {
namespace {

using Maker = std::unique_ptr<Selection> (*)(const Values&, const kernels::SelectionKernels&);

// In the order of AllSelections.
template <typename... Method>
Maker MakerAt(size_t index, MethodList<Method...>) {
  static constexpr Maker makers[] = {Method::Make...};
  return makers[index];
}

}  // namespace

std::unique_ptr<Selection> MakeSelection(std::string_view name, std::span<const int64_t> values,
                                         const HeadScores* heads,
                                         const kernels::SelectionKernels& kernels) {
  const SelectionInfo* info = FindSelection(name);
  if (info == nullptr || info->parameters.size() != values.size()) return nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterInfo& p = info->parameters[i];
    if (values[i] < p.least || values[i] > p.most) return nullptr;
  }
  if (heads == nullptr && CalibrationOf(*info, values)) return nullptr;
  const auto index = static_cast<size_t>(info - AllSelections().data());
  return MakerAt(index, AllMethods())(Values(*info, values, heads), kernels);
}

}  // namespace cairn::selections
