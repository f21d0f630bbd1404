#include "services/router/registry/worker_registry.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace cairn::router {

std::string_view Name(WorkerCondition condition) {
  switch (condition) {
    case WorkerCondition::kWaiting:
      return "waiting";
    case WorkerCondition::kUnsuitable:
      return "unsuitable";
    case WorkerCondition::kDraining:
      return "draining";
    case WorkerCondition::kReady:
      return "ready";
  }
  return "unknown";
}

struct WorkerRegistry::State {
  struct Worker {
    std::string address;
    bool named = true;                 // False: the place is free.
    std::shared_ptr<WorkerLink> link;  // nullptr: the place is free, or the registry has ended.
    std::shared_ptr<const WorkerInfo> info;
    std::shared_ptr<const WorkerReport> report;
    TimePoint reported_at = {};
    std::string error = "it has not answered yet";
    bool suitable = true;
    bool logged_away = false;  // Since it was last reached, a line of the log said why it is away.
    bool watched = false;      // A watch is under way.
    uint64_t generation = 0;  // The generation of that watch. Reports of older watches are ignored.
    uint64_t connects = 0;
    TimePoint heard_at = {};  // When the watch began or last told something.
    TimePoint next_try = {};
    Duration backoff{0};
    std::shared_ptr<WorkerCall> call;
  };

  Options options;
  const Clock* clock = nullptr;
  OnLoad on_load;
  mutable Mutex mu;
  std::vector<Worker> workers ABSL_GUARDED_BY(mu);

  // The worker of a watch, or nullptr if it has another watch by now.
  Worker* Current(size_t index, uint64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Worker& worker = workers[index];
    return worker.watched && worker.generation == generation ? &worker : nullptr;
  }
  void EndWatch(Worker* worker, const std::string& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    worker->watched = false;
    worker->call.reset();
    worker->report.reset();
    worker->error = error;
    worker->backoff =
        std::clamp<Duration>(worker->backoff * 2, options.first_backoff, options.max_backoff);
    worker->next_try = clock->Now() + worker->backoff;
  }
};

class WorkerRegistry::Watch final : public WorkerWatchObserver {
 public:
  Watch(std::shared_ptr<State> state, size_t index, uint64_t generation)
      : state_(std::move(state)), index_(index), generation_(generation) {}

  void OnInfo(const WorkerInfo& info) override {
    const std::string& wanted = state_->options.weights_digest;
    const bool suitable = wanted.empty() || info.weights_digest == wanted;
    MutexLock lock(state_->mu);
    State::Worker* const worker = state_->Current(index_, generation_);
    if (worker == nullptr) return;
    worker->info = std::make_shared<const WorkerInfo>(info);
    worker->heard_at = state_->clock->Now();
    if (worker->suitable && !suitable) {
      log::Warn("router_worker_unsuitable", {{"worker", worker->address}, {"model", info.model}});
    }
    worker->suitable = suitable;
  }

  void OnReport(const WorkerReport& report) override {
    std::string address;
    {
      MutexLock lock(state_->mu);
      State::Worker* const worker = state_->Current(index_, generation_);
      if (worker == nullptr) return;
      if (worker->report == nullptr) {
        ++worker->connects;
        worker->backoff = Duration(0);
        worker->logged_away = false;
        log::Info("router_worker_reached", {{"worker", worker->address}});
      }
      worker->report = std::make_shared<const WorkerReport>(report);
      worker->reported_at = worker->heard_at = state_->clock->Now();
      address = worker->address;
    }
    state_->on_load(address, &report.load);
  }

  void OnEnd(const Status& status) override {
    std::string address;
    {
      MutexLock lock(state_->mu);
      State::Worker* const worker = state_->Current(index_, generation_);
      if (worker == nullptr) return;
      if (!std::exchange(worker->logged_away, true)) {
        log::Warn(worker->report != nullptr ? "router_worker_lost" : "router_worker_not_reached",
                  {{"worker", worker->address}, {"error", ToString(status)}});
      }
      state_->EndWatch(worker, status.ok() ? "it ended its load reports" : ToString(status));
      address = worker->address;
    }
    state_->on_load(address, nullptr);
  }

 private:
  const std::shared_ptr<State> state_;
  const size_t index_;
  const uint64_t generation_;
};

WorkerRegistry::WorkerRegistry(Options options, const MakeWorkerLink& make_link, const Clock* clock,
                               OnLoad on_load)
    : options_(std::move(options)),
      make_link_(make_link),
      clock_(clock),
      state_(std::make_shared<State>()) {
  state_->options = options_;
  state_->clock = clock;
  state_->on_load = std::move(on_load);
  SetAddresses(options_.addresses);
}

