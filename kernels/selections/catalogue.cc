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

}  // namespace cairn::selections
