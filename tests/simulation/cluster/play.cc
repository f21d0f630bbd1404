// Plays a schedule, and looks at the invariants of the cluster.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/simulation/cluster/cluster_world.h"
#include "tests/simulation/cluster/schedule.h"

namespace cairn::testing {
namespace {

using cache::WaymarkHash;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kPrompts = 12;
constexpr uint32_t kMostBlocks = 64;
constexpr uint32_t kNamespaces = 2;
constexpr double kKilobyte = 1000;
// A block takes 5 ms. In the whole engine blocks are larger, and the links faster.
constexpr double kLinkSpeed = 50e3;
constexpr uint64_t kPieceBytes = 100;
constexpr uint32_t kWholeFactor = 16;
// All requests at once are no load: a read that is silent for long is a failure of the member.
constexpr double kCalmLinkSpeed = 10e6;
// Discovery asks every 5 s, and believes an absence the second time. Members greet each other every
// 10 s, or 10 s after a failure.
constexpr Duration kCalm = seconds(45);
constexpr Duration kSettle = seconds(5);
constexpr Duration kLastGets = seconds(5);
// Sessions of members that ask for nothing end after 60 s.
constexpr Duration kSilence = seconds(70);
// Leases that a member has at another one end earlier.
constexpr Duration kLease = seconds(6);

const SimulatedNamespace& NamespaceOf(uint32_t prompt) {
  static const std::vector<SimulatedNamespace> all = {MakeNamespace("a", 256),
                                                      MakeNamespace("b", 64)};
  return all[prompt % kNamespaces];
}
// Every block of the first namespace is one.
bool AllAreWaymarks(uint32_t prompt) { return prompt % kNamespaces == 0; }
bool IsWaymarkOf(uint32_t prompt, WaymarkHash hash) {
  return cache::IsWaymark(hash, NamespaceOf(prompt).spec.layout.block_tokens);
}

BlockKey MakeKey(uint32_t prompt, uint32_t number) {
  // Prompts of a namespace share their first blocks.
  const uint32_t family = number < 16 ? prompt % 4 : prompt;
  for (int attempt = 0;; ++attempt) {
    const BlockKey key = Sha256::Of(fmt::format("block {} {} {}", family, number, attempt));
    const WaymarkHash hash = cache::HashForWaymark(NamespaceOf(prompt).fingerprint, key);
    if (!AllAreWaymarks(prompt) || IsWaymarkOf(prompt, hash)) return key;
  }
}

std::vector<BlockKey> KeysOf(uint32_t prompt, uint32_t blocks) {
  static const std::vector<std::vector<BlockKey>> all = [] {
    std::vector<std::vector<BlockKey>> made(kPrompts);
    for (uint32_t p = 0; p < kPrompts; ++p) {
      for (uint32_t i = 0; i < kMostBlocks; ++i) made[p].push_back(MakeKey(p, i));
    }
    return made;
  }();
  const std::vector<BlockKey>& keys = all[prompt % kPrompts];
  return {keys.begin(), keys.begin() + std::min(blocks, kMostBlocks)};
}

std::vector<std::vector<BlockKey>> AllWaymarks() {
  std::vector<std::vector<BlockKey>> all(kPrompts);
  for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
    all[prompt] = KeysOf(prompt, kMostBlocks);
    std::erase_if(all[prompt], [prompt](const BlockKey& key) {
      return !IsWaymarkOf(prompt, cache::HashForWaymark(NamespaceOf(prompt).fingerprint, key));
    });
  }
  return all;
}

class Player {
 public:
  explicit Player(const ClusterSchedule& schedule)
      : schedule_(schedule), world_(OptionsOf(schedule)) {}

