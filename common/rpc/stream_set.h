#pragma once
// The open streams of one kind, so that a ticker can visit them.

#include <algorithm>
#include <memory>
#include <vector>

#include "common/concurrency/mutex.h"

namespace cairn::rpc {

// Thread-safe.
template <typename Stream>
class StreamSet {
 public:
  void Add(std::shared_ptr<Stream> stream) {
    MutexLock lock(mu_);
    open_.push_back(std::move(stream));
  }
  void Remove(const Stream* stream) {
    std::shared_ptr<Stream> last;  // Let go of outside of the lock.
    MutexLock lock(mu_);
    const auto it =
        std::find_if(open_.begin(), open_.end(), [&](const auto& s) { return s.get() == stream; });
    if (it == open_.end()) return;
    last = std::move(*it);
    *it = std::move(open_.back());
    open_.pop_back();
  }
  std::vector<std::shared_ptr<Stream>> All() const {
    MutexLock lock(mu_);
    return open_;
  }
  size_t size() const {
    MutexLock lock(mu_);
    return open_.size();
  }

 private:
  mutable Mutex mu_;
  std::vector<std::shared_ptr<Stream>> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::rpc
