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

std::optional<Bits> HolderBits::BitOf(View* view, TierKind tier) {
  std::optional<uint8_t>& bit = view->bits[tier];
  for (uint32_t number = 0; !bit && number < Bits::kCount; ++number) {
    if ((used_ & Bits::One(number)).any()) continue;
    used_ |= Bits::One(number);
    bit = static_cast<uint8_t>(number);
  }
  if (!bit) return std::nullopt;
  return Bits::One(*bit);
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
