#pragma once
// One run: a node, honest clients, a yardstick, and then round after round of recipes with the
// invariants after each.

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/fault/adversary/liveness.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/report.h"
#include "tests/support/process.h"

namespace cairn::fault {

// Not thread-safe.
class Runner {
 public:
  struct Options {
    uint64_t seed = 1;
    double seconds = 180;
    std::vector<const Recipe*> recipes;
    bool quiet = false;  // No progress on stdout.
  };
  explicit Runner(Options options) : options_(std::move(options)), random_(options_.seed) {}

  // An error: the run could not begin. What it found is in the report.
  Result<Report> Run();

 private:
  Status StartNode();
  void MeasureYardstick();
  void RunRound(const std::vector<const Recipe*>& recipes, double round_seconds);
  // The invariants after a round. What is wrong.
  std::vector<std::string> CheckRound(const std::vector<const Recipe*>& recipes,
                                      const HonestWindow& window, const Liveness::Window& probes,
                                      double lasted);
  // Waits until all that hostile clients held is given back, and removes their tenants.
  std::string Settle();
  void CheckHonest(const std::vector<const Recipe*>& recipes, const HonestWindow& window,
                   double lasted, std::vector<std::string>* found);
  std::vector<std::vector<const Recipe*>> Deal();
  HonestWindow TakeHonest();
  uint64_t MostMemory() const { return report_.account_bytes + report_.account_bytes / 20; }
  void Finish();
  void Say(const std::string& text) const;

  const Options options_;
  std::mt19937_64 random_;
  Report report_;
  const testing::TemporaryDirectory directory_;
  std::unique_ptr<TestedNode> node_;
  std::vector<std::unique_ptr<HonestLoad>> honest_;
  std::unique_ptr<Liveness> liveness_;
  std::unique_ptr<client::CacheClient> operator_;
  uint64_t deaths_ = 0;  // Those that a round has reported.
  uint64_t peak_ = 0;    // Bytes, at the end of the last round.
  std::string in_host_;  // Which tenants have many blocks there, at the end of the last round.
};

}  // namespace cairn::fault
