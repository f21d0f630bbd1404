#pragma once
// What hostile and clumsy clients do, one function for each way. A function is one pass: it ends by
// itself, or when its scene says so, and leaves nothing that a client's end would not end.

#include <string_view>
#include <vector>

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

// Of StartNodeStage and of StartClusterStage, in the order of the tables in recipes.cc.
std::vector<const Recipe*> NodeRecipes();
std::vector<const Recipe*> ClusterRecipes();

// lookups.cc
void DuplicateKeys(Scene& scene);
void HugeLookups(Scene& scene);
void PoolFloods(Scene& scene);
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
// asks.cc
void LargeBodies(Scene& scene);
void StalledBodies(Scene& scene);
void LongTexts(Scene& scene);
void BeyondContext(Scene& scene);
void WrongFields(Scene& scene);
void BrokenKeys(Scene& scene);
void LoudPriorities(Scene& scene);
void HastyAsks(Scene& scene);
void MadeUpTenants(Scene& scene);
void QueryFloods(Scene& scene);
void WorkerCrowd(Scene& scene);
void SlowAnswers(Scene& scene);
void CancelledStreams(Scene& scene);
// edges.cc
void HttpFloods(Scene& scene);
void PickerCrowd(Scene& scene);
void SlowAdmins(Scene& scene);
// members.cc
void MadeUpHolders(Scene& scene);
void HastyMatches(Scene& scene);
void LocateFloods(Scene& scene);
void MemberLies(Scene& scene);
void ShortLives(Scene& scene);
void DiskRows(Scene& scene);
void DiskLeases(Scene& scene);

}  // namespace cairn::fault
