// Reservations, stores and flushes.

#include <algorithm>
#include <memory>
#include <set>

#include "tests/fault/adversary/honest_blocks.h"
#include "tests/fault/adversary/local_client.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"

namespace cairn::fault {
namespace {

constexpr uint32_t kLongest = 600'000;  // Milliseconds, the longest that a client may name.

PartToStore MarkedBlock(const std::string& tenant, uint64_t number, size_t bytes) {
  return {KeyOf(tenant, number), OpaquePart(MarkedBytes(tenant, bytes)), RectOf(0, 1, 0, 1), ""};
}

// Honest blocks can be stored and read although somebody has reserved them all. A node that is full
// may refuse one for a moment: a second is what an honest client has patience for.
void ExpectStored(Scene& scene, const std::string& ns, const std::string& tenant, uint64_t blocks) {
  // Others may fill the places for sessions at this moment. Without one nothing can be stored,
  // which says nothing about reservations.
  auto honest = std::make_unique<WireClient>(scene.node.address(), scene.stop);
  while (honest->hello().session_id().empty()) {
    if (!scene.going()) return scene.Note("no session came free");
    scene.Spend(std::chrono::milliseconds(50));
    honest = std::make_unique<WireClient>(scene.node.address(), scene.stop);
  }
  honest->Open(OpaqueSpec(tenant));
  uint64_t missing = 0;
  std::string why;
  for (uint64_t i = 0; i < blocks && scene.going(); ++i) {
    bool stored = false;
    for (int attempt = 0; !stored && attempt < 20; ++attempt) {
      if (attempt > 0) scene.Spend(std::chrono::milliseconds(50));
      const std::vector<int> codes = honest->Store(ns, {MarkedBlock(tenant, i, 4000)});
      stored = honest->Matched(ns, KeyOf(tenant, i)) == 1;
      if (!stored) why = fmt::format("code {}: {}", codes[0], honest->last_refusal());
    }
    if (!stored) ++missing;
  }
  scene.Expect(missing == 0, fmt::format("{} of {} blocks that another client has reserved could "
                                         "not be stored, the last with {}",
                                         missing, blocks, why));
}

uint64_t EvictedBlocks(const v1::StatResponse& stat) {
  for (const v1::TierStat& tier : stat.tiers()) {
    if (tier.tier() == v1::TIER_KIND_HOST) return tier.evicted_blocks();
  }
  return 0;
}

}  // namespace

void Squatting(Scene& scene) {
  WireClient squatter(scene.node.address(), scene.stop);
  const std::string tenant = scene.Tenant("squat");
  const std::string ns = squatter.Open(OpaqueSpec(tenant));
  std::vector<PartToStore> parts;
  for (uint64_t i = 0; i < 1000; ++i) parts.push_back(MarkedBlock(tenant, i, 4000));
  squatter.Reserve(ns, parts, kLongest);
  // What honest clients will store next, too.
  for (const HonestLoad* load : scene.honest) {
    const HonestBlocks* const blocks = load->client().blocks();
    if (blocks == nullptr) continue;
    const FaultModel& model = blocks->model();
    std::vector<PartToStore> next;
    for (uint64_t prompt = 0; prompt < 100; ++prompt) {
      for (const BlockKey& key : model.MakePrompt(blocks->next_prompt() + 4 + prompt)) {
        PartToStore part;
        part.key = std::string(key.View());
        part.bytes = std::string(model.PartBytes(model.whole()), 0);
        part.rect = RectOf(0, model.whole().layer_end, 0, model.whole().head_end);
        next.push_back(std::move(part));
      }
    }
    squatter.Reserve(std::string(model.fingerprint().View()), next, kLongest);
  }
  ExpectStored(scene, ns, tenant, 50);
  scene.Spend(std::chrono::seconds(2));
}

void SameNodeSquatting(Scene& scene) {
  WireClient session(scene.node.address(), scene.stop);
  const std::string tenant = scene.Tenant("room");
  const std::string ns = session.Open(OpaqueSpec(tenant));
  auto squatter = LocalClient::Open(session.hello(), tenant);
  if (!squatter.ok()) return scene.Note(ToString(squatter.status()));
  const uint64_t bytes = OpaquePart(MarkedBytes(tenant, 4000)).size();
  uint64_t granted = 0;
  Status refused;
  for (uint64_t i = 0; i < 50 && scene.going(); ++i) {
    const Status status = (*squatter)->Squat(ns, KeyOf(tenant, i), bytes);
    if (status.ok()) {
      ++granted;
    } else {
      refused = status;
    }
  }
  scene.Note(fmt::format("{} of 50 rooms granted; {}", granted, ToString(refused)));
  // It never fills them, and it never says that it will not.
  ExpectStored(scene, ns, tenant, 50);
}

void FlushLoop(Scene& scene) {
  constexpr uint64_t kBudget = 2 << 20;
  scene.PauseHonest();
  const Status restarted = scene.node.Restart(
      /*kill=*/false, {"--disk.write_budget", "2MiB", "--disk.high_water", "0.3"});
  scene.Expect(restarted.ok(), "restart: " + ToString(restarted));
  {
    const std::string tenant = scene.Tenant("flush");
    WireClient writer(scene.node.address(), scene.stop);
    WireClient stranger(scene.node.address(), scene.stop);
    const std::string ns = writer.Open(OpaqueSpec(tenant));
    const auto written = [&] {
      uint64_t bytes = 0;
      const v1::StatResponse stat = stranger.Stat();
      for (const v1::TierStat& tier : stat.tiers()) {
        if (tier.tier() == v1::TIER_KIND_DISK) bytes = tier.written_bytes();
      }
      return bytes;
    };
    const uint64_t before = written();
    const TimePoint begin = SteadyClock::Get().Now();
    for (uint64_t i = 0; i < 8 && scene.going(); ++i) {
      std::vector<PartToStore> parts;
      for (uint64_t n = 0; n < 100; ++n) parts.push_back(MarkedBlock(tenant, i * 100 + n, 60'000));
      writer.Store(ns, parts);
      stranger.Flush(std::chrono::milliseconds(200));
    }
    const double passed = Seconds(SteadyClock::Get().Now() - begin);
    const uint64_t grown = written() - before;
    scene.Note(fmt::format("{} MiB written in {:.1f} s", grown >> 20, passed));
    // A second of burst, and what was under way.
    scene.Expect(static_cast<double>(grown) < (passed + 3) * kBudget,
                 fmt::format("a stranger's flushes lift the write budget: {} MiB in {:.1f} s at 2 "
                             "MiB/s",
                             grown >> 20, passed));
    writer.DropTenant(tenant);
  }
  (void)scene.node.Restart(/*kill=*/false);
  scene.ContinueHonest();
}

void SecondTenant(Scene& scene) {
  constexpr size_t kBytes = 60'000;
  constexpr uint64_t kBlocks = 9600;       // More than the host tier holds.
  constexpr uint64_t kMostEvicted = 2240;  // What two arena segments of 64 MiB hold.
  scene.PauseHonest();
  {
    const std::string first = scene.Tenant("first"), second = scene.Tenant("second");
    WireClient a(scene.node.address(), scene.stop), b(scene.node.address(), scene.stop);
    auto a_here = LocalClient::Open(a.hello(), first);
    const std::string ns = a.Open(OpaqueSpec(first));
    std::vector<uint64_t> numbers;
    for (uint64_t i = 0; i < kBlocks && scene.going(); i += 100) {
      std::vector<PartToStore> parts;
      for (uint64_t n = i; n < i + 100; ++n) {
        parts.push_back(MarkedBlock(first, n, kBytes));
        numbers.push_back(n);
      }
      a.Store(ns, parts);
    }
    // Memory that nobody maps is full, too.
    const std::string remote = scene.Tenant("remote");
    WireClient far(scene.node.address(), scene.stop);
    const std::string far_ns = far.Open(OpaqueSpec(remote));
    for (uint64_t i = 0; i < 2000 && scene.going(); i += 100) {
      std::vector<PartToStore> parts;
      for (uint64_t n = i; n < i + 100; ++n) parts.push_back(MarkedBlock(remote, n, kBytes));
      far.Store(far_ns, parts);
    }
    // Where a block lies and when it was used last have nothing to do with each other.
    std::shuffle(numbers.begin(), numbers.end(), scene.random);
    for (const uint64_t n : numbers) {
      v1::MatchResponse response;
      if (!scene.going()) break;
      a.Match(ns, KeyOf(first, n), 1000, &response);
      if (response.lease_id() != 0) a.Release(response.lease_id());
    }
    const uint64_t before = EvictedBlocks(a.Stat());
    auto b_here = LocalClient::Open(b.hello(), second);
    const std::string other = b.Open(OpaqueSpec(second));
    const std::vector<int> codes = b.Store(other, {MarkedBlock(second, 1, 4000)});
    if (b_here.ok()) {
      (void)(*b_here)->StoreInPlace(other, KeyOf(second, 2), OpaquePart(MarkedBytes(second, 4000)));
    }
    const uint64_t evicted = EvictedBlocks(b.Stat()) - before;
    scene.Note(fmt::format("one block of 4 KB evicted {} blocks of 60 KB", evicted));
    // The segments that it has now have room for these.
    for (uint64_t n = 10; n < 30; ++n) b.Store(other, {MarkedBlock(second, n, 4000)});
    const uint64_t later = EvictedBlocks(b.Stat()) - before - evicted;
    scene.Expect(evicted + later <= kMostEvicted,
                 fmt::format("the first 21 blocks evicted {} others", evicted + later));
    scene.Expect(codes == std::vector<int>{0}, "the first block of a second tenant was refused");
    scene.Expect(evicted <= kMostEvicted,
                 fmt::format("the first block of a second tenant evicted {} of {} blocks", evicted,
                             kBlocks));
    a.DropTenant(first);
    b.DropTenant(second);
  }
  scene.ContinueHonest();
}

}  // namespace cairn::fault
