#include "kernels/codecs/registry.h"

#include <algorithm>

#include "kernels/codecs/all.h"

namespace cairn::codecs {
namespace {

using kernels::CodecKernels;

using Maker = std::unique_ptr<Codec> (*)(const Values&, const CodecKernels&);

template <typename... Card>
std::vector<CodecInfo> InfoOf(CardList<Card...>) {
  return {Card::Info()...};
}

// In the order of AllCodecs.
template <typename... Card>
Maker MakerAt(size_t index, CardList<Card...>) {
  static constexpr Maker makers[] = {Card::Make...};
  return makers[index];
}

}  // namespace

const std::vector<CodecInfo>& AllCodecs() {
  static const std::vector<CodecInfo> all = InfoOf(AllCards());
  return all;
}

const CodecInfo* FindCodec(std::string_view name) {
  for (const CodecInfo& info : AllCodecs()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::unique_ptr<Codec> MakeCodec(std::string_view name, std::span<const int64_t> values,
                                 const CodecKernels& kernels) {
  const CodecInfo* info = FindCodec(name);
  if (info == nullptr || values.size() != info->parameters.size()) return nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& allowed = info->parameters[i].allowed;
    if (std::find(allowed.begin(), allowed.end(), values[i]) == allowed.end()) return nullptr;
  }
  const auto index = static_cast<size_t>(info - AllCodecs().data());
  return MakerAt(index, AllCards())(Values(*info, values), kernels);
}

}  // namespace cairn::codecs
