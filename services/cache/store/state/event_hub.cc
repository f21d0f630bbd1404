#include "services/cache/store/state/event_hub.h"

#include <algorithm>

namespace cairn::cache {
namespace {

constexpr size_t kChargedAtOnce = 256;  // Events.

}  // namespace

class EventHub::Queue final : public EventQueue {
 public:
  Queue(EventHub* hub, const EventFilter& filter, NextPage snapshot)
      : hub_(hub), filter_(filter), snapshot_(std::move(snapshot)) {}
  // The sequence that a snapshot stands for. Before the queue is used.
  void Begin(uint64_t sequence) { sequence_ = sequence; }
  ~Queue() override {
    MutexLock lock(hub_->mu_);
    std::erase(hub_->queues_, this);
    hub_->watchers_.fetch_sub(1, std::memory_order_release);
  }

  // RESOURCE_EXHAUSTED: all queues together hold too much, and the event is not in this one.
  Status Push(const CacheEvent& event, std::string_view tenant) {
    if (!filter_.Takes(event.fingerprint, tenant)) return OkStatus();
    {
      MutexLock lock(mu_);
      if (lagged_) return OkStatus();
      if (events_.size() >= hub_->queue_capacity_) {
        DropAll(Errorf(StatusCode::kResourceExhausted,
                       "watcher fell more than {} events behind: start again with a snapshot",
                       hub_->queue_capacity_));
      } else {
        CAIRN_RETURN_IF_ERROR(ChargeFor(events_.size() + 1));
        events_.push_back(event);
      }
    }
    wake_.NotifyAll();
    return OkStatus();
  }
  // The queue gives no more events.
  void GiveUp(const Status& why) {
    {
      MutexLock lock(mu_);
      if (!lagged_) DropAll(Annotate(why, "watcher fell behind: start again with a snapshot"));
    }
    wake_.NotifyAll();
  }
  size_t size() const {
    MutexLock lock(mu_);
    return events_.size();
  }

  Result<std::vector<CacheEvent>> Next(size_t max, TimePoint deadline) override {
    std::vector<CacheEvent> paged = NextOfSnapshot(max);
    MutexLock lock(mu_);
    if (!paged.empty() && !lagged_ && !cancelled_) return paged;
    wake_.WaitUntil(mu_, hub_->clock_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return cancelled_ || lagged_ || !events_.empty();
    });
    if (lagged_) return why_lagged_;
    if (cancelled_) return Errorf(StatusCode::kCancelled, "watch was cancelled");
    std::vector<CacheEvent> out;
    while (!events_.empty() && out.size() < max) {
      out.push_back(events_.front());
      events_.pop_front();
    }
    (void)ChargeFor(events_.size());  // Less never fails.
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
  // Charges for `count` waiting events. RESOURCE_EXHAUSTED: all watchers together hold too many.
  Status ChargeFor(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const size_t chunks = (count + kChargedAtOnce - 1) / kChargedAtOnce;
    // One chunk stays, so that a queue that is emptied again and again does not ask each time.
    if (chunks <= charged_chunks_ && chunks + 1 >= charged_chunks_) return OkStatus();
    const uint64_t bytes = chunks * kChargedAtOnce * sizeof(CacheEvent);
    if (charged_chunks_ == 0) {
      CAIRN_ASSIGN_OR_RETURN(charge_, hub_->memory_.Charge(MemoryItem::kWatches, bytes));
    } else {
      CAIRN_RETURN_IF_ERROR(charge_.Resize(bytes));
    }
    charged_chunks_ = chunks;
    return OkStatus();
  }
  void DropAll(const Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    lagged_ = true;
    why_lagged_ = why;
    hub_->dropped_.fetch_add(events_.size() + 1, std::memory_order_relaxed);
    std::deque<CacheEvent>().swap(events_);
    charge_.Clear();
    charged_chunks_ = 0;
  }
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
  const EventFilter filter_;
  uint64_t sequence_ = 0;  // Constant after Begin.
  Mutex snapshot_mu_;      // Held while a page is made; outside all other locks.
  NextPage snapshot_ ABSL_GUARDED_BY(snapshot_mu_);
  std::vector<CacheEvent> page_ ABSL_GUARDED_BY(snapshot_mu_);
  size_t told_ ABSL_GUARDED_BY(snapshot_mu_) = 0;
  mutable Mutex mu_;
  CondVar wake_;
  std::deque<CacheEvent> events_ ABSL_GUARDED_BY(mu_);
  MemoryCharge charge_ ABSL_GUARDED_BY(mu_);
  size_t charged_chunks_ ABSL_GUARDED_BY(mu_) = 0;
  bool lagged_ ABSL_GUARDED_BY(mu_) = false;
  Status why_lagged_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

void EventHub::Publish(CacheEvent event, std::string_view tenant) {
  MutexLock lock(mu_);
  event.node_epoch = node_epoch_;
  event.sequence = ++sequence_;
  for (Queue* queue : queues_) {
    for (Status full = queue->Push(event, tenant); !full.ok(); full = queue->Push(event, tenant)) {
      // The slowest watcher makes room, not the one that happened to need some.
      Queue* loser =
          *std::max_element(queues_.begin(), queues_.end(),
                            [](const Queue* a, const Queue* b) { return a->size() < b->size(); });
      if (loser->size() <= queue->size()) loser = queue;
      loser->GiveUp(full);
      if (loser == queue) break;
    }
  }
}

std::unique_ptr<EventQueue> EventHub::Subscribe(const EventFilter& filter, NextPage snapshot) {
  auto queue = std::make_unique<Queue>(this, filter, std::move(snapshot));
  MutexLock lock(mu_);
  queue->Begin(sequence_);
  queues_.push_back(queue.get());
  watchers_.fetch_add(1, std::memory_order_release);
  return queue;
}

}  // namespace cairn::cache
