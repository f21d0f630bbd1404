// kill -9 of node and clients at random points under load. After each round everything that is
// served is right and everything that the node promised to keep is found; after clients died
// nothing of theirs is left.

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

constexpr uint32_t kRoundsPerGeneration = 10;
constexpr uint64_t kPrompts = 150;  // As the load program has.

struct Figures {
  uint32_t rounds = 0, node_kills = 0, client_kills = 0, caught_reserving = 0, caught_leasing = 0;
  uint64_t flushed_checked = 0, verified_bytes = 0, loader_bytes = 0, restarts = 0;
  double restart_seconds = 0, longest_restart = 0;
};

// Some rounds with one node directory, one namespace and a few clients that live through the node's
// deaths.
class Generation {
 public:
  Generation(Node& node, uint64_t seed, Figures* figures)
      : node_(node), random_(seed), figures_(*figures) {
    options_.model = fmt::format("generation {}", seed);
    options_.dim = random_() % 4 == 0 ? 64 : 8;  // Parts of 49 or 6 KiB.
    model_.emplace(options_);
    client_ = ConnectAndOpen(node.address(), *model_);
    for (size_t i = 0; i < std::size(kModes); ++i) StartLoader(i);
  }

  void Round() {
    ++figures_.rounds;
    // Not a wait for something: the moment of death is what is random.
    std::this_thread::sleep_for(milliseconds(20 + random_() % 200));
    switch (random_() % 4) {
      case 0:
        KillClient(random_() % std::size(kModes));
        break;
      case 1:
        KillClient(random_() % std::size(kModes));
        KillNode();
        break;
      default:
        KillNode();
    }
    for (auto& loader : loaders_) {
      ASSERT_TRUE(loader->process().running()) << loader->process().err();
      Remember(*loader);
    }
    VerifyFlushed();
    for (int i = 0; i < 5; ++i) VerifyPrompt(random_() % kPrompts, 0);
  }

  void Finish() {
    // One dies in the middle of its work; the others end and say what they saw.
    loaders_[random_() % loaders_.size()]->process().Kill();
    for (auto& loader : loaders_) {
      if (!loader->process().running()) continue;
      const Result<std::string> report = loader->Finish();
      ASSERT_TRUE(report.ok()) << ToString(report.status());
      EXPECT_EQ(Counter(*report, "mismatches"), 0u) << *report;
      figures_.loader_bytes += Counter(*report, "served_bytes");
    }
    EXPECT_EQ(StillHeld(*client_, 1, seconds(120)), "");
    EXPECT_EQ(UsageMismatch(*client_, {model_->PartBytes(model_->whole())}, seconds(120)), "");
    EXPECT_EQ(LeftAfterDrop(node_, *client_, options_.tenant, seconds(120)), "");
  }

 private:
  static constexpr const char* kModes[] = {"both", "both", "reader"};

  void StartLoader(size_t i) {
    auto loader =
        Loader::Start(node_.address(), options_, random_() % 1'000'000, {"--mode", kModes[i]});
    ASSERT_TRUE(loader.ok()) << ToString(loader.status());
    if (loaders_.size() <= i) loaders_.resize(i + 1);
    loaders_[i] = *std::move(loader);
  }

  void Remember(Loader& loader) {
    for (const auto& [prompt, blocks] : loader.Flushed()) {
      uint64_t& known = flushed_[prompt];
      known = std::max(known, blocks);
    }
  }

  void KillNode() {
    ++figures_.node_kills;
    node_.Kill();
    const Status restarted = node_.Restart();
    ASSERT_TRUE(restarted.ok()) << ToString(restarted);
    figures_.restart_seconds += node_.last_start_seconds();
    figures_.longest_restart = std::max(figures_.longest_restart, node_.last_start_seconds());
    // Calls of a client whose node has just come back fail until its session is open again.
    ASSERT_TRUE(
        WaitUntil([&] { return client_->OpenNamespace(model_->spec()).ok(); }, seconds(120)));
  }

  void KillClient(size_t i) {
    ++figures_.client_kills;
    // Stopped first, so that what it holds can be seen; some tries for a moment in which it holds
    // something.
    for (int tries = 0; tries < 20; ++tries) {
      loaders_[i]->process().Signal(SIGSTOP);
      const auto stats = client_->Stat();
      if (stats.ok() && (stats->reservations > 0 || (tries > 10 && stats->leases > 0))) {
        figures_.caught_reserving += stats->reservations > 0;
        figures_.caught_leasing += stats->leases > 0;
        break;
      }
      loaders_[i]->process().Signal(SIGCONT);
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000));
    }
    loaders_[i]->process().Kill();
    Remember(*loaders_[i]);
    EXPECT_TRUE(WaitUntil(
        [&] {
          const auto stats = client_->Stat();
          return stats.ok() && stats->sessions == std::size(kModes);  // The others' and ours.
        },
        seconds(120)))
        << "the session of a dead client is still there";
    StartLoader(i);
  }

  void VerifyFlushed() {
    for (const auto& [prompt, blocks] : flushed_) {
      VerifyPrompt(prompt, blocks);
      figures_.flushed_checked += blocks;
    }
  }

  // At least `promised` blocks of the prompt must be there.
  void VerifyPrompt(uint64_t prompt, uint64_t promised) {
    const std::vector<BlockKey> keys = model_->MakePrompt(prompt);
    const ReadOutcome outcome = Read(*client_, *model_, keys);
    EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
    EXPECT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
    EXPECT_GE(outcome.complete_blocks, promised)
        << "prompt " << prompt << ": matched " << outcome.matched_blocks << ", failed "
        << outcome.failed_blocks;
    figures_.verified_bytes += outcome.verified_bytes;
  }

  Node& node_;
  std::mt19937_64 random_;
  Figures& figures_;
  FaultModelOptions options_;
  std::optional<FaultModel> model_;
  std::unique_ptr<client::CacheClient> client_;
  std::vector<std::unique_ptr<Loader>> loaders_;
  std::map<uint64_t, uint64_t> flushed_;
};

