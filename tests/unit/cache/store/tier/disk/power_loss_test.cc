// Power losses, many in a second: whatever of the unsynced writes is there, the tier opens, no byte
// is wrong, and what was flushed is found. CAIRN_CRASH_LOOPS sets how many.

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "common/concurrency/mutex.h"
#include "tests/support/fault_device.h"
#include "tests/unit/cache/store/tier/disk/disk_fixture.h"

namespace cairn::cache::testing {
namespace {

namespace fs = std::filesystem;
using ::cairn::testing::FaultDevice;
using ::cairn::testing::PowerLossStyle;
using conformance::Pattern;
using conformance::ReadAndWait;
using conformance::ScratchDirectory;
using conformance::WriteAndWait;

int Losses(int normal) {
  const char* loops = std::getenv("CAIRN_CRASH_LOOPS");
  return loops == nullptr ? normal : std::atoi(loops);
}

// "SEED:LENGTH" and then noise, so that the database writes tables and begins new logs often.
std::string RecordOf(uint64_t seed, uint32_t length) {
  std::string record = fmt::format("{}:{}:", seed, length);
  record.resize(record.size() + seed * 7919 % 40000, 'x');
  return record;
}

// Writes, releases and flushes until it is told to end.
class Writer {
 public:
  Writer(DiskTier* tier, uint64_t seed) : tier_(*tier), random_(seed) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Writer() {
    stop_ = true;
    thread_.join();
  }
  // Seeds whose extents must be there after a loss from now on, unless they are released.
  std::set<uint64_t> Promised() {
    MutexLock lock(mu_);
    return promised_;
  }
  bool Was(uint64_t seed, uint64_t since) {
    MutexLock lock(mu_);
    const auto it = released_.find(seed);
    return it != released_.end() && it->second >= since;
  }
  uint64_t Now() {
    MutexLock lock(mu_);
    return steps_;
  }
  void WaitSteps(uint64_t steps) {
    MutexLock lock(mu_);
    const uint64_t goal = steps_ + steps;
    stepped_.Wait(mu_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return steps_ >= goal; });
  }

 private:
  void Release(uint64_t seed, const Extent& extent) {
    {
      MutexLock lock(mu_);
      promised_.erase(seed);
      released_[seed] = steps_;
    }
    tier_.Release(extent);
  }

  void MakeRoom(std::map<uint64_t, std::pair<uint64_t, Extent>>* kept) {
    const VictimGroup victims = tier_.NextVictims();
    uint64_t keep = victims.keep_bytes;
    for (const auto& member : victims.members) {
      const auto it = kept->find(member.extent.id);
      if (it == kept->end()) continue;
      // Some stay: the tier moves them.
      if (member.extent.length <= keep && random_() % 4 == 0) {
        keep -= member.extent.length;
        continue;
      }
      Release(it->second.first, it->second.second);
      kept->erase(it);
    }
    if (!victims.members.empty() || kept->empty()) return;
    const auto it = std::next(kept->begin(), static_cast<ptrdiff_t>(random_() % kept->size()));
    Release(it->second.first, it->second.second);
    kept->erase(it);
  }

  void Run() {
    std::map<uint64_t, std::pair<uint64_t, Extent>> kept;  // By id.
    std::set<uint64_t> unflushed;
    for (uint64_t seed = 1; !stop_; ++seed) {
      const auto length = static_cast<uint32_t>(1 + random_() % 200000);
      for (;;) {
        auto extent = tier_.Reserve(length);
        if (extent.ok()) {
          if (WriteAndWait(tier_, *extent, RecordOf(seed, length), Pattern(seed, length)).ok()) {
            kept[extent->id] = {seed, *extent};
            unflushed.insert(seed);
            break;
          }
          tier_.Release(*extent);
        }
        MakeRoom(&kept);
      }
      if (random_() % 64 == 0) {
        EXPECT_OK(tier_.PutMeta(fmt::format("name {}", random_() % 5), std::to_string(seed)));
      }
      const bool flush = random_() % 12 == 0;
      if (flush) {
        ASSERT_OK(tier_.Flush());
      }
      MutexLock lock(mu_);
      if (flush) {
        for (const uint64_t flushed : unflushed) {
          if (!released_.contains(flushed)) promised_.insert(flushed);
        }
        unflushed.clear();
      }
      ++steps_;
      stepped_.NotifyAll();
    }
  }

