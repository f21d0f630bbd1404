#include "services/cache/mover/transfer.h"

namespace cairn::cache {

void Transfer::Load(const std::shared_ptr<Transfer>& self) {
  Transfer& t = *self;
  const Tiers& tiers = t.context_.tiers;
  Tier& source = *tiers.Get(t.route.source);
  if (tiers.IsMapped(t.route.source)) {
    for (const PartPlace& part : t.parts) {
      t.bytes.push_back(source.Map(part.In(t.route.source)));
    }
    t.all_loaded_ = true;
    t.Loaded(self);
    return;
  }
  t.in_target_ = tiers.IsMapped(t.route.target) && !t.targets.empty();
  absl::InlinedVector<std::span<std::byte>, 1> destinations;
  for (size_t i = 0; i < t.parts.size(); ++i) {
    if (t.in_target_) {
      destinations.push_back(tiers.Get(t.route.target)->Map(t.targets[i]));
    } else {
      PartBuffer& buffer = t.buffers_.emplace_back(t.parts[i].bytes[t.route.source]);
      destinations.push_back(buffer.bytes());
    }
  }
  t.bytes.assign(destinations.begin(), destinations.end());
  std::vector<ReadLine::Part> reads;
  reads.reserve(t.parts.size());
  for (size_t i = 0; i < t.parts.size(); ++i) {
    reads.push_back({t.parts[i].In(t.route.source), destinations[i]});
  }
  t.context_.reads[t.route.source].Read(&source, std::move(reads), [self](Status status) {
    self->PartLoaded(self, std::move(status));
  });
}

void Transfer::PartLoaded(const std::shared_ptr<Transfer>& self, Status result) {
  if (!result.ok()) Fail(std::move(result));
  if (loaded_.fetch_add(1) + 1 != parts.size()) return;
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return;
  }
  all_loaded_ = true;
  Loaded(self);
}

void Transfer::Store(const std::shared_ptr<Transfer>& self) {
  Transfer& t = *self;
  if (t.in_target_) {
    t.stored_.store(t.parts.size());
    return;
  }
  Tier& target = *t.context_.tiers.Get(t.route.target);
  for (size_t i = 0; i < t.parts.size(); ++i) {
    target.Write(t.targets[i], t.RecordOf(i), t.bytes[i],
                 [self](Status status) { self->PartStored(std::move(status)); });
  }
}

void Transfer::PartStored(Status result) {
  stored_.fetch_add(1);
  if (!result.ok()) Fail(std::move(result));
}

}  // namespace cairn::cache