TEST(FaultKillTest, ServesWhatIsRightAndKeepsWhatItPromised) {
  const TemporaryDirectory directory;
  auto node = Node::Start({"--disk.path", directory.path() + "/disk", "--disk.capacity", "1GiB",
                           "--host.capacity", "256MiB", "--disk.min_free", "0",
                           "--disk.flush_after", "50ms"});
  ASSERT_TRUE(node.ok()) << ToString(node.status());
  Figures figures;
  const uint32_t rounds = Rounds(100);
  while (figures.rounds < rounds && !HasFailure()) {
    Generation generation(**node, Seed() + figures.rounds, &figures);
    for (uint32_t i = 0; i < kRoundsPerGeneration && figures.rounds < rounds && !HasFailure(); ++i)
      generation.Round();
    if (!HasFailure()) generation.Finish();
  }
  std::printf(
      "rounds %u: node killed %u times, clients %u times (%u while something was reserved, %u "
      "while leased); restart %.0f ms, at "
      "most %.0f ms; %llu promised blocks found; %.1f MiB verified here, %.1f MiB by clients\n",
      figures.rounds, figures.node_kills, figures.client_kills, figures.caught_reserving,
      figures.caught_leasing, 1e3 * figures.restart_seconds / std::max(figures.node_kills, 1u),
      1e3 * figures.longest_restart, static_cast<unsigned long long>(figures.flushed_checked),
      static_cast<double>(figures.verified_bytes) / 1048576,
      static_cast<double>(figures.loader_bytes) / 1048576);
  EXPECT_GT(figures.flushed_checked, 0u);
  EXPECT_GT(figures.verified_bytes, 0u);
  EXPECT_GT(figures.loader_bytes, 0u);
}

// The arena holds a fraction of what is stored: promotion and eviction are under way when the node
// dies.
TEST(FaultKillTest, SmallArena) {
  const TemporaryDirectory directory;
  auto node = Node::Start({"--disk.path", directory.path() + "/disk", "--disk.capacity", "1GiB",
                           "--host.capacity", "8MiB", "--disk.min_free", "0", "--disk.flush_after",
                           "50ms"});
  ASSERT_TRUE(node.ok()) << ToString(node.status());
  std::mt19937_64 random(Seed());
  FaultModelOptions options;
  options.dim = 64;
  const FaultModel model(options);
  auto client = ConnectAndOpen((*node)->address(), model);
  std::vector<std::unique_ptr<Loader>> loaders;
  for (const char* mode : {"both", "both", "reader"}) {
    auto loader =
        Loader::Start((*node)->address(), options, random() % 1'000'000, {"--mode", mode});
    ASSERT_TRUE(loader.ok()) << ToString(loader.status());
    loaders.push_back(*std::move(loader));
  }
  uint64_t verified = 0, disk_blocks = 0;
  for (uint32_t round = 0; round < Rounds(8); ++round) {
    std::this_thread::sleep_for(milliseconds(100 + random() % 400));
    (*node)->Kill();
    ASSERT_TRUE((*node)->Restart().ok());
    ASSERT_TRUE(WaitUntil([&] { return client->OpenNamespace(model.spec()).ok(); }, seconds(120)));
    for (int i = 0; i < 40; ++i) {
      const ReadOutcome outcome = Read(*client, model, model.MakePrompt(random() % 100));
      EXPECT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
      verified += outcome.verified_bytes;
    }
  }
  for (auto& loader : loaders) {
    const Result<std::string> report = loader->Finish();
    ASSERT_TRUE(report.ok()) << ToString(report.status());
    verified += Counter(*report, "served_bytes");
  }
  const auto stats = client->Stat();
  ASSERT_TRUE(stats.ok());
  disk_blocks = Tier(*stats, client::TierKind::kDisk)->blocks;
  EXPECT_GT(disk_blocks * model.PartBytes(model.whole()), 8u << 20)
      << "the test does not test what it says";
  EXPECT_EQ(StillHeld(*client, 1, seconds(120)), "");
  EXPECT_EQ(UsageMismatch(*client, {model.PartBytes(model.whole())}, seconds(120)), "");
  EXPECT_EQ(LeftAfterDrop(**node, *client, options.tenant, seconds(120)), "");
  std::printf("%.1f MiB verified, %llu blocks on disk\n", static_cast<double>(verified) / 1048576,
              static_cast<unsigned long long>(disk_blocks));
}

}  // namespace
}  // namespace cairn::fault