  PlayResult Run() {
    for (size_t i = 0; i < schedule_.started; ++i) world_.Start(i);
    for (const ClusterEvent& event : schedule_.events) {
      world_.agenda().At(world_.Now() + event.at, [this, event] { Do(event); });
    }
    Pass(schedule_.length);
    BecomeCalm();
    Pass(kCalm);
    LookAtMembers();
    LookAtDirectories();
    // After failures, one call finds out whether a member works again, and others skip it.
    for (int round = 0; round < 2; ++round) {
      AskForEverything(/*must_be_found=*/false);
      Pass(kLastGets);
    }
    AskForEverything(/*must_be_found=*/true);
    Pass(kLastGets);
    LookAtAnswers();
    if (schedule_.whole) {
      Pass(kLease);
      LookAtLeases();
    }
    if (schedule_.seed % 8 == 0) {
      Pass(kSilence);
      LookAtSessions();
    }
    result_.wrong = world_.wrong();
    result_.trace = world_.trace();
    result_.steps = world_.agenda().ran();
    for (Process* const process : world_.Newest()) {
      result_.accepted += process->engine().accepted();
      result_.outdated += process->engine().outdated();
      const SimulatedLinks::Counts& counts = process->links().counts();
      result_.calls += counts.hellos + counts.announces + counts.bumps + counts.finds +
                       counts.matches + counts.reads;
    }
    return result_;
  }

 private:
  static ClusterWorld::Options OptionsOf(const ClusterSchedule& schedule) {
    ClusterWorld::Options options{.seed = schedule.seed, .machines = schedule.machines};
    options.process.tick = milliseconds(50);
    // It ends while the cluster becomes calm.
    options.process.source.wrong_pause = kCalm / 2;
    options.versions_differ = schedule.seed % 2 == 1;
    options.process.engine.capacity_blocks = 100 + schedule.seed * 37 % 400;
    // Some followers of events are too slow.
    if (schedule.seed % 3 == 0) options.process.engine.events = 20;
    options.network.bytes_per_second = kLinkSpeed;
    options.piece_bytes = kPieceBytes;
    if (schedule.whole) {
      options.process.whole = true;
      options.network.bytes_per_second *= kWholeFactor;
      options.piece_bytes *= kWholeFactor;
      WholeEngine::Options& engine = options.process.whole_engine;
      engine.events = options.process.engine.events;
      // All prompts take about 5 MiB in memory, and 2 MiB on disk.
      engine.host_bytes = (1 << 20) + schedule.seed * 37 % 64 * (32 << 10);
      engine.disk_bytes = (512 << 10) + schedule.seed * 11 % 8 * (256 << 10);
    }
    return options;
  }

  // The rest of a play that went wrong tells nothing.
  void Pass(Duration time) {
    for (Duration passed{0}; passed < time && world_.wrong().empty(); passed += milliseconds(100)) {
      world_.Run(milliseconds(100));
    }
  }

  Process* At(uint32_t machine) { return world_.process(machine % world_.machines()); }

  // In the process, as soon as it runs.
  void In(uint32_t machine, const std::function<void(Process&)>& what) {
    Process* const process = At(machine);
    if (process != nullptr) process->Enter([process, what] { what(*process); });
  }

