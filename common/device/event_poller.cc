#include "common/device/event_poller.h"

#include <pthread.h>

#include <utility>

namespace cairn::device {

void EventPoller::Watch(Event event, Done done) {
  bool first;
  {
    MutexLock lock(mu_);
    first = watched_.empty();
    watched_.push_back({std::move(event), std::move(done)});
  }
  if (first && wake_) wake_();
}

size_t EventPoller::Step() {
  // Those that come meanwhile are for the next step; callbacks run without the lock.
  std::vector<Watched> asked;
  {
    MutexLock lock(mu_);
    asked.swap(watched_);
  }
  std::vector<Watched> waiting;
  size_t ran = 0;
  for (Watched& watched : asked) {
    const Result<bool> happened = watched.event.Query();
    if (happened.ok() && !*happened) {
      waiting.push_back(std::move(watched));
      continue;
    }
    watched.event.Release();
    watched.done(happened.status());
    ++ran;
  }
  MutexLock lock(mu_);
  watched_.insert(watched_.begin(), std::make_move_iterator(waiting.begin()),
                  std::make_move_iterator(waiting.end()));
  return ran;
}

bool EventPoller::idle() const {
  MutexLock lock(mu_);
  return watched_.empty();
}

void EventPoller::Abandon(const Status& why) {
  std::vector<Watched> left;
  {
    MutexLock lock(mu_);
    left.swap(watched_);
  }
  for (Watched& watched : left) {
    watched.event.Release();
    watched.done(why);
  }
}

PollingThread::PollingThread(EventPoller* poller, Duration interval)
    : poller_(*poller), interval_(interval) {
  poller_.SetWake([this] {
    {
      MutexLock lock(mu_);
      wanted_ = true;
    }
    wake_.NotifyOne();
  });
  thread_ = std::thread([this] { Run(); });
}

PollingThread::~PollingThread() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

void PollingThread::Run() {
  pthread_setname_np(pthread_self(), "cairn-device");
  for (;;) {
    {
      MutexLock lock(mu_);
      wake_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return wanted_ || stopping_; });
      if (stopping_) return;
      wanted_ = false;
    }
    while (!poller_.idle()) {
      if (poller_.Step() > 0) continue;
      MutexLock lock(mu_);
      const bool stop =
          wake_.WaitUntil(mu_, std::chrono::steady_clock::now() + interval_,
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
      if (stop) return;
    }
  }
}

}  // namespace cairn::device
