#include "services/worker/engine/engine_cache.h"

#include <algorithm>
#include <chrono>

#include "common/log/log.h"
#include "services/worker/engine/methods.h"

namespace cairn::worker {

EngineCache::EngineCache(const EngineParts& parts, Executor& executor, Wakeup& wakeup)
    : client_(*parts.cache) {
  const Layout& layout = parts.ns->spec.layout;
  PageEncoder* const encoder = parts.transformer->page_encoder();
  PushQueue::Options options = parts.options.push;
  push_.emplace(client_, layout, *parts.clock, options, encoder, &wakeup);
  options.niceness = 0;
  urgent_push_.emplace(client_, layout, *parts.clock, options, encoder, &wakeup);
  // One at a time: the client's buffers for a batch are memory beside the pool.
  options.batch_blocks = 1;
  spill_push_.emplace(client_, layout, *parts.clock, options);
  turn_push_.emplace(client_, layout, *parts.clock, options);
  session_.emplace(PrefixSession::Dependencies{.client = client_,
                                               .codec = *parts.codec,
                                               .clock = *parts.clock,
                                               .executor = executor,
                                               .loader = parts.transformer->slice_loader(),
                                               .wakeup = &wakeup},
                   *parts.ns, parts.pool->layout(), parts.options.prefix);
  OpenPublished(parts);
  if (std::ranges::any_of(parts.published, [](const PublishedNamespace& target) {
        return target.stage != nullptr;
      })) {
    stages_ = methods::NewStagePublisher(*parts.transformer, *parts.model, *push_, parts.published);
  }
}

void EngineCache::OpenPublished(const EngineParts& parts) {
  for (const PublishedNamespace& target : parts.published) {
    const bool away = !client_.GetStats().connected;
    const Duration deadline = away ? Duration(std::chrono::milliseconds(1))
                                   : Duration(parts.options.prefix.connect_deadline);
    const Status opened =
        client_.OpenNamespace(target.ns.spec, {.deadline = deadline, .trace = {}}).status();
    if (!opened.ok()) {
      log::Warn("cache_namespace_not_open",
                {{"recipe", target.ns.spec.recipe}, {"error", ToString(opened)}});
    }
  }
}

bool EngineCache::pushing() const {
  return push_->GetStats().queued_blocks + urgent_push_->GetStats().queued_blocks > 0;
}

PushQueue::Stats EngineCache::push_stats() const {
  PushQueue::Stats stats = push_->GetStats();
  stats += urgent_push_->GetStats();
  stats += spill_push_->GetStats();
  stats += turn_push_->GetStats();
  return stats;
}

bool EngineCache::WaitPushed(TimePoint deadline) {
  return push_->WaitEmpty(deadline) && urgent_push_->WaitEmpty(deadline);
}

void EngineCache::Stop(TimePoint deadline) {
  turn_push_->Stop(deadline);
  spill_push_->Stop(deadline);
  urgent_push_->Stop(deadline);
  push_->Stop(deadline);
}

}  // namespace cairn::worker
