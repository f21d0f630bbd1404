#include "services/cache/store/engine/window_room.h"

#include <utility>

namespace cairn::cache {

WindowRoom::Took WindowRoom::Take(uint64_t bytes) {
  const bool first = used_ == 0;
  if (first && bytes > bound_ / 4) return Took::kNever;
  const uint64_t used = used_ + bytes;
  if (used > floor_) {
    const uint64_t more = used - floor_ - charge_.bytes();
    // Asked before it is charged: that a window ends here is no refusal to be counted.
    const uint64_t others = account_->used(MemoryItem::kFetchHeaders);
    const uint64_t limit = first ? bound_ : bound_ / 2;
    if ((!first && used > bound_ / 8) || others > limit || more > limit - others) {
      return Took::kFull;
    }
    if (charge_.bytes() > 0) {
      if (!charge_.Resize(used - floor_).ok()) return Took::kFull;
    } else {
      auto charge = account_->Charge(MemoryItem::kFetchHeaders, more);
      if (!charge.ok()) return Took::kFull;
      charge_ = *std::move(charge);
    }
  }
  used_ = used;
  return Took::kTaken;
}

void WindowRoom::ShrinkTo(uint64_t bytes) {
  used_ = std::min(used_, bytes);
  if (charge_.bytes() > 0) (void)charge_.Resize(used_ > floor_ ? used_ - floor_ : 0);
}

}  // namespace cairn::cache