  void Do(const ClusterEvent& event) {
    using Kind = ClusterEvent::Kind;
    const auto a = static_cast<uint32_t>(event.a % world_.machines());
    const auto b = static_cast<uint32_t>(event.b % world_.machines());
    world_.Note(200 + static_cast<uint64_t>(event.kind), event.a, event.b, event.c);
    // Small clusters have no crowds that become small again often enough to be worth the time.
    if (world_.machines() > cache::DirectoryTable::kMostHolders) NoteCrowds();
    switch (event.kind) {
      case Kind::kStore:
        return In(a, [event](Process& node) {
          if (!node.ready()) return;
          node.engine().Know(NamespaceOf(event.b));
          node.engine().Store(NamespaceOf(event.b), KeysOf(event.b, event.c));
        });
      case Kind::kGet:
        return In(a, [this, event](Process& node) { Get(node, event.b, event.c); });
      case Kind::kBump:
        return In(a, [event](Process& node) {
          (void)node.engine().cache().BumpEpoch(NamespaceOf(event.b).fingerprint);
        });
      case Kind::kDrop:
        return In(a, [event](Process& node) {
          (void)node.engine().cache().DropNamespace(NamespaceOf(event.b).fingerprint);
        });
      case Kind::kCut:
        return world_.network().Cut(a, b);
      case Kind::kIsolate:
        for (size_t i = 0; i < world_.machines(); ++i) {
          world_.network().Cut(a, i);
          world_.network().Cut(i, a);
        }
        return;
      case Kind::kPartition:
        return Partition(event.b + 1);
      case Kind::kHeal:
        return world_.network().HealAll();
      case Kind::kPause:
        if (Process* const node = At(a)) node->Pause();
        return;
      case Kind::kResume:
        if (Process* const node = At(a)) node->Resume();
        return;
      case Kind::kKill:
        return world_.Kill(a, /*power_loss=*/event.b == 2);
      case Kind::kStart:
        return world_.Start(a, static_cast<ClusterWorld::Disk>(event.b % 3));
      case Kind::kCopyDisk:
        return world_.CopyDisk(a);
      case Kind::kClone:
        return world_.Clone(a, b);
      case Kind::kLeave:
        return world_.Leave(a);
      case Kind::kNames:
        for (size_t i = 0; i < world_.machines(); ++i) {
          if (event.c != 0 || i == a) world_.SetNames(i, static_cast<NamesAre>(event.b % 7));
        }
        return;
      case Kind::kSlowLink:
        return world_.network().SetSpeed(
            a, event.b * kKilobyte * (schedule_.whole ? kWholeFactor : 1));
      case Kind::kLoss:
        world_.network().options().loss = event.b / 1000.0;
        world_.network().options().duplicates = event.c / 1000.0;
        return;
      case Kind::kClockRate:
        if (Process* const node = At(a)) node->SetClockRate(event.b / 1000.0);
        return;
      case Kind::kLie:
        if (Process* const node = At(a)) node->lies = event.b != 0;
        return;
      case Kind::kFalseHello:
        return GreetFalsely(a, b);
      case Kind::kDisk:
        if (Process* const node = At(a)) {
          node->engine().Break(static_cast<DiskFault>(event.b % 4), static_cast<int>(event.c));
        }
        return;
    }
  }

  // Whether a waymark with `holders` holders may have lost some: while its stream begins again, a
  // holder counts twice.
  static bool IsCrowd(size_t holders) { return 2 * holders > cache::DirectoryTable::kMostHolders; }
  // Nobody tells a holder that it lost its place to others, which may be gone by the end.
  void NoteCrowds() {
    for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
      const Digest& ns = NamespaceOf(prompt).fingerprint;
      for (const BlockKey& key : waymarks_[prompt]) {
        size_t holders = 0;
        for (size_t i = 0; i < world_.machines(); ++i) {
          Process* const node = world_.process(i);
          if (node != nullptr && node->engine().Has(ns, key)) ++holders;
        }
        if (IsCrowd(holders)) crowded_.insert(cache::HashForWaymark(ns, key));
      }
    }
  }

  // Nobody is replaced because of it, and nobody's place is taken.
  void GreetFalsely(uint32_t as, uint32_t at) {
    Process* const named = At(as);
    if (named == nullptr) return;
    cache::PeerHello lie = named->cluster().self();
    lie.caller.incarnation = 1;
    lie.epoch = UINT64_MAX;
    lie.address = ClusterWorld::AddressOf(at);
    for (uint32_t i = 0; i < world_.machines(); ++i) {
      In(i, [this, i, lie](Process& node) {
        const auto before = node.cluster().view().replaced_by;
        (void)node.cluster().host().Hello(lie);
        const auto after = node.cluster().view().replaced_by;
        if (after && (!before || after->caller != before->caller)) {
          world_.Wrong(fmt::format("machine {} believed a greeting that was made up", i));
        }
      });
    }
  }

  void Partition(uint32_t groups) {
    for (size_t i = 0; i < world_.machines(); ++i) {
      for (size_t k = 0; k < world_.machines(); ++k) {
        if (i % groups != k % groups) world_.network().Cut(i, k);
      }
    }
  }

