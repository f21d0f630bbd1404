#include "services/cache/store/mover/transfer.h"

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
  for (size_t i = 0; i < t.parts.size(); ++i) {
    if (t.in_target_) {
      t.destinations_.push_back(tiers.Get(t.route.target)->Map(t.targets[i]));
    } else {
      auto buffer = PartBuffer::Of(t.parts[i].bytes[t.route.source]);
      if (!buffer.ok()) return t.Fail(buffer.status());
      t.destinations_.push_back(t.buffers_.emplace_back(*std::move(buffer)).bytes());
    }
  }
  t.bytes.assign(t.destinations_.begin(), t.destinations_.end());
  StartParts(self, &Transfer::load_, &Transfer::LoadPart);
}

void Transfer::Store(const std::shared_ptr<Transfer>& self) {
  Transfer& t = *self;
  if (t.in_target_) {
    t.stored_.store(t.parts.size());
    return;
  }
  StartParts(self, &Transfer::store_, &Transfer::StorePart);
}

void Transfer::StartParts(const std::shared_ptr<Transfer>& self, PhaseOf of, StartPart start) {
  Transfer& t = *self;
  for (;;) {
    size_t part;
    {
      MutexLock lock(t.mu_);
      Phase& phase = t.*of;
      if (phase.starting || !t.status_.ok() || phase.next == t.parts.size() ||
          phase.under_way == kPartsAtOnce) {
        return;
      }
      phase.starting = true;
      part = phase.next++;
      ++phase.under_way;
    }
    (t.*start)(self, part);
    MutexLock lock(t.mu_);
    (t.*of).starting = false;
  }
}

void Transfer::PartEnded(PhaseOf of, const Status& result) {
  MutexLock lock(mu_);
  --(this->*of).under_way;
  if (!result.ok() && status_.ok()) status_ = result;
}

void Transfer::LoadPart(const std::shared_ptr<Transfer>& self, size_t part) {
  context_.tiers.Get(route.source)
      ->Read(parts[part].In(route.source), destinations_[part], [self](const Status& status) {
        Transfer& t = *self;
        t.PartEnded(&Transfer::load_, status);
        if (!status.ok()) return;
        if (t.loaded_.fetch_add(1) + 1 < t.parts.size())
          return StartParts(self, &Transfer::load_, &Transfer::LoadPart);
        t.all_loaded_ = true;
        t.Loaded(self);
      });
}

void Transfer::StorePart(const std::shared_ptr<Transfer>& self, size_t part) {
  context_.tiers.Get(route.target)
      ->Write(targets[part], RecordOf(part), bytes[part], [self](const Status& status) {
        self->PartEnded(&Transfer::store_, status);
        if (!status.ok()) return;
        self->stored_.fetch_add(1);
        StartParts(self, &Transfer::store_, &Transfer::StorePart);
      });
}

}  // namespace cairn::cache
