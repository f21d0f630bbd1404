#pragma once
// Small named values of the tier's owner. They are written by a loop of their own, so that a device
// that hangs holds up no caller for longer than `patience`.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/loop.h"
#include "services/cache/store/tier/disk/record_store.h"

namespace cairn::cache::disk {

// Thread-safe.
class NamedValues {
 public:
  NamedValues(RecordStore& store, const Clock& clock, Duration patience, const StartLoop& start);
  ~NamedValues() { Stop(); }

  // Survive a power loss when they return OK. UNAVAILABLE: the device has not done it in time, and
  // may do it later, or too many wait already.
  Status Put(std::string_view name, std::string_view value);
  Status Delete(std::string_view name);
  Status List(const std::function<void(std::string_view, std::string_view)>& visitor);
  // Writes what waits, and refuses what comes. Idempotent.
  void Stop();
  // Values that could not be written.
  uint64_t failures() const { return failures_; }

 private:
  struct Operation;
  Status Do(std::function<Status()> run);
  void Run();

  RecordStore& store_;
  const Clock& clock_;
  const Duration patience_;
  std::atomic<uint64_t> failures_{0};
  Mutex mu_;
  CondVar changed_;
  std::deque<std::shared_ptr<Operation>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Loop> loop_;
};

}  // namespace cairn::cache::disk
