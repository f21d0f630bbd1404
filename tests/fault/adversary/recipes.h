#pragma once
// What hostile and clumsy clients do, one function for each way. A function is one pass: it ends by
// itself, or when its scene says so, and leaves nothing that a client's end would not end.

#include <span>
#include <string_view>

#include "tests/fault/adversary/scene.h"

namespace cairn::fault {

struct Recipe {
  std::string_view name;
  std::string_view what;  // In one line, with what is expected of the node.
  void (*run)(Scene&);
  // What honest clients must see meanwhile: the share of calls that succeed, and how many times the
  // 99th percentile of their times may be that of the yardstick, where a second honest client is in
  // the recipe's place.
  double success = 0.99;
  double p99_ratio = 10;
  bool alone = false;  // It stops honest clients or restarts the node: nothing else runs beside it.
};

// In the order of the table in recipes.cc.
std::span<const Recipe> Recipes();
// nullptr: there is none of this name.
const Recipe* FindRecipe(std::string_view name);

// lookups.cc
void DuplicateKeys(Scene& scene);
void HugeLookups(Scene& scene);
void RowFloods(Scene& scene);
void CollidingKeys(Scene& scene);
void RootChains(Scene& scene);
void ExpiringLeases(Scene& scene);
void HintFloods(Scene& scene);
// layouts.cc
void ManyGroups(Scene& scene);
void LadderBomb(Scene& scene);
void NamespaceFlood(Scene& scene);
void HeavyNamespaces(Scene& scene);
void SaltProbe(Scene& scene);
void ManyParts(Scene& scene);
void PartsOfOneKey(Scene& scene);
// writes.cc
void Squatting(Scene& scene);
void SameNodeSquatting(Scene& scene);
void FlushLoop(Scene& scene);
void SecondTenant(Scene& scene);
// connections.cc
void IdlePushes(Scene& scene);
void SessionFloods(Scene& scene);
void IdleWatches(Scene& scene);
void SlowReaders(Scene& scene);
void SlowAdmin(Scene& scene);
void WireNoise(Scene& scene);
void TracedFailures(Scene& scene);
// same_node.cc
void HelloLies(Scene& scene);
void HelloFlood(Scene& scene);
void RingLies(Scene& scene);
void LentWrites(Scene& scene);
void TenantsComeAndGo(Scene& scene);
void SegmentTurns(Scene& scene);
void DropAndBumpRaces(Scene& scene);
void StoppedHolder(Scene& scene);
void KilledHolders(Scene& scene);
// restarts.cc
void StrangerAdmin(Scene& scene);
void KillNine(Scene& scene);
void OtherCapacities(Scene& scene);
void GrowingDisk(Scene& scene);

}  // namespace cairn::fault
