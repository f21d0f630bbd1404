#include "kernels/selections/registry.h"

#include "kernels/selections/budget.h"

namespace cairn::selections {
namespace {

ParameterInfo Keep() {
  return {"keep", "share of the rows that stay", 3, 1, kKeepUnits, std::nullopt};
}
ParameterInfo Sink() {
  return {"sink", "1: the sequence's first token always stays", 0, 0, 1, 1};
}

}  // namespace

const std::vector<SelectionInfo>& AllSelections() {
  static const std::vector<SelectionInfo> all = {
      {"streaming",
       "the first tokens and the most recent ones",
       {Keep(), {"sinks", "how many of the first tokens stay", 0, 0, 64, 4}}},
      {"random",
       "rows drawn by lot: a control",
       {Keep(), Sink(), {"seed", "of the draw", 0, 0, 1'000'000, 1}}},
  };
  return all;
}

const SelectionInfo* FindSelection(std::string_view name) {
  for (const SelectionInfo& info : AllSelections()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

}  // namespace cairn::selections
