#pragma once
// Collects the views of one discovery.

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/membership/discovery.h"

namespace cairn::membership {

// Only a bug reaches it.
inline constexpr std::chrono::minutes kPatience(2);

// Thread-safe. It must outlive the discovery whose views it gets.
class Observer {
 public:
  Discovery::OnView callback() {
    return [this](const View& view) {
      {
        MutexLock lock(mu_);
        views_.push_back(view);
      }
      changed_.NotifyAll();
    };
  }
  // Waits until the last view has just these addresses, in any order. False: it does not come to
  // that.
  bool WaitFor(std::vector<std::string> addresses) {
    std::sort(addresses.begin(), addresses.end());
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kPatience,
                              [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                return !views_.empty() && Addresses(views_.back()) == addresses;
                              });
  }
  std::vector<View> views() const {
    MutexLock lock(mu_);
    return views_;
  }
  static std::vector<std::string> Addresses(const View& view) {
    std::vector<std::string> addresses;
    for (const Member& member : view) addresses.push_back(member.address);
    std::sort(addresses.begin(), addresses.end());
    return addresses;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<View> views_ ABSL_GUARDED_BY(mu_);
};

// Waits for what no callback tells. False: it does not happen.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace cairn::membership
