#pragma once
// The kinds of tiers where bytes of a node may lie. The node, its clients, recipes and the worker
// use this one type.
//
// Python's TierKind has the same numbers. The wire (TierKind of proto/cairn/v1/common.proto) and
// shared memory (docs/inside/formats/local.md) have the number plus one, and there 0 means "in no
// tier". The numbers never change, so they do not say which tier is faster. Use Faster for that.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class TierKind : uint8_t { kHost = 0, kDisk = 1, kDevice = 2 };
inline constexpr size_t kTierCount = 3;

// Fastest first.
inline constexpr std::array<TierKind, kTierCount> kTiersByRank = {TierKind::kDevice,
                                                                  TierKind::kHost, TierKind::kDisk};

// The position in kTiersByRank.
constexpr size_t Rank(TierKind kind) {
  for (size_t rank = 0; rank < kTierCount; ++rank) {
    if (kTiersByRank[rank] == kind) return rank;
  }
  return kTierCount;
}
constexpr bool Faster(TierKind a, TierKind b) { return Rank(a) < Rank(b); }
constexpr TierKind SlowerOf(TierKind a, TierKind b) { return Faster(a, b) ? b : a; }

// "host", "disk", "device": the label values of metrics and the words in recipes.
constexpr std::string_view Name(TierKind kind) {
  switch (kind) {
    case TierKind::kHost:
      return "host";
    case TierKind::kDisk:
      return "disk";
    case TierKind::kDevice:
      return "device";
  }
  return "unknown";
}

// 0 for no tier, otherwise the number of the tier plus one: a byte in shared memory, or a TierKind
// of the wire.
constexpr uint8_t TierCode(std::optional<TierKind> kind) {
  return kind ? static_cast<uint8_t>(static_cast<uint8_t>(*kind) + 1) : uint8_t{0};
}
// nullopt: 0, or a number that this version does not know.
constexpr std::optional<TierKind> TierFromCode(int code) {
  if (code < 1 || code > static_cast<int>(kTierCount)) return std::nullopt;
  return static_cast<TierKind>(code - 1);
}

// One value for each kind of tier. The index is the kind or its number. As thread-safe as its
// values.
template <typename T>
struct ByTier {
  T values[kTierCount] = {};

  constexpr T& operator[](TierKind kind) { return values[static_cast<size_t>(kind)]; }
  constexpr const T& operator[](TierKind kind) const { return values[static_cast<size_t>(kind)]; }
  constexpr T& operator[](size_t number) { return values[number]; }
  constexpr const T& operator[](size_t number) const { return values[number]; }

  T* begin() { return values; }
  T* end() { return values + kTierCount; }
  const T* begin() const { return values; }
  const T* end() const { return values + kTierCount; }

  bool operator==(const ByTier&) const = default;
};

}  // namespace cairn
