#pragma once
// What a recipe gets to work with: a node and all other places, the honest clients beside it,
// random numbers, and a place for what it found.

#include <cstdint>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "common/concurrency/mutex.h"
#include "tests/fault/adversary/stage.h"

namespace cairn::fault {

// What a recipe saw. Thread-safe.
class Findings {
 public:
  void Add(const std::string& text);
  void Note(const std::string& text);
  // Each text once.
  std::vector<std::string> Take();
  std::vector<std::string> Notes();

 private:
  Mutex mu_;
  std::vector<std::string> found_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mu_);
};

// One thread uses it, but Expect and Note may be called from several.
class Scene {
 public:
  Scene(const Places& all_places, std::vector<HonestLoad*> honest_loads, std::stop_token stop_token,
        uint64_t seed, Findings* findings)
      : places(all_places),
        node(*places.nodes[seed % places.nodes.size()]),
        honest(std::move(honest_loads)),
        stop(std::move(stop_token)),
        random(seed),
        findings_(*findings) {}

  const Places& places;
  TestedServer& node;  // One of them.
  const std::vector<HonestLoad*> honest;
  const std::stop_token stop;
  std::mt19937_64 random;

  bool going() const { return !stop.stop_requested(); }
  // Spends this time, or less when the recipe shall end. False: it shall.
  bool Spend(std::chrono::milliseconds time) const;
  // A finding, unless `held` is true or the recipe was cut short meanwhile.
  void Expect(bool held, const std::string& text);
  // A figure for people.
  void Note(const std::string& text) { findings_.Note(text); }
  // A name that no other pass has. The runner drops tenants whose names begin so.
  std::string Tenant(const std::string& name);
  uint64_t Between(uint64_t low, uint64_t high) { return low + random() % (high - low + 1); }
  void PauseHonest();
  void ContinueHonest();

  static constexpr const char* kTenantPrefix = "x-";

 private:
  Findings& findings_;
};

}  // namespace cairn::fault
