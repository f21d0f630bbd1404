#include "tests/simulation/cluster/targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/simulation/cluster/cluster_world.h"

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBlockTokens = 512;  // Each block is a waymark.
const uint32_t kPrefixBlocks = 64;
// A prefix takes about as long as 64 MiB at 400 Mbit/s.
constexpr size_t kBlockBytes = 4096;
constexpr double kBytesPerSecond = 200e3;
constexpr uint64_t kPieceBytes = 512;

const SimulatedNamespace& Namespace() {
  static const SimulatedNamespace ns = [] {
    SimulatedNamespace made{.spec = {}, .fingerprint = Sha256::Of("targets")};
    made.spec.layout.block_tokens = kBlockTokens;
    return made;
  }();
  return ns;
}

std::vector<BlockKey> KeysOf(uint64_t prompt, uint32_t blocks) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < blocks; ++i) keys.push_back(Sha256::Of(fmt::format("{} {}", prompt, i)));
  return keys;
}

ClusterWorld::Options Calm(size_t machines) {
  ClusterWorld::Options options;
  options.machines = machines;
  options.process.tick = milliseconds(100);
  options.versions_differ = false;
  return options;
}

void StartAll(ClusterWorld& world) {
  for (size_t i = 0; i < world.machines(); ++i) {
    world.Start(i);
    world.process(i)->engine().Know(Namespace());
  }
  world.Run(seconds(45));
}

// From the moment at which all want it, until the last has it.
struct Herd {
  double last = 0;
  double copies = 0;  // That the first holder sent.
  uint64_t failed = 0;
};
Herd MeasureOne(size_t members) {
  ClusterWorld::Options options = Calm(members);
  options.network.bytes_per_second = kBytesPerSecond;
  options.piece_bytes = kPieceBytes;
  options.process.engine.block_bytes = kBlockBytes;
  options.process.engine.read_patience = seconds(60);
  ClusterWorld world(options);
  StartAll(world);
  const std::vector<BlockKey> keys = KeysOf(1, kPrefixBlocks);
  world.process(0)->engine().Store(Namespace(), keys);
  world.Run(seconds(5));
  Herd herd;
  size_t left = members - 1;
  const TimePoint begun = world.Now();
  TimePoint ended = begun;
  for (size_t i = 1; i < members; ++i) {
    world.process(i)->Enter([&, i] {
      world.process(i)->engine().Get(Namespace(), keys, [&](const SimulatedEngine::Outcome& got) {
        --left;
        ended = world.Now();
        herd.failed += kPrefixBlocks - got.local - got.read;
      });
    });
  }
  for (int step = 0; left > 0 && step < 1200; ++step) world.Run(milliseconds(100));
  herd.last = Seconds(ended - begun);
  herd.copies = static_cast<double>(world.process(0)->cluster().view().sent_bytes) /
                (kPrefixBlocks * kBlockBytes);
  herd.failed += left * kPrefixBlocks;
  return herd;
}

// Requests for prompts, some of which are asked often. Blocks that nobody has are computed and
// stored.
class Load {
 public:
  explicit Load(ClusterWorld* world) : world_(*world) {}
  void Run(Duration time) {
    for (Duration passed{0}; passed < time; passed += milliseconds(20)) {
      One();
      world_.Run(milliseconds(20));
    }
  }
  // Each prompt is somewhere: so what is found does not depend on how long the load has run.
  void Prime() {
    for (uint64_t prompt = 0; prompt < prompts(); ++prompt) {
      size_t machine = random_() % world_.machines();
      while (world_.process(machine) == nullptr) machine = random_() % world_.machines();
      world_.process(machine)->Enter([this, prompt, machine] {
        world_.process(machine)->engine().Know(Namespace());
        world_.process(machine)->engine().Store(Namespace(), KeysOf(prompt, kBlocks));
      });
    }
  }
  void Begin() { asked_ = hit_ = 0; }
  double hits() const { return asked_ == 0 ? 0 : static_cast<double>(hit_) / asked_; }

