#include "tests/fault/adversary/cost.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

constexpr uint32_t kCallsInFlight = 8;
// Connections, and the first blocks.
constexpr uint64_t kFirstCalls = 200;
constexpr milliseconds kLongestStart = seconds(60);

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Round {
  double rate = 0, p99_ms = 0, success = 0;
};

class CostRunner {
 public:
  CostRunner(Stage* stage, const CostOptions& options)
      : stage_(*stage), options_(options), random_(options.seed) {}

  Result<CostReport> Run() {
    CostReport report{.seed = options_.seed, .costs = {}};
    for (const std::string& port : stage_.ports()) {
      if (!options_.port.empty() && port != options_.port) continue;
      honest_ = NewLoad("honest-first", port);
      second_ = NewLoad("honest-second", port);
      CAIRN_CHECK(WaitUntil([this] { return honest_->calls() >= kFirstCalls; }, kLongestStart));
      for (const Recipe* recipe : options_.recipes) {
        if (recipe->alone) continue;
        report.costs.push_back(Measure(*recipe, port));
        Say(report.costs.back());
        CAIRN_RETURN_IF_ERROR(AllLive());
      }
      honest_.reset();
      second_.reset();
    }
    for (const WatchedServer& watched : stage_.servers()) {
      CAIRN_RETURN_IF_ERROR(watched.server->Stop());
    }
    return report;
  }

 private:
  std::unique_ptr<HonestLoad> NewLoad(const std::string& name, const std::string& port) {
    return stage_.NewLoad(port, {.name = name, .seed = random_(), .threads = kCallsInFlight});
  }

  Status AllLive() const {
    for (const auto& [name, server, account] : stage_.servers()) {
      if (server->deaths() == 0) continue;
      return Errorf(StatusCode::kInternal, "{} died: {}", name, server->last_death());
    }
    return OkStatus();
  }

  Round Watch() {
    (void)honest_->TakeWindow();
    const TimePoint begin = SteadyClock::Get().Now();
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.round_seconds));
    const HonestWindow window = honest_->TakeWindow();
    const double lasted = Seconds(SteadyClock::Get().Now() - begin);
    return {.rate = static_cast<double>(window.calls) / lasted,
            .p99_ms = window.Quantile(0.99),
            .success = window.SuccessRate()};
  }

  Round WatchBeside(const Recipe& recipe) {
    second_->Pause();
    std::stop_source stop;
    std::jthread player([&, seed = random_()] {
      std::mt19937_64 seeds(seed);
      while (!stop.stop_requested()) {
        Scene scene(stage_.places(), {honest_.get()}, stop.get_token(), seeds(), &ignored_);
        recipe.run(scene);
      }
    });
    const Round round = Watch();
    stop.request_stop();
    player.join();
    honest_->Continue();
    for (const WatchedServer& watched : stage_.servers()) watched.server->StopReadingLog(false);
    stage_.DropHostile();
    second_->Continue();
    return round;
  }

  Cost Measure(const Recipe& recipe, const std::string& port) {
    std::vector<double> rates, p99s, rates_beside, p99s_beside;
    Cost cost{.recipe = std::string(recipe.name), .port = port};
    for (int i = 0; i < options_.rounds; ++i) {
      const Round beside = Watch();
      const Round hostile = WatchBeside(recipe);
      rates_beside.push_back(beside.rate);
      p99s_beside.push_back(beside.p99_ms);
      rates.push_back(hostile.rate);
      p99s.push_back(hostile.p99_ms);
      cost.success = std::min(cost.success, hostile.success);
    }
    cost.rate_beside = Median(rates_beside);
    cost.p99_beside_ms = Median(p99s_beside);
    if (cost.rate_beside > 0) cost.rate = Median(rates) / cost.rate_beside;
    if (cost.p99_beside_ms > 0) cost.p99 = Median(p99s) / cost.p99_beside_ms;
    return cost;
  }

  void Say(const Cost& cost) const {
    if (options_.quiet) return;
    std::printf("%-22s %-14s rate %.2f, p99 %.2f\n", cost.recipe.c_str(), cost.port.c_str(),
                cost.rate, cost.p99);
    std::fflush(stdout);
  }

  Stage& stage_;
  const CostOptions& options_;
  std::mt19937_64 random_;
  std::unique_ptr<HonestLoad> honest_, second_;
  Findings ignored_;  // What recipes find is the runner's.
};

}  // namespace

Result<CostReport> MeasureCosts(Stage* stage, const CostOptions& options) {
  return CostRunner(stage, options).Run();
}

std::string CostReport::Text() const {
  std::string text = fmt::format("{:22} {:14} {:>6} {:>6} {:>9} {:>12} {:>10}\n", "recipe", "port",
                                 "rate", "p99", "success", "beside: /s", "p99 ms");
  for (const Cost& cost : costs) {
    text += fmt::format("{:22} {:14} {:6.2f} {:6.2f} {:8.2f}% {:12.0f} {:10.1f}\n", cost.recipe,
                        cost.port, cost.rate, cost.p99, cost.success * 100, cost.rate_beside,
                        cost.p99_beside_ms);
  }
  return text;
}

std::string CostReport::Json() const {
  std::string rows;
  for (const Cost& cost : costs) {
    rows += fmt::format(R"({}{{"recipe":"{}","port":"{}","rate_ratio":{:.4f},"p99_ratio":{:.4f},)"
                        R"("success":{:.5f},"rate_beside":{:.1f},"p99_beside_ms":{:.3f}}})",
                        rows.empty() ? "" : ",", cost.recipe, cost.port, cost.rate, cost.p99,
                        cost.success, cost.rate_beside, cost.p99_beside_ms);
  }
  return fmt::format(R"({{"seed":{},"costs":[{}]}})", seed, rows);
}

}  // namespace cairn::fault