  DiskTier& tier_;
  std::mt19937_64 random_;
  Mutex mu_;
  CondVar stepped_;
  std::set<uint64_t> promised_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, uint64_t> released_ ABSL_GUARDED_BY(mu_);  // And at which step.
  uint64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Totals {
  uint64_t losses = 0, not_opened = 0, promised = 0, found = 0, extents = 0, right = 0, torn = 0,
           wrong = 0;
  void Print(const char* what) const {
    std::printf(
        "[          ] %s: %llu losses, %llu did not open, %llu of %llu flushed extents found, %llu "
        "extents: %llu right, %llu refused, %llu wrong\n",
        what, static_cast<unsigned long long>(losses), static_cast<unsigned long long>(not_opened),
        static_cast<unsigned long long>(found), static_cast<unsigned long long>(promised),
        static_cast<unsigned long long>(extents), static_cast<unsigned long long>(right),
        static_cast<unsigned long long>(torn), static_cast<unsigned long long>(wrong));
  }
};

class PowerLossTest : public DiskFixture {
 protected:
  // Opens what is left and reads everything. The seeds that are there and right.
  std::set<uint64_t> OpenAndReadAll(const std::string& left, Totals* totals) {
    std::set<uint64_t> right;
    ++totals->losses;
    DiskTierOptions options = Options();
    options.directory = left;
    auto tier = DiskTier::Open(options);
    std::vector<std::pair<Extent, std::string>> found;
    Status status = tier.status();
    if (tier.ok()) {
      status = (*tier)->Recover([&](const Extent& extent, std::string_view record) {
        found.emplace_back(extent, std::string(record));
        return true;
      });
    }
    if (!status.ok()) {
      if (++totals->not_opened <= 3) ADD_FAILURE() << ToString(status);
      return right;
    }
    for (const auto& [extent, record] : found) {
      ++totals->extents;
      const uint64_t seed = std::stoull(record);
      std::vector<std::byte> bytes(extent.length);
      const Status read = ReadAndWait(**tier, extent, bytes);
      if (!read.ok()) {
        EXPECT_EQ(read.code(), StatusCode::kDataLoss) << ToString(read);
        ++totals->torn;
      } else if (bytes == Pattern(seed, extent.length) && record == RecordOf(seed, extent.length)) {
        right.insert(seed);
        ++totals->right;
      } else {
        ++totals->wrong;
      }
    }
    // And it takes new ones.
    const auto extent = (*tier)->Reserve(1000);
    if (extent.ok()) {
      EXPECT_OK(WriteAndWait(**tier, *extent, RecordOf(1, 1000), Pattern(1, 1000)));
    }
    return right;
  }

