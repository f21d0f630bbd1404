#include "tests/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cairn/common/status.h"
#include "tests/simulation/fiber.h"

namespace cairn::testing {

struct Simulation::Task {
  explicit Task(std::function<void()> body) : fiber(std::move(body)) {}
  Fiber fiber;
  // Until when it waits; null: it does not.
  const std::function<bool()>* ready = nullptr;
  TimePoint deadline;
};

void Simulation::SimulatedClock::Wait(CondVar& /*changed*/, Mutex& mu, TimePoint deadline,
                                      const std::function<bool()>& ready) const
    // The caller holds `mu`, which Clock cannot say.
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  mu.Unlock();
  simulation_.Park(deadline, [&] {
    MutexLock lock(mu);
    return ready();
  });
  mu.Lock();
}

Simulation::Simulation(uint64_t seed) : start_(clock_.Now()), random_(seed) {}

Simulation::~Simulation() { CAIRN_CHECK(tasks_.empty()); }

void Simulation::Start(std::function<void()> task) {
  tasks_.push_back(std::make_unique<Task>(std::move(task)));
}

void Simulation::Run() {
  CAIRN_CHECK(running_ == nullptr);
  while (!tasks_.empty()) {
    const size_t next = Choose();
    running_ = tasks_[next].get();
    running_->ready = nullptr;
    running_->fiber.Resume();
    const bool done = running_->fiber.done();
    running_ = nullptr;
    if (done) tasks_.erase(tasks_.begin() + static_cast<ptrdiff_t>(next));
  }
}

bool Simulation::CanRun(const Task& task) const {
  return task.ready == nullptr || task.deadline <= Now() || (*task.ready)();
}

size_t Simulation::Choose() {
  while (true) {
    std::vector<size_t> able;
    TimePoint next = TimePoint::max();
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (CanRun(*tasks_[i])) {
        able.push_back(i);
      } else {
        next = std::min(next, tasks_[i]->deadline);
      }
    }
    if (!able.empty()) return able[Random(able.size())];
    // Otherwise all tasks wait for each other.
    CAIRN_CHECK(next != TimePoint::max());
    clock_.AdvanceTo(next);
  }
}

void Simulation::Park(TimePoint deadline, const std::function<bool()>& ready) {
  CAIRN_CHECK(running_ != nullptr);
  Task& task = *running_;
  task.ready = &ready;
  task.deadline = deadline;
  task.fiber.Yield();
}

void Simulation::Sleep(Duration time) {
  Park(Now() + time, [] { return false; });
}

uint64_t Simulation::Random(uint64_t below) { return random_() % below; }

void Simulation::Note(const std::string& event) {
  trace_.push_back(fmt::format("{:.6f} {}", Seconds(Elapsed()), event));
}

Status SimulatedPool::Post(std::function<void()> task) {
  MutexLock lock(mu_);
  if (stopped_) return Status(StatusCode::kUnavailable, "the pool was stopped");
  ++running_;
  simulation_.Start([this, task = std::move(task)]() mutable {
    task();
    task = nullptr;  // All that it holds ends with it.
    MutexLock done(mu_);
    --running_;
    ended_.NotifyAll();
  });
  return OkStatus();
}

void SimulatedPool::Stop() {
  MutexLock lock(mu_);
  stopped_ = true;
  ended_.Wait(mu_, simulation_.clock(),
              [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return running_ == 0; });
}

}  // namespace cairn::testing
