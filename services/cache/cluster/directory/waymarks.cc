#include "services/cache/cluster/directory/waymarks.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cairn::cache {

WaymarkHash HashForWaymark(const Digest& fingerprint, const BlockKey& key) {
  std::array<std::byte, sizeof(fingerprint.bytes) + sizeof(key.bytes)> both;
  std::memcpy(both.data(), fingerprint.bytes.data(), sizeof(fingerprint.bytes));
  std::memcpy(both.data() + sizeof(fingerprint.bytes), key.bytes.data(), sizeof(key.bytes));
  return Xxh3(both);
}

bool IsWaymark(WaymarkHash hash, uint32_t block_tokens) {
  const uint32_t blocks = std::max(1u, kTokensPerWaymark / std::max(1u, block_tokens));
  // Layouts allow powers of two only.
  return hash % blocks == 0;
}

std::vector<PromptWaymark> WaymarksOf(const Digest& fingerprint, std::span<const BlockKey> keys,
                                      uint32_t block_tokens) {
  std::vector<PromptWaymark> found;
  for (size_t i = 0; i < keys.size(); ++i) {
    const WaymarkHash hash = HashForWaymark(fingerprint, keys[i]);
    if (IsWaymark(hash, block_tokens)) found.push_back({hash, static_cast<uint32_t>(i)});
  }
  return found;
}

std::vector<PromptWaymark> WaymarksToAsk(std::span<const PromptWaymark> waymarks) {
  if (waymarks.size() <= kMostAsked) return {waymarks.begin(), waymarks.end()};
  constexpr size_t kNext = kMostAsked / 2;
  constexpr size_t kSpread = kMostAsked - kNext;
  std::vector<PromptWaymark> asked(waymarks.begin(), waymarks.begin() + kNext);
  const size_t rest = waymarks.size() - kNext;  // More than kSpread.
  for (size_t i = 1; i <= kSpread; ++i) {
    asked.push_back(waymarks[kNext + rest * i / kSpread - 1]);
  }
  return asked;
}

}  // namespace cairn::cache