 private:
  static constexpr uint32_t kBlocks = 16;
  uint64_t prompts() const { return 4 * world_.machines(); }
  void One() {
    const size_t machine = random_() % world_.machines();
    Process* const node = world_.process(machine);
    if (node == nullptr || !node->ready()) return;
    // Half of all requests are for a sixteenth of the prompts.
    const uint64_t prompt = random_() % (random_() % 2 == 0 ? prompts() : prompts() / 16 + 1);
    const std::vector<BlockKey> keys = KeysOf(prompt, kBlocks);
    node->engine().Know(Namespace());
    node->engine().Get(
        Namespace(), keys,
        [this, keys, machine, life = world_.life(machine)](const SimulatedEngine::Outcome& got) {
          asked_ += keys.size();
          hit_ += got.local + got.read;
          if (Process* const there = world_.process(machine, life)) {
            there->engine().Store(Namespace(), keys);
          }
        });
  }
  ClusterWorld& world_;
  std::mt19937_64 random_{7};
  uint64_t asked_ = 0, hit_ = 0;
};

}  // namespace

std::vector<TargetRow> MeasureBalance(size_t members) {
  constexpr uint64_t kHeldByEach = 100;
  std::vector<std::string> ids;
  for (size_t i = 0; i < members; ++i) ids.push_back(fmt::format("node-{}", i));
  const auto owners = std::make_shared<const cache::OwnerMap>(ids);
  std::vector<std::unique_ptr<cache::Directory>> directories;
  for (size_t i = 0; i < members; ++i) {
    directories.push_back(std::make_unique<cache::Directory>(cache::Directory::Options{}));
    directories.back()->SetMembers(ids);
  }
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < members; ++i) numbers[ids[i]] = i;
  uint64_t stored = 0, wire = 0;
  for (size_t i = 0; i < members; ++i) {
    cache::Announcer announcer({});
    announcer.SetOwners(owners);
    while (!announcer.Step()) {
    }
    for (const BlockKey& key : KeysOf(i, kHeldByEach)) {
      announcer.Stored({cache::HashForWaymark(Namespace().fingerprint, key) & ~uint64_t{7}});
    }
    stored += kHeldByEach;
    for (const std::string& owner : announcer.Waiting()) {
      cache::Directory& directory = *directories[numbers[owner]];
      while (const auto message = announcer.Next(owner)) {
        wire += message->size() * sizeof(cache::WaymarkHash);
        (void)directory.Apply(ids[i], 1, *message);
      }
    }
  }
  uint64_t total = 0, fullest = 0;
  for (const auto& directory : directories) {
    total += directory->entries();
    fullest = std::max(fullest, directory->entries());
  }
  const double mean = static_cast<double>(total) / static_cast<double>(members);
  return {{.name = "simulated_balance",
           .what = fmt::format("{} members: fullest directory over the mean", members),
           .got = static_cast<double>(fullest) / mean,
           .limit = 1.5,
           .goal = 1.25},
          {.name = "simulated_owners",
           .what = fmt::format("{} members: owners of a waymark", members),
           .got = static_cast<double>(total) / static_cast<double>(stored),
           .limit = 2},
          // One block in eight is a waymark, at 64 tokens in a block.
          {.name = "simulated_waymark_bytes",
           .what = fmt::format("{} members: bytes of waymarks announced per block", members),
           .got = static_cast<double>(wire) / static_cast<double>(stored * 8),
           .limit = 32}};
}

std::vector<TargetRow> MeasureHerd(size_t members, const HerdLimits& limits) {
  const Herd alone = MeasureOne(2);
  const Herd herd = MeasureOne(members);
  const std::string who = fmt::format("{} members want one prefix: ", members - 1);
  const std::string name = members <= 8 ? "simulated_herd" : "simulated_large_herd";
  return {{.name = name + "_last",
           .what = who + "the last has it after, in transfers",
           .got = herd.last / alone.last,
           .limit = limits.transfers,
           .goal = limits.transfers_goal},
          {.name = name + "_copies",
           .what = who + "copies that the first holder sent",
           .got = herd.copies,
           .limit = limits.copies,
           .goal = limits.copies_goal},
          {.name = name + "_failed",
           .what = who + "blocks that were not read",
           .got = static_cast<double>(herd.failed),
           .limit = 0}};
}

