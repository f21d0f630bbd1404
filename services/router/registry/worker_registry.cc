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
    std::shared_ptr<const WorkerInfo> info;
    std::shared_ptr<const WorkerReport> report;
    TimePoint reported_at = {};
    std::string error = "it has not answered yet";
    bool suitable = true;
    bool watched = false;     // A watch is under way.
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
      if (worker->report != nullptr) {
        log::Warn("router_worker_lost", {{"worker", worker->address}, {"error", ToString(status)}});
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
    : options_(std::move(options)), clock_(clock), state_(std::make_shared<State>()) {
  state_->options = options_;
  state_->clock = clock;
  state_->on_load = std::move(on_load);
  MutexLock lock(state_->mu);
  for (const std::string& address : options_.addresses) {
    links_.push_back(make_link(address));
    state_->workers.emplace_back().address = address;
  }
}

WorkerRegistry::~WorkerRegistry() {
  std::vector<std::shared_ptr<WorkerCall>> calls;
  {
    MutexLock lock(state_->mu);
    for (State::Worker& worker : state_->workers) {
      worker.watched = false;
      if (worker.call != nullptr) calls.push_back(std::move(worker.call));
    }
  }
  for (const auto& call : calls) call->Cancel();
}

void WorkerRegistry::Tick() {
  const TimePoint now = clock_->Now();
  for (size_t i = 0; i < links_.size(); ++i) {
    std::shared_ptr<WorkerCall> silent;
    uint64_t generation = 0;
    {
      MutexLock lock(state_->mu);
      State::Worker& worker = state_->workers[i];
      if (worker.watched && now - worker.heard_at > options_.silent_after) {
        silent = worker.call;
        log::Warn("router_worker_silent", {{"worker", worker.address}});
        state_->EndWatch(
            &worker, fmt::format("it has told nothing for {}s", Seconds(options_.silent_after)));
      } else if (!worker.watched && now >= worker.next_try) {
        worker.watched = true;
        worker.heard_at = now;
        generation = ++worker.generation;
      }
    }
    if (silent != nullptr) {
      silent->Cancel();
      state_->on_load(options_.addresses[i], nullptr);
    }
    if (generation == 0) continue;
    auto call = links_[i]->Watch(std::make_shared<Watch>(state_, i, generation));
    MutexLock lock(state_->mu);
    if (State::Worker* const worker = state_->Current(i, generation))
      worker->call = std::move(call);
  }
}

std::vector<RegisteredWorker> WorkerRegistry::Workers() const {
  std::vector<RegisteredWorker> views;
  MutexLock lock(state_->mu);
  for (size_t i = 0; i < state_->workers.size(); ++i) {
    const State::Worker& worker = state_->workers[i];
    RegisteredWorker& view = views.emplace_back();
    view.index = i;
    view.address = worker.address;
    view.info = worker.info;
    view.report = worker.report;
    view.reported_at = worker.reported_at;
    view.connects = worker.connects;
    view.link = links_[i].get();
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