  std::mt19937_64 random_{20261125};
};

TEST_F(PowerLossTest, FlushedExtentsAreFoundAndNoByteIsWrong) {
  Totals totals;
  FaultDevice power(directory_.path());
  const auto tier = Open(Options());
  ASSERT_NE(tier, nullptr);
  {
    Writer writer(tier.get(), random_());
    const int losses = Losses(40);
    for (int i = 0; i < losses; ++i) {
      SCOPED_TRACE(i);
      writer.WaitSteps(1 + random_() % 40);
      const PowerLossStyle style{.kept = static_cast<uint32_t>(random_() % 90),
                                 .zeroed = static_cast<uint32_t>(random_() % 10),
                                 .torn = static_cast<uint32_t>(random_() % 10)};
      ScratchDirectory left("loss");
      const uint64_t since = writer.Now();
      const std::set<uint64_t> promised = writer.Promised();
      power.Leave(left.path(), style, random_);
      const std::set<uint64_t> right = OpenAndReadAll(left.path(), &totals);
      for (const uint64_t seed : promised) {
        if (writer.Was(seed, since)) continue;  // Released while the power went.
        ++totals.promised;
        totals.found += right.contains(seed);
      }
    }
  }
  totals.Print("unsynced pages kept, lost, zero or torn");
  std::printf("[          ] %.1f MiB moved, %llu syncs\n",
              static_cast<double>(tier->GetDiskStats().moved_bytes) / kMiB,
              static_cast<unsigned long long>(power.syncs()));
  EXPECT_EQ(totals.wrong, 0u);
  EXPECT_EQ(totals.not_opened, 0u);
  EXPECT_GT(totals.promised, 0u);
  EXPECT_EQ(totals.found, totals.promised);
  EXPECT_GT(tier->GetDiskStats().moved_bytes, 0u) << "the test does not test what it says";
}

// The process that wrote it ended without a flush.
TEST_F(PowerLossTest, AFlushCoversWhatRecoveryFound) {
  Totals totals;
  FaultDevice power(directory_.path());
  constexpr uint64_t kSeed = 7;
  constexpr uint32_t kLength = 10'000;
  {
    const auto tier = Open(Options());
    ASSERT_NE(tier, nullptr);
    const auto extent = tier->Reserve(kLength);
    ASSERT_OK(extent);
    ASSERT_OK(WriteAndWait(*tier, *extent, RecordOf(kSeed, kLength), Pattern(kSeed, kLength)));
  }
  auto tier = DiskTier::Open(Options());
  ASSERT_OK(tier);
  ASSERT_OK((*tier)->Recover([](const Extent&, std::string_view) { return true; }));
  ASSERT_OK((*tier)->Flush());
  ScratchDirectory left("loss");
  power.Leave(left.path(), {.kept = 0, .zeroed = 0, .torn = 0}, random_);
  EXPECT_EQ(OpenAndReadAll(left.path(), &totals), std::set<uint64_t>{kSeed});
}

// The database of one moment and the values of another; cut and zeroed ends of the values.
TEST_F(PowerLossTest, CopiesOfDifferentMomentsOpenAndNoByteIsWrong) {
  Totals totals;
  FaultDevice power(directory_.path());
  const auto tier = Open(Options());
  ASSERT_NE(tier, nullptr);
  {
    Writer writer(tier.get(), random_());
    const int losses = Losses(20);
    for (int i = 0; i < losses; ++i) {
      SCOPED_TRACE(i);
      const PowerLossStyle all{.kept = 100, .zeroed = 0, .torn = 0, .deleted_come_back = false};
      ScratchDirectory first("first"), second("second");
      writer.WaitSteps(1 + random_() % 10);
      power.Leave(first.path(), all, random_);
      writer.WaitSteps(1 + random_() % 60);
      power.Leave(second.path(), all, random_);
      // Both orders.
      const std::string older = i % 2 == 0 ? "values" : "db";
      fs::remove_all(second.path() + "/" + older);
      fs::rename(first.path() + "/" + older, second.path() + "/" + older);
      for (const auto& entry : fs::directory_iterator(second.path() + "/values")) {
        const uint64_t size = entry.file_size();
        if (i % 4 == 2 && size > 0) fs::resize_file(entry, random_() % (size / 4096 + 1) * 4096);
        if (i % 4 == 3) {
          const uint64_t zero = std::min<uint64_t>(size, (random_() % 512) * 4096);
          fs::resize_file(entry, size - zero);
          fs::resize_file(entry, size);
        }
      }
      OpenAndReadAll(second.path(), &totals);
    }
  }
  totals.Print("database and values of different moments");
  EXPECT_EQ(totals.wrong, 0u);
  EXPECT_EQ(totals.not_opened, 0u);
  EXPECT_GT(totals.right, 0u);
}

}  // namespace
}  // namespace cairn::cache::testing