WorkerRegistry::~WorkerRegistry() {
  std::vector<std::shared_ptr<WorkerCall>> calls;
  std::vector<std::shared_ptr<WorkerLink>> links;  // Destroyed without the lock.
  {
    MutexLock lock(state_->mu);
    for (State::Worker& worker : state_->workers) {
      worker.watched = false;
      if (worker.call != nullptr) calls.push_back(std::move(worker.call));
      links.push_back(std::move(worker.link));
    }
  }
  for (const auto& call : calls) call->Cancel();
}

void WorkerRegistry::SetAddresses(const std::vector<std::string>& addresses) {
  std::vector<std::string> gone;
  std::vector<std::shared_ptr<WorkerCall>> calls;
  std::vector<std::shared_ptr<WorkerLink>> links;  // Destroyed without the lock.
  {
    MutexLock lock(state_->mu);
    std::vector<State::Worker>& workers = state_->workers;
    for (State::Worker& worker : workers) {
      if (!worker.named || std::ranges::find(addresses, worker.address) != addresses.end()) {
        continue;
      }
      worker.named = worker.watched = false;
      gone.push_back(worker.address);
      if (worker.call != nullptr) calls.push_back(std::move(worker.call));
      links.push_back(std::move(worker.link));
    }
    for (const std::string& address : addresses) {
      const auto known = [&](const State::Worker& w) { return w.named && w.address == address; };
      if (std::ranges::any_of(workers, known)) continue;
      auto place = std::ranges::find(workers, false, &State::Worker::named);
      if (place == workers.end()) place = workers.emplace(workers.end());
      // Watches of the worker that had the place before are not heard.
      const uint64_t generation = place->generation;
      *place = State::Worker();
      place->address = address;
      place->link = make_link_(address);
      place->generation = generation;
    }
  }
  for (const auto& call : calls) call->Cancel();
  for (const std::string& address : gone) state_->on_load(address, nullptr);
}

void WorkerRegistry::Tick() {
  const TimePoint now = clock_->Now();
  for (size_t i = 0;; ++i) {
    std::shared_ptr<WorkerCall> silent;
    std::shared_ptr<WorkerLink> link;
    std::string address;
    uint64_t generation = 0;
    {
      MutexLock lock(state_->mu);
      if (i >= state_->workers.size()) return;
      State::Worker& worker = state_->workers[i];
      if (!worker.named) continue;
      address = worker.address;
      if (worker.watched && now - worker.heard_at > options_.silent_after) {
        silent = worker.call;
        if (!std::exchange(worker.logged_away, true)) {
          log::Warn("router_worker_silent", {{"worker", address}});
        }
        state_->EndWatch(
            &worker, fmt::format("it has told nothing for {}s", Seconds(options_.silent_after)));
      } else if (!worker.watched && now >= worker.next_try) {
        worker.watched = true;
        worker.heard_at = now;
        generation = ++worker.generation;
        link = worker.link;
      }
    }
    if (silent != nullptr) {
      silent->Cancel();
      state_->on_load(address, nullptr);
    }
    if (link == nullptr) continue;
    auto call = link->Watch(std::make_shared<Watch>(state_, i, generation));
    bool ended = false;  // Also if the worker is named no more.
    {
      MutexLock lock(state_->mu);
      State::Worker* const worker = state_->Current(i, generation);
      ended = worker == nullptr;
      if (!ended) worker->call = call;
    }
    if (ended) call->Cancel();
  }
}

std::vector<RegisteredWorker> WorkerRegistry::Workers() const {
  std::vector<RegisteredWorker> views;
  MutexLock lock(state_->mu);
  for (const State::Worker& worker : state_->workers) {
    if (!worker.named) continue;
    RegisteredWorker& view = views.emplace_back();
    view.address = worker.address;
    view.info = worker.info;
    view.report = worker.report;
    view.reported_at = worker.reported_at;
    view.connects = worker.connects;
    view.link = worker.link;
    if (worker.report == nullptr) {
      view.reason = worker.error;
    } else if (!worker.suitable) {
      view.condition = WorkerCondition::kUnsuitable;
      view.reason = fmt::format("its weights are {}, this router's {}",
                                worker.info->weights_digest.substr(0, 12),
                                options_.weights_digest.substr(0, 12));
    } else if (worker.report->draining) {
      view.condition = WorkerCondition::kDraining;
      view.reason = "it drains";
    } else {
      view.condition = WorkerCondition::kReady;
      if (view.only_prefills()) {
        view.reason = "it only computes prompts for other workers (role prefill)";
      }
    }
  }
  return views;
}

}  // namespace cairn::router