  void Get(Process& node, uint32_t prompt, uint32_t blocks) {
    if (!node.ready()) return;
    node.engine().Know(NamespaceOf(prompt));
    ++result_.requests;
    node.engine().Get(
        NamespaceOf(prompt), KeysOf(prompt, blocks),
        [this, machine = node.options().machine](const SimulatedEngine::Outcome& got) {
          world_.Note(300, machine, got.local << 16 | got.located, got.read << 16 | got.failed);
          if (got.read > 0) ++result_.served_by_peers;
        });
  }

  void BecomeCalm() {
    world_.network().HealAll();
    world_.network().options().loss = world_.network().options().duplicates = 0;
    size_t living = 0;
    for (uint32_t i = 0; i < world_.machines(); ++i) {
      world_.network().SetSpeed(i, kCalmLinkSpeed);
      Process* const node = At(i);
      if (node == nullptr) continue;
      ++living;
      node->lies = false;
      node->engine().Break(DiskFault::kNone, 0);
      node->SetClockRate(1);
      node->Resume();
    }
    if (living == 0) world_.Start(0);
    world_.NameWhoLives();
  }

  // Everybody sees all others, and knows the same bumps.
  void LookAtMembers() {
    if (!world_.wrong().empty()) return;
    newest_ = world_.Newest();
    const std::set<Process*> expected(newest_.begin(), newest_.end());
    for (size_t i = 0; i < world_.machines(); ++i) {
      Process* const node = world_.process(i);
      if (node == nullptr) continue;
      const cache::ClusterView view = node->cluster().view();
      if (!expected.contains(node)) {
        if (!view.replaced_by) {
          world_.Wrong(fmt::format("machine {} does not know that its id was taken", i));
        }
        continue;
      }
      if (view.members.size() + 1 != newest_.size()) {
        world_.Wrong(fmt::format("machine {} sees {} other members of {}", i, view.members.size(),
                                 newest_.size() - 1));
      }
      if (node->engine().cache().for_peers()->BumpsDigest() !=
          newest_[0]->engine().cache().for_peers()->BumpsDigest()) {
        world_.Wrong(fmt::format("machine {} knows other bumps", i));
      }
    }
  }

  // Each live waymark is at both its owners, and nothing else is.
  void LookAtDirectories() {
    if (!world_.wrong().empty() || WrongInDirectories().empty()) return;
    // Somebody may have found the last member, or moved a block, a moment ago.
    Pass(kSettle);
    const std::string wrong = WrongInDirectories();
    if (!wrong.empty()) world_.Wrong(wrong);
  }

