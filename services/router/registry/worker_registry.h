#pragma once
// Which workers there are, and what is known of each.
//
//   waiting      its watch has not told anything yet; it is tried again with a growing pause
//   unsuitable   it serves other weights than this router's model
//   draining     it takes no new requests
//   ready        all else. Those of the role prefill get no whole requests even then

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "services/router/registry/worker_link.h"

namespace cairn::router {

enum class WorkerCondition : uint8_t { kWaiting, kUnsuitable, kDraining, kReady };
// "waiting", ...
std::string_view Name(WorkerCondition condition);

// One worker at one moment.
struct RegisteredWorker {
  std::string address = {};
  WorkerCondition condition = WorkerCondition::kWaiting;
  std::string reason = {};                     // Why it gets no whole requests, for people.
  std::shared_ptr<const WorkerInfo> info;      // nullptr: it never told.
  std::shared_ptr<const WorkerReport> report;  // nullptr: it is not reached now.
  TimePoint reported_at = {};                  // When `report` came.
  uint64_t connects = 0;                       // How often it was reached.
  std::shared_ptr<WorkerLink> link;

  // It computes prompts for other workers, and answers no request.
  bool only_prefills() const { return info != nullptr && info->role == WorkerRole::kPrefill; }
  // It may get whole requests.
  bool answers() const { return condition == WorkerCondition::kReady && !only_prefills(); }
};

// Thread-safe.
class WorkerRegistry {
 public:
  struct Options {
    std::vector<std::string> addresses = {};
    std::string weights_digest = {};  // Hexadecimal, of the model that is routed. Empty: any.
    Duration first_backoff = std::chrono::milliseconds(100);
    Duration max_backoff = std::chrono::seconds(5);
    // A watch that tells nothing for this long ends and begins again.
    Duration silent_after = std::chrono::seconds(5);
  };
  // Called when a worker tells its load, and with nullptr when it is no longer reached. From any
  // thread, never while a lock of the registry is held.
  using OnLoad = std::function<void(const std::string& address, const WorkerLoad* load)>;

  // `clock` must outlive it. All that `on_load` uses must outlive the watches of all links.
  WorkerRegistry(Options options, const MakeWorkerLink& make_link, const Clock* clock,
                 OnLoad on_load);
  // Cancels all watches.
  ~WorkerRegistry();
  WorkerRegistry(const WorkerRegistry&) = delete;
  WorkerRegistry& operator=(const WorkerRegistry&) = delete;

  // These are the workers from now on. The watches of those that are named no more end; their
  // requests go on.
  void SetAddresses(const std::vector<std::string>& addresses);
  // Begins watches whose time has come, and ends silent ones. Call it every 100 ms or so.
  void Tick();
  // All that are named now, in the order of their places.
  std::vector<RegisteredWorker> Workers() const;

 private:
  class Watch;
  struct State;
  const Options options_;
  const MakeWorkerLink make_link_;
  const Clock* const clock_;
  const std::shared_ptr<State> state_;  // Watches hold it, too: they may end later.
};

}  // namespace cairn::router
