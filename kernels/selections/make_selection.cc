#include "kernels/selections/random/random.h"
#include "kernels/selections/registry.h"
#include "kernels/selections/streaming/streaming.h"

namespace cairn::selections {

std::unique_ptr<Selection> MakeSelection(std::string_view name, std::span<const int64_t> values) {
  const SelectionInfo* info = FindSelection(name);
  if (info == nullptr || info->parameters.size() != values.size()) return nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterInfo& p = info->parameters[i];
    if (values[i] < p.least || values[i] > p.most) return nullptr;
  }
  if (name == "streaming") return MakeStreaming(values[0], values[1]);
  if (name == "random") {
    return MakeRandom(values[0], values[1] != 0, static_cast<uint64_t>(values[2]));
  }
  return nullptr;
}

}  // namespace cairn::selections
