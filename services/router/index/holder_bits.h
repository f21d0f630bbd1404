#pragma once
// The places that hold blocks of a namespace, each as one bit of a mask.
//
// A view is what one holder says at one time: a member while its snapshot comes has the old view
// and the new one. A view has a bit for its memory, one for device memory and one for its disk, as
// far as it uses them, and one for each kind of tail that it needs. A retired bit counts in no
// answer any more, and it is used again when all masks have been cleared of it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cairn/common/tier_kind.h"

namespace cairn::router {

struct Bits {
  uint64_t low = 0, high = 0;

  static constexpr uint32_t kCount = 128;
  static Bits One(uint32_t number) {
    return number < 64 ? Bits{uint64_t{1} << number, 0} : Bits{0, uint64_t{1} << (number - 64)};
  }
  bool any() const { return (low | high) != 0; }
  Bits operator&(const Bits& other) const { return {low & other.low, high & other.high}; }
  Bits operator|(const Bits& other) const { return {low | other.low, high | other.high}; }
  Bits operator~() const { return {~low, ~high}; }
  Bits& operator|=(const Bits& other) { return *this = *this | other; }
  Bits& operator&=(const Bits& other) { return *this = *this & other; }
  bool operator==(const Bits&) const = default;
};

// Not thread-safe.
class HolderBits {
 public:
  struct View {
    uint32_t holder = 0;
    bool old = false;  // A newer view of the holder is coming.
    ByTier<std::optional<uint8_t>> bits = {};
    // See PrefixIndex::Apply.
    struct Tail {
      uint32_t blocks = 0;
      uint8_t bit = 0;
    };
    std::vector<Tail> tails = {};

    Bits in_memory() const;
    Bits all() const;   // All tiers.
    Bits used() const;  // These, and those of tails.
    // nullopt: it has none yet.
    std::optional<Bits> Find(TierKind tier, uint32_t tail_blocks) const;
  };

  // The holder's newest view, which comes into being.
  View& Current(uint32_t holder);
  // All of its views.
  std::vector<View*> Of(uint32_t holder);
  // Tails of a view with numbers of their own.
  static constexpr size_t kMostTails = 4;

  // The bit of a view, which comes into being: that of the tier, or with `tail_blocks` that of the
  // tail. nullopt: all are used.
  std::optional<Bits> BitOf(View* view, TierKind tier, uint32_t tail_blocks = 0);

  // The current view becomes an old one.
  void BeginNew(uint32_t holder);
  // The current view is retired, the old one stays.
  void BeginAgain(uint32_t holder);
  // The old views are retired.
  void EndNew(uint32_t holder);
  // All views are retired.
  void RetireAll(uint32_t holder);

  const std::vector<View>& views() const { return views_; }
  Bits retired() const { return retired_; }
  // No mask has these any more.
  void Cleared(Bits bits);
  bool empty() const { return views_.empty() && !retired_.any(); }

 private:
  void Retire(const View& view) { retired_ |= view.used(); }
  // nullopt: all are used.
  std::optional<uint8_t> TakeBit();

  std::vector<View> views_;
  Bits used_;
  Bits retired_;
};

}  // namespace cairn::router
