#pragma once
// One run: a stage, honest clients at its ports, a yardstick, and then round after round of recipes
// with the invariants after each.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/fault/adversary/foreign_load.h"
#include "tests/fault/adversary/liveness.h"
#include "tests/fault/adversary/pauses.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/report.h"
#include "tests/fault/adversary/stage.h"

namespace cairn::fault {

// Not thread-safe.
class Runner {
 public:
  struct Options {
    uint64_t seed = 1;
    double seconds = 75;
    std::vector<const Recipe*> recipes;
    bool quiet = false;  // No progress on stdout.
  };
  Runner(std::unique_ptr<Stage> stage, Options options)
      : options_(std::move(options)), random_(options_.seed), stage_(std::move(stage)) {}

  // What it found.
  Report Run();

 private:
  struct Player;
  using Windows = std::map<std::string, HonestWindow>;  // By port.
  // What is wrong after a round.
  struct Found {
    std::vector<std::string> certain;
    std::vector<std::string> timed;  // A machine that became slower explains it as well.
  };

  void StartHonest();
  void MeasureYardstick();
  // Once more if honest clients waited too long, after a new yardstick: the machine may have become
  // slower. A fault of a server shows again.
  void Play(const std::vector<const Recipe*>& recipes, double round_seconds);
  // Whether honest clients were served in time. If not, that is a finding where this is `again`.
  bool RunRound(const std::vector<const Recipe*>& recipes, double round_seconds, bool again);
  std::vector<std::unique_ptr<Player>> StartPlayers(const std::vector<const Recipe*>& recipes,
                                                    const std::stop_source& stop);
  void NoteRound(const std::vector<const Recipe*>& recipes,
                 const std::vector<std::unique_ptr<Player>>& players,
                 const std::vector<std::string>& found);
  // The invariants after a round.
  Found CheckRound(const std::vector<const Recipe*>& recipes, const Windows& windows,
                   double lasted);
  void CheckServers(std::vector<std::string>* found);
  // Waits until all that hostile clients held is given back, and removes their tenants.
  std::string Settle();
  void CheckPort(const std::vector<const Recipe*>& recipes, const HonestLoad& load,
                 const HonestWindow& window, double lasted, Found* found);
  std::vector<std::vector<const Recipe*>> Deal();
  Windows TakeHonest();
  void TakeProbes(std::vector<std::string>* found);
  void Finish();
  void Say(const std::string& text) const;

  const Options options_;
  std::mt19937_64 random_;
  Report report_;
  const std::unique_ptr<Stage> stage_;
  std::vector<std::unique_ptr<HonestLoad>> honest_;  // One for each port.
  std::vector<std::unique_ptr<Liveness>> liveness_;  // One for each server.
  std::string holders_;  // Who had much in memory at the end of the last round.
  ForeignLoad foreign_;
  Pauses pauses_;
  bool machine_busy_ = false;  // In the last round: nothing is said about its time.
};

}  // namespace cairn::fault
