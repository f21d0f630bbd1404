#include "services/router/index/holder_bits.h"

#include <algorithm>

namespace cairn::router {

Bits HolderBits::View::in_memory() const {
  Bits mask;
  for (const TierKind tier : {TierKind::kHost, TierKind::kDevice}) {
    if (bits[tier]) mask |= Bits::One(*bits[tier]);
  }
  return mask;
}

Bits HolderBits::View::all() const {
  Bits mask = in_memory();
  if (bits[TierKind::kDisk]) mask |= Bits::One(*bits[TierKind::kDisk]);
  return mask;
}

Bits HolderBits::View::used() const {
  Bits mask = all();
  for (const Tail& tail : tails) mask |= Bits::One(tail.bit);
  return mask;
}

std::optional<Bits> HolderBits::View::Find(TierKind tier, uint32_t tail_blocks) const {
  if (tail_blocks == 0) return bits[tier] ? std::optional(Bits::One(*bits[tier])) : std::nullopt;
  const auto tail = std::ranges::find(tails, tail_blocks, &Tail::blocks);
  return tail == tails.end() ? std::nullopt : std::optional(Bits::One(tail->bit));
}

HolderBits::View& HolderBits::Current(uint32_t holder) {
  for (View& view : views_) {
    if (view.holder == holder && !view.old) return view;
  }
  return views_.emplace_back(View{.holder = holder});
}

std::vector<HolderBits::View*> HolderBits::Of(uint32_t holder) {
  std::vector<View*> of;
  for (View& view : views_) {
    if (view.holder == holder) of.push_back(&view);
  }
  return of;
}

std::optional<Bits> HolderBits::BitOf(View* view, TierKind tier, uint32_t tail_blocks) {
  if (const auto found = view->Find(tier, tail_blocks)) return found;
  if (tail_blocks != 0 && view->tails.size() >= kMostTails) return std::nullopt;
  const std::optional<uint8_t> bit = TakeBit();
  if (!bit) return std::nullopt;
  if (tail_blocks == 0) {
    view->bits[tier] = bit;
  } else {
    view->tails.push_back({.blocks = tail_blocks, .bit = *bit});
  }
  return Bits::One(*bit);
}

std::optional<uint8_t> HolderBits::TakeBit() {
  for (uint32_t number = 0; number < Bits::kCount; ++number) {
    if ((used_ & Bits::One(number)).any()) continue;
    used_ |= Bits::One(number);
    return static_cast<uint8_t>(number);
  }
  return std::nullopt;
}

void HolderBits::BeginNew(uint32_t holder) {
  for (View* view : Of(holder)) view->old = true;
}

void HolderBits::BeginAgain(uint32_t holder) {
  std::erase_if(views_, [&](const View& view) {
    if (view.holder != holder || view.old) return false;
    Retire(view);
    return true;
  });
}

void HolderBits::EndNew(uint32_t holder) {
  std::erase_if(views_, [&](const View& view) {
    if (view.holder != holder || !view.old) return false;
    Retire(view);
    return true;
  });
}

void HolderBits::RetireAll(uint32_t holder) {
  std::erase_if(views_, [&](const View& view) {
    if (view.holder != holder) return false;
    Retire(view);
    return true;
  });
}

void HolderBits::Cleared(Bits bits) {
  retired_ &= ~bits;
  used_ &= ~bits;
}

}  // namespace cairn::router
