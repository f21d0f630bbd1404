#include "services/cache/engine/event_hub.h"

#include <algorithm>

namespace cairn::cache {

class EventHub::Queue final : public EventQueue {
 public:
  Queue(EventHub* hub, const std::optional<Fingerprint>& fingerprint)
      : hub_(hub), fingerprint_(fingerprint) {}
  ~Queue() override {
    MutexLock lock(hub_->mu_);
    std::erase(hub_->queues_, this);
    hub_->watchers_.fetch_sub(1, std::memory_order_release);
  }

  void Push(const CacheEvent& event) {
    if (fingerprint_ && event.fingerprint != *fingerprint_ &&
        event.kind != CacheEvent::Kind::kSnapshotEnd) {
      return;
    }
    {
      MutexLock lock(mu_);
      if (lagged_) return;
      if (live_ >= hub_->queue_capacity_) {
        lagged_ = true;
        hub_->dropped_.fetch_add(live_ + 1, std::memory_order_relaxed);
        events_.clear();
      } else {
        ++live_;
        events_.push_back(event);
      }
    }
    wake_.NotifyAll();
  }

  void PushSnapshot(std::vector<CacheEvent> events) {
    {
      MutexLock lock(mu_);
      if (lagged_) return;
      events_.insert(events_.end(), events.begin(), events.end());
    }
    wake_.NotifyAll();
  }

  Result<std::vector<CacheEvent>> Next(size_t max, TimePoint deadline) override {
    MutexLock lock(mu_);
    wake_.WaitUntil(mu_, deadline, [this] { return cancelled_ || lagged_ || !events_.empty(); });
    if (lagged_) {
      return Errorf(StatusCode::kResourceExhausted,
                    "watcher fell more than {} events behind: start again with a snapshot",
                    hub_->queue_capacity_);
    }
    if (cancelled_) return Errorf(StatusCode::kCancelled, "watch was cancelled");
    std::vector<CacheEvent> out;
    while (!events_.empty() && out.size() < max) {
      out.push_back(events_.front());
      events_.pop_front();
    }
    // Snapshot and live events leave in one order: what is left over is live once fewer events than
    // live ones remain.
    live_ = std::min(live_, events_.size());
    return out;
  }

  void Cancel() override {
    {
      MutexLock lock(mu_);
      cancelled_ = true;
    }
    wake_.NotifyAll();
  }

 private:
  EventHub* const hub_;
  const std::optional<Fingerprint> fingerprint_;
  Mutex mu_;
  CondVar wake_;
  std::deque<CacheEvent> events_ ABSL_GUARDED_BY(mu_);
  size_t live_ ABSL_GUARDED_BY(mu_) = 0;  // Upper bound of live events in `events_`.
  bool lagged_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

void EventHub::Publish(CacheEvent event) {
  MutexLock lock(mu_);
  event.sequence = ++sequence_;
  for (Queue* queue : queues_) queue->Push(event);
}

std::unique_ptr<EventQueue> EventHub::Subscribe(const std::optional<Fingerprint>& fingerprint) {
  auto queue = std::make_unique<Queue>(this, fingerprint);
  MutexLock lock(mu_);
  queues_.push_back(queue.get());
  watchers_.fetch_add(1, std::memory_order_release);
  return queue;
}

void EventHub::AddToSnapshot(EventQueue& queue, std::vector<CacheEvent> events) {
  MutexLock lock(mu_);
  for (CacheEvent& event : events) event.sequence = sequence_;
  static_cast<Queue&>(queue).PushSnapshot(std::move(events));
}

void EventHub::EndSnapshot(EventQueue& queue) {
  CacheEvent end;
  end.kind = CacheEvent::Kind::kSnapshotEnd;
  MutexLock lock(mu_);
  end.sequence = sequence_;
  static_cast<Queue&>(queue).PushSnapshot({end});
}

}  // namespace cairn::cache
