#include "services/worker/rpc/worker_metrics.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace cairn::worker {
namespace {

// Says what it was given.
class FakeEngine final : public WorkerEngine {
 public:
  explicit FakeEngine(Stats stats) : stats_(std::move(stats)) {}
  Result<GenerateSummary> Generate(const GenerateRequest&, const GenerateCallbacks&) override {
    return Status(StatusCode::kUnimplemented, "it only has statistics");
  }
  bool WaitIdle(std::chrono::milliseconds) override { return true; }
  Info GetInfo() const override { return {}; }
  Stats GetStats() const override { return stats_; }
  Load GetLoad() const override { return {}; }
  MemoryAccount::Bounds memory_bounds() const override { return MemoryAccount::Unbounded(); }
  void MeasureMemory(MemoryAccount*) const override {}
  const model::Model& model() const override { std::abort(); }
  void Shutdown(std::chrono::milliseconds) override {}

 private:
  const Stats stats_;
};

std::string Shown(const WorkerEngine::Stats& stats) {
  const FakeEngine engine(stats);
  metrics::Registry registry;
  const WorkerMetrics metrics(registry, engine);
  return registry.Scrape();
}

// Sets one field after the other, and expects that the metrics tell. `stats` stands for the struct
// that has the fields.
#define EXPECT_SHOWN(stats, name)                                                        \
  {                                                                                      \
    WorkerEngine::Stats all;                                                             \
    stats.name = 7;                                                                      \
    EXPECT_EQ(Shown(all) != nothing, !hidden.contains(#name)) << #stats << "." << #name; \
  }
#define OF_ENGINE(kind, name, ...) EXPECT_SHOWN(all, name)
#define OF_READING(kind, name, ...) EXPECT_SHOWN(all.reading, name)
#define OF_PUSHES(kind, name, ...) EXPECT_SHOWN(all.push, name)
#define OF_SPILLS(kind, name, ...) EXPECT_SHOWN(all.spill, name)
#define OF_SPILL_READS(kind, name, ...) EXPECT_SHOWN(all.spill.read, name)

TEST(WorkerMetricsTest, EachCounterIsShown) {
  const std::string nothing = Shown({});
  // The sums of others, what answers of requests say, and what the account of memory shows.
  const std::set<std::string> hidden = {"prompt_tokens", "chosen_tokens", "queued_bytes",
                                        "pool_refusals", "near_refusals"};
  CAIRN_WORKER_STATISTICS(OF_ENGINE)
  CAIRN_READ_STATISTICS(OF_READING)
  CAIRN_PUSH_STATISTICS(OF_PUSHES)
  CAIRN_SPILL_STATISTICS(OF_SPILLS)
  CAIRN_SPILL_READ_STATISTICS(OF_SPILL_READS)
}

#define EXPECT_ADDED(kind, name, ...)            \
  one.name = 2;                                  \
  sum.name = 3;                                  \
  sum += one;                                    \
  EXPECT_EQ(sum.name, 5) << #name << " is lost"; \
  one = {};

TEST(WorkerStatisticsTest, EachCounterIsAdded) {
  {
    ReadCounters one, sum;
    CAIRN_READ_STATISTICS(EXPECT_ADDED)
  }
  {
    PushQueue::Stats one, sum;
    CAIRN_PUSH_STATISTICS(EXPECT_ADDED)
  }
  {
    SpillStats one, sum;
    CAIRN_SPILL_STATISTICS(EXPECT_ADDED)
  }
  {
    SpillReadStats one, sum;
    CAIRN_SPILL_READ_STATISTICS(EXPECT_ADDED)
  }
}

}  // namespace
}  // namespace cairn::worker
