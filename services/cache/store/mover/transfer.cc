#include "services/cache/store/mover/transfer.h"

#include "common/concurrency/runs_once.h"

namespace cairn::cache {

Transfer::~Transfer() { CAIRN_CHECK(ended_); }

void Transfer::Load(const std::shared_ptr<Transfer>& self) {
  Transfer& t = *self;
  const Tiers& tiers = t.context_.tiers;
  Tier& source = *tiers.Get(t.route.source);
  if (tiers.IsMapped(t.route.source)) {
    for (const PartPlace& part : t.parts) {
      t.bytes.push_back(source.Map(part.In(t.route.source)));
    }
    t.loaded_ = true;
    t.Loaded(self);
    return;
  }
  t.in_target_ = tiers.IsMapped(t.route.target) && !t.targets.empty();
  for (size_t i = 0; i < t.parts.size(); ++i) {
    if (t.in_target_) {
      t.destinations_.push_back(tiers.Get(t.route.target)->Map(t.targets[i]));
    } else {
      auto buffer = PartBuffer::Of(t.parts[i].bytes[t.route.source]);
      if (!buffer.ok()) return Stop(self, buffer.status());
      t.destinations_.push_back(t.buffers_.emplace_back(*std::move(buffer)).bytes());
    }
  }
  t.bytes.assign(t.destinations_.begin(), t.destinations_.end());
  Advance(self);
}

void Transfer::Store(const std::shared_ptr<Transfer>& self) {
  if (self->in_target_) return self->End();
  {
    MutexLock lock(self->mu_);
    self->phase_ = {.storing = true};
  }
  Advance(self);
}

void Transfer::Stop(const std::shared_ptr<Transfer>& self, Status status) {
  {
    MutexLock lock(self->mu_);
    if (self->status_.ok()) self->status_ = std::move(status);
  }
  self->End();
}

void Transfer::Advance(const std::shared_ptr<Transfer>& self) {
  Transfer& t = *self;
  bool failed, storing;
  for (;;) {
    size_t part;
    {
      MutexLock lock(t.mu_);
      Phase& phase = t.phase_;
      failed = !t.status_.ok();
      storing = phase.storing;
      if (phase.starting || phase.over) return;
      if (phase.under_way == 0 && (failed || phase.done == t.parts.size())) {
        phase.over = true;
        break;
      }
      if (failed || phase.next == t.parts.size() || phase.under_way == kPartsAtOnce) return;
      phase.starting = true;
      part = phase.next++;
      ++phase.under_way;
    }
    StartPart(self, storing, part);
    MutexLock lock(t.mu_);
    t.phase_.starting = false;
  }
  if (failed || storing) return t.End();
  t.loaded_ = true;
  t.Loaded(self);
}

void Transfer::StartPart(const std::shared_ptr<Transfer>& self, bool storing, size_t part) {
  Transfer& t = *self;
  IoCallback done = RunsOnce(
      [self](const Status& status) {
        self->PartEnded(status);
        Advance(self);
      },
      [route = t.route] {
        return Errorf(StatusCode::kCancelled, "the {} or the {} tier went away", Name(route.source),
                      Name(route.target));
      });
  if (storing) {
    t.context_.tiers.Get(t.route.target)
        ->Write(t.targets[part], t.RecordOf(part), t.bytes[part], std::move(done));
  } else {
    t.context_.tiers.Get(t.route.source)
        ->Read(t.parts[part].In(t.route.source), t.destinations_[part], std::move(done));
  }
}

void Transfer::PartEnded(const Status& result) {
  MutexLock lock(mu_);
  --phase_.under_way;
  if (result.ok()) {
    ++phase_.done;
  } else if (status_.ok()) {
    status_ = result;
  }
}

void Transfer::End() {
  {
    MutexLock lock(mu_);
    CAIRN_CHECK(!ended_);
    ended_ = true;
  }
  buffers_.clear();
  Ended();
}

}  // namespace cairn::cache
