#include "services/cache/state/event_hub.h"

#include <algorithm>

namespace cairn::cache {

class EventHub::Queue final : public EventQueue {
 public:
  Queue(EventHub* hub, const std::optional<Fingerprint>& fingerprint, NextPage snapshot)
      : hub_(hub), fingerprint_(fingerprint), snapshot_(std::move(snapshot)) {}
  // The sequence that a snapshot stands for. Before the queue is used.
  void Begin(uint64_t sequence) { sequence_ = sequence; }
  ~Queue() override {
    MutexLock lock(hub_->mu_);
    std::erase(hub_->queues_, this);
    hub_->watchers_.fetch_sub(1, std::memory_order_release);
  }

  void Push(const CacheEvent& event) {
    if (fingerprint_ && event.fingerprint != *fingerprint_) return;
    {
      MutexLock lock(mu_);
      if (lagged_) return;
      if (events_.size() >= hub_->queue_capacity_) {
        lagged_ = true;
        hub_->dropped_.fetch_add(events_.size() + 1, std::memory_order_relaxed);
        events_.clear();
      } else {
        events_.push_back(event);
      }
    }
    wake_.NotifyAll();
  }

  Result<std::vector<CacheEvent>> Next(size_t max, TimePoint deadline) override {
    std::vector<CacheEvent> paged = NextOfSnapshot(max);
    MutexLock lock(mu_);
    if (!paged.empty() && !lagged_ && !cancelled_) return paged;
    wake_.WaitUntil(mu_, hub_->clock_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return cancelled_ || lagged_ || !events_.empty();
    });
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
  std::vector<CacheEvent> NextOfSnapshot(size_t max) {
    std::vector<CacheEvent> out;
    MutexLock lock(snapshot_mu_);
    while (out.size() < max) {
      if (told_ < page_.size()) {
        out.push_back(page_[told_++]);
        out.back().node_epoch = hub_->node_epoch_;
        out.back().sequence = sequence_;
        continue;
      }
      if (snapshot_ == nullptr) break;
      page_.clear();
      told_ = 0;
      if (snapshot_(&page_)) continue;
      snapshot_ = nullptr;
      page_.emplace_back().kind = CacheEvent::Kind::kSnapshotEnd;
    }
    return out;
  }

  EventHub* const hub_;
  const std::optional<Fingerprint> fingerprint_;
  uint64_t sequence_ = 0;  // Constant after Begin.
  Mutex snapshot_mu_;      // Held while a page is made; outside all other locks.
  NextPage snapshot_ ABSL_GUARDED_BY(snapshot_mu_);
  std::vector<CacheEvent> page_ ABSL_GUARDED_BY(snapshot_mu_);
  size_t told_ ABSL_GUARDED_BY(snapshot_mu_) = 0;
  Mutex mu_;
  CondVar wake_;
  std::deque<CacheEvent> events_ ABSL_GUARDED_BY(mu_);
  bool lagged_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

void EventHub::Publish(CacheEvent event) {
  MutexLock lock(mu_);
  event.node_epoch = node_epoch_;
  event.sequence = ++sequence_;
  for (Queue* queue : queues_) queue->Push(event);
}

std::unique_ptr<EventQueue> EventHub::Subscribe(const std::optional<Fingerprint>& fingerprint,
                                                NextPage snapshot) {
  auto queue = std::make_unique<Queue>(this, fingerprint, std::move(snapshot));
  MutexLock lock(mu_);
  queue->Begin(sequence_);
  queues_.push_back(queue.get());
  watchers_.fetch_add(1, std::memory_order_release);
  return queue;
}

}  // namespace cairn::cache
