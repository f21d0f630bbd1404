#pragma once
// Many tasks in one thread, by turns, on a clock that only they move: what the threads of several
// processes do, the same way each time.
//
//   Simulation world(/*seed=*/1);
//   world.Start([&] { ... world.Sleep(milliseconds(5)); ... });
//   world.Run();  // Until all tasks have ended.
//
// Each task has a stack of its own (a fiber), so the code of the product runs in it as it is,
// nested calls and all. A task runs until it waits: in a CondVar on clock(), or in Sleep. Then the
// seed chooses among the tasks that can go on. When none can, the clock jumps to the next deadline.
// When there is none either, all tasks wait for each other, and the test ends with an error.
//
// So computing takes no time here, unless a test says with Sleep how long it takes.

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"

namespace cairn::testing {

// Not thread-safe: everything happens in the thread that calls Run.
class Simulation {
 public:
  explicit Simulation(uint64_t seed);
  ~Simulation();  // REQUIRES: all tasks have ended.
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // Waits on it let other tasks run. Only tasks may wait.
  Clock& clock() { return clock_; }
  TimePoint Now() const { return clock_.Now(); }
  // Since the simulation was made.
  Duration Elapsed() const { return Now() - start_; }

  // Adds a task. Tasks may do this, too.
  void Start(std::function<void()> task);
  // Runs tasks until all have ended.
  void Run();
  // Lets other tasks run until so much time has passed. Only for tasks.
  void Sleep(Duration time);

  // A number that depends on the seed and on what was asked before.
  uint64_t Random(uint64_t below);

  // Remembers that something happened now.
  void Note(const std::string& event);
  // "12.345678 event", in order.
  const std::vector<std::string>& trace() const { return trace_; }

 private:
  class SimulatedClock final : public Clock {
   public:
    explicit SimulatedClock(Simulation& simulation) : simulation_(simulation) {}
    TimePoint Now() const override { return time_.Now(); }
    void Wait(CondVar& changed, Mutex& mu, TimePoint deadline,
              const std::function<bool()>& ready) const override;
    void AdvanceTo(TimePoint time) { time_.Advance(time - time_.Now()); }

   private:
    Simulation& simulation_;
    FakeClock time_;
  };
  struct Task;

  // The running task lets others run until `ready`, or until `deadline`.
  void Park(TimePoint deadline, const std::function<bool()>& ready);
  bool CanRun(const Task& task) const;
  // The next task to run. Moves the clock when none can run now.
  size_t Choose();

  SimulatedClock clock_{*this};
  const TimePoint start_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Task>> tasks_;
  Task* running_ = nullptr;
  std::vector<std::string> trace_;
};

// In place of a pool of threads: tasks run by turns with all others.
class SimulatedPool final : public Executor {
 public:
  explicit SimulatedPool(Simulation& simulation) : simulation_(simulation) {}
  ~SimulatedPool() override { Stop(); }
  Status Post(std::function<void()> task) override;
  // Refuses new tasks, and waits for the others. Idempotent. Only for tasks, unless all have ended.
  void Stop();

 private:
  Simulation& simulation_;
  Mutex mu_;
  CondVar ended_;
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::testing
