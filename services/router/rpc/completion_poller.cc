#include "services/router/rpc/completion_poller.h"

namespace cairn::router {

CompletionPoller::CompletionPoller(size_t threads) {
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      void* tag = nullptr;
      bool ok = false;
      while (queue_.Next(&tag, &ok)) static_cast<CompletionTag*>(tag)->Proceed(ok);
    });
  }
}

CompletionPoller::~CompletionPoller() {
  {
    MutexLock lock(mu_);
    ended_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return calls_ == 0; });
  }
  queue_.Shutdown();
  for (std::thread& thread : threads_) thread.join();
}

void CompletionPoller::Begin() {
  MutexLock lock(mu_);
  ++calls_;
}

void CompletionPoller::End() {
  MutexLock lock(mu_);
  --calls_;
  ended_.NotifyAll();
}

}  // namespace cairn::router
