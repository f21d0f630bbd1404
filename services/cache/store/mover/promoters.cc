#include "services/cache/store/mover/promoters.h"

namespace cairn::cache {

Promoters::Promoters(NodeContext* context, Evictor* evictor) {
  for (const TierKind kind : context->tiers.kinds()) {
    if (kind == TierKind::kHost) continue;
    into_host_[kind] = std::make_unique<Promoter>(context, evictor, Route{kind, TierKind::kHost});
    if (!Faster(kind, TierKind::kHost)) continue;
    from_host_[kind] = std::make_unique<Promoter>(context, evictor, Route{TierKind::kHost, kind});
    fills_ = true;
  }
}

void Promoters::Kick() {
  ForEach([](Promoter& promoter) { promoter.Kick(); });
}

size_t Promoters::depth() const {
  size_t total = 0;
  ForEach([&](const Promoter& promoter) { total += promoter.queue().depth(); });
  return total;
}

MoveQueue::Stats Promoters::GetStats() const {
  MoveQueue::Stats total;
  ForEach([&](const Promoter& promoter) {
    const MoveQueue::Stats stats = promoter.queue().GetStats();
    total.merged += stats.merged;
    total.cancelled += stats.cancelled;
  });
  return total;
}

}  // namespace cairn::cache