std::vector<TargetRow> MeasureChurn(size_t members) {
  const size_t changes = members / 10;
  ClusterWorld::Options options = Calm(members + changes);
  options.process.dns = members <= 64;
  ClusterWorld world(options);
  for (size_t i = 0; i < members; ++i) world.Start(i);
  const auto tell = [&] {
    membership::View view;
    for (size_t i = 0; i < world.machines(); ++i) {
      if (world.process(i) != nullptr) view.push_back({.address = ClusterWorld::AddressOf(i)});
    }
    for (size_t i = 0; i < world.machines(); ++i) {
      Process* const node = world.process(i);
      if (node != nullptr && !options.process.dns) {
        node->Enter([node, view] { node->cluster().OnView(view); });
      }
    }
  };
  tell();
  world.Run(seconds(45));
  Load load(&world);
  load.Prime();
  load.Run(seconds(60));
  load.Begin();
  load.Run(seconds(120));
  const double calm = load.hits();
  load.Begin();
  const Duration pause = seconds(600) / static_cast<int64_t>(2 * changes);
  for (size_t i = 0; i < changes; ++i) {
    // Every other one is killed. Discovery notices that later.
    const size_t gone = i * 7 % members;
    if (i % 2 == 0) {
      world.Leave(gone);
    } else {
      world.Kill(gone);
    }
    load.Run(pause);
    tell();
    world.Start(members + i);
    tell();
    load.Run(pause);
  }
  return {{.name = "simulated_churn_hits",
           .what = fmt::format("{} members, {} leave and {} come: hits over those of calm", members,
                               changes, changes),
           .got = load.hits() / calm,
           .limit = 0.95,
           .goal = 0.98,
           .at_most = false}};
}

std::vector<TargetRow> MeasureSleepingDiscovery() {
  ClusterWorld world(Calm(16));
  StartAll(world);
  std::set<uint64_t> digests;
  for (size_t i = 0; i < world.machines(); ++i) world.SetNames(i, NamesAre::kAsleep);
  for (int second = 0; second < 600; ++second) {
    world.Run(seconds(1));
    for (size_t i = 0; i < world.machines(); ++i) {
      digests.insert(world.process(i)->cluster().self().view_digest);
    }
  }
  return {{.name = "simulated_sleeping_discovery",
           .what = "discovery asleep for ten minutes: views",
           .got = static_cast<double>(digests.size()),
           .limit = 1}};
}

std::vector<TargetRow> MeasureTwoVersions() {
  ClusterWorld::Options options = Calm(8);
  options.versions_differ = true;
  ClusterWorld world(options);
  StartAll(world);
  std::set<uint32_t> versions;
  size_t fewest = world.machines(), found = 0;
  const std::vector<BlockKey> keys = KeysOf(1, kPrefixBlocks);
  world.process(0)->engine().Store(Namespace(), keys);
  world.Run(seconds(5));
  for (size_t i = 0; i < world.machines(); ++i) {
    versions.insert(world.process(i)->options().newest_version);
    fewest = std::min(fewest, world.process(i)->cluster().view().members.size());
    world.process(i)->Enter([&, i] {
      world.process(i)->engine().Get(Namespace(), keys, [&](const SimulatedEngine::Outcome& got) {
        found += got.local + got.read;
      });
    });
  }
  world.Run(seconds(5));
  return {{.name = "simulated_versions",
           .what = "two versions: versions",
           .got = static_cast<double>(versions.size()),
           .limit = 2,
           .at_most = false},
          {.name = "simulated_versions_members",
           .what = "two versions: members that each sees",
           .got = static_cast<double>(fewest),
           .limit = 7,
           .at_most = false},
          {.name = "simulated_versions_found",
           .what = "two versions: blocks that all found",
           .got = static_cast<double>(found),
           .limit = static_cast<double>(world.machines() * kPrefixBlocks),
           .at_most = false}};
}

std::string Table(const std::vector<TargetRow>& rows) {
  std::string text;
  for (const TargetRow& row : rows) {
    text += fmt::format("{:66} {:8.3f}  {} {:6.2f}  {}\n", row.what, row.got,
                        row.at_most ? "<=" : ">=", row.limit, row.met() ? "met" : "MISSED");
  }
  return text;
}

std::string Json(const std::vector<TargetRow>& rows) {
  std::string text;
  for (const TargetRow& row : rows) {
    text += fmt::format(
        R"({{"name":"{}","what":"{}","got":{:.6g},"limit":{:.6g},"goal":{:.6g},"at_most":{}}})"
        "\n",
        row.name, row.what, row.got, row.limit, row.goal == 0 ? row.limit : row.goal, row.at_most);
  }
  return text;
}

}  // namespace cairn::testing
