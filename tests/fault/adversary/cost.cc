#include "tests/fault/adversary/cost.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "cairn/client/connect.h"
#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

constexpr uint32_t kCallsInFlight = 8;
// Connections, and the first prompts.
constexpr uint64_t kFirstPrompts = 64;
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
  explicit CostRunner(const CostOptions& options) : options_(options), random_(options.seed) {}

  Result<CostReport> Run() {
    CAIRN_ASSIGN_OR_RETURN(
        node_, TestedNode::Start({.directory = directory_.path(), .args = SmallNodeArgs()}));
    CostReport report{.seed = options_.seed, .costs = {}};
    for (const auto& [name, path] : {std::pair("gRPC", client::PathChoice::kGrpc),
                                     std::pair("shared memory", client::PathChoice::kAuto)}) {
      honest_ = NewLoad("honest-first", path);
      second_ = NewLoad("honest-second", path);
      CAIRN_CHECK(
          WaitUntil([this] { return honest_->next_prompt() >= kFirstPrompts; }, kLongestStart));
      for (const Recipe* recipe : options_.recipes) {
        if (recipe->alone) continue;
        report.costs.push_back(Measure(*recipe, name));
        Say(report.costs.back());
        if (node_->deaths() > 0) {
          return Errorf(StatusCode::kInternal, "the node died: {}", node_->last_death());
        }
      }
      honest_.reset();
      second_.reset();
    }
    CAIRN_RETURN_IF_ERROR(node_->Stop());
    return report;
  }

 private:
  std::unique_ptr<HonestLoad> NewLoad(const std::string& tenant, client::PathChoice path) {
    return std::make_unique<HonestLoad>(node_.get(), HonestLoad::Options{.tenant = tenant,
                                                                         .path = path,
                                                                         .threads = kCallsInFlight,
                                                                         .seed = random_(),
                                                                         .pause = Duration{0}});
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
        Scene scene(node_.get(), {honest_.get()}, stop.get_token(), seeds(), &ignored_);
        recipe.run(scene);
      }
    });
    const Round round = Watch();
    stop.request_stop();
    player.join();
    honest_->Continue();
    node_->StopReadingLog(false);
    DropHostileTenants(node_->address());
    second_->Continue();
    return round;
  }

  Cost Measure(const Recipe& recipe, const std::string& path) {
    std::vector<double> rates, p99s, rates_beside, p99s_beside;
    Cost cost{.recipe = std::string(recipe.name), .path = path};
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
    std::printf("%-22s %-14s rate %.2f, p99 %.2f\n", cost.recipe.c_str(), cost.path.c_str(),
                cost.rate, cost.p99);
    std::fflush(stdout);
  }

  const CostOptions& options_;
  std::mt19937_64 random_;
  const testing::TemporaryDirectory directory_;
  std::unique_ptr<TestedNode> node_;
  std::unique_ptr<HonestLoad> honest_, second_;
  Findings ignored_;  // What recipes find is the runner's.
};

}  // namespace

Result<CostReport> MeasureCosts(const CostOptions& options) { return CostRunner(options).Run(); }

std::string CostReport::Text() const {
  std::string text = fmt::format("{:22} {:14} {:>6} {:>6} {:>9} {:>12} {:>10}\n", "recipe", "path",
                                 "rate", "p99", "success", "beside: /s", "p99 ms");
  for (const Cost& cost : costs) {
    text += fmt::format("{:22} {:14} {:6.2f} {:6.2f} {:8.2f}% {:12.0f} {:10.1f}\n", cost.recipe,
                        cost.path, cost.rate, cost.p99, cost.success * 100, cost.rate_beside,
                        cost.p99_beside_ms);
  }
  return text;
}

std::string CostReport::Json() const {
  std::string rows;
  for (const Cost& cost : costs) {
    rows += fmt::format(R"({}{{"recipe":"{}","path":"{}","rate_ratio":{:.4f},"p99_ratio":{:.4f},)"
                        R"("success":{:.5f},"rate_beside":{:.1f},"p99_beside_ms":{:.3f}}})",
                        rows.empty() ? "" : ",", cost.recipe, cost.path, cost.rate, cost.p99,
                        cost.success, cost.rate_beside, cost.p99_beside_ms);
  }
  return fmt::format(R"({{"seed":{},"costs":[{}]}})", seed, rows);
}

}  // namespace cairn::fault