  // The fault in the first one that has any.
  std::string WrongInDirectories() {
    std::vector<std::string> ids;
    for (Process* const node : newest_) ids.push_back(node->options().id);
    const cache::OwnerMap owners(ids);
    std::map<WaymarkHash, std::set<std::string>> held;
    for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
      for (const BlockKey& key : KeysOf(prompt, kMostBlocks)) {
        const Digest& ns = NamespaceOf(prompt).fingerprint;
        const WaymarkHash hash = cache::HashForWaymark(ns, key);
        if (!IsWaymarkOf(prompt, hash)) continue;
        auto& holders = held[hash];
        for (Process* const node : newest_) {
          if (node->engine().Has(ns, key)) holders.insert(node->options().id);
        }
      }
    }
    std::string wrong;
    for (Process* const node : newest_) {
      if (wrong.empty()) wrong = WrongIn(*node, owners, held);
    }
    return wrong;
  }

  // Empty: nothing.
  std::string WrongIn(Process& node, const cache::OwnerMap& owners,
                      const std::map<WaymarkHash, std::set<std::string>>& held) {
    const cache::PeerCaller caller = node.cluster().self().caller;
    size_t missing = 0, surplus = 0;
    std::string first;
    for (const auto& [hash, holders] : held) {
      const auto found = node.cluster().host().Find(caller, {&hash, 1});
      std::set<std::string> there;
      for (const cache::Holder& holder : found->holders[0]) there.insert(holder.id);
      const std::vector<std::string> ids = owners.IdsOf(hash);
      const bool owns = std::find(ids.begin(), ids.end(), node.options().id) != ids.end();
      // If there are more than 8 holders, only some are kept. While a stream begins again, its
      // holder may count twice.
      const bool counts = !IsCrowd(holders.size()) && !crowded_.contains(hash);
      if (owns && counts &&
          there.size() < std::min(holders.size(), cache::DirectoryTable::kMostHolders)) {
        ++missing;
        for (const std::string& id : holders) {
          if (first.empty() && !there.contains(id)) first = id + " is missing";
        }
      }
      for (const std::string& id : there) {
        if (owns && holders.contains(id)) continue;
        ++surplus;
        if (first.empty())
          first = fmt::format("{} {}", id, owns ? "holds it no more" : "elsewhere");
      }
    }
    if (missing + surplus == 0) return "";
    return fmt::format("the directory of machine {} lacks {} holders and has {} too many: {}",
                       node.options().machine, missing, surplus, first);
  }

  // Every node asks for every prompt. Blocks that another one has must be found.
  void AskForEverything(bool must_be_found) {
    if (!world_.wrong().empty()) return;
    for (Process* const node : newest_) {
      for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) AskFor(*node, prompt, must_be_found);
    }
  }

  void AskFor(Process& node, uint32_t prompt, bool must_be_found) {
    // If there are more waymarks, only some are asked for.
    const std::vector<BlockKey> keys = KeysOf(prompt, cache::kMostAsked);
    const SimulatedNamespace& ns = NamespaceOf(prompt);
    uint32_t best = 0;
    for (Process* const other : newest_) {
      if (!other->engine().Knows(ns.fingerprint)) continue;
      best = std::max(best, other->engine().Prefix(ns.fingerprint, keys));
    }
    node.engine().Know(ns);
    ++unanswered_;
    // Not every block of the other namespace is a waymark.
    const bool all =
        AllAreWaymarks(prompt) && world_.machines() <= cache::DirectoryTable::kMostHolders;
    node.engine().Get(ns, keys,
                      [this, best, all, must_be_found, prompt,
                       machine = node.options().machine](const SimulatedEngine::Outcome& got) {
                        --unanswered_;
                        if (!must_be_found) return;
                        if (!got.lookup.ok() || (all && got.local + got.located < best)) {
                          world_.Wrong(fmt::format(
                              "machine {} found {} + {} blocks of prompt {}, another has {}: {}",
                              machine, got.local, got.located, prompt, best, ToString(got.lookup)));
                        }
                      });
  }

  void LookAtAnswers() {
    if (world_.wrong().empty() && unanswered_ != 0) {
      world_.Wrong(fmt::format("{} requests have no end", unanswered_));
    }
  }

  void LookAtLeases() {
    for (Process* const node : newest_) {
      if (!world_.wrong().empty() || node->engine().leases() == 0) continue;
      world_.Wrong(fmt::format("machine {} keeps {} leases", node->options().machine,
                               node->engine().leases()));
    }
  }

  void LookAtSessions() {
    for (Process* const node : newest_) {
      if (!world_.wrong().empty()) return;
      if (node->engine().sessions() + node->engine().leases() > 0) {
        world_.Wrong(fmt::format("machine {} keeps {} sessions and {} leases",
                                 node->options().machine, node->engine().sessions(),
                                 node->engine().leases()));
      }
    }
  }

  const ClusterSchedule& schedule_;
  PlayResult result_;
  std::vector<Process*> newest_;
  const std::vector<std::vector<BlockKey>> waymarks_ = AllWaymarks();  // By prompt.
  std::set<WaymarkHash> crowded_;
  int64_t unanswered_ = 0;
  ClusterWorld world_;
};

}  // namespace

PlayResult Play(const ClusterSchedule& schedule) { return Player(schedule).Run(); }

}  // namespace cairn::testing
