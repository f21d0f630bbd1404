// A real process that writes, flushes and dies by SIGKILL, at any time or in a chosen phase of a
// write to a segment; then every flushed extent is there, and every byte is right.
// CAIRN_CRASH_LOOPS sets how often.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "services/cache/store/tier/disk/disk_tier.h"
#include "services/cache/store/tier/disk/io_backend.h"
#include "services/cache/store/tier/disk/value_file_map.h"
#include "tests/conformance/cache/tier/tier_conformance.h"

namespace cairn::cache::conformance {
namespace {

constexpr uint64_t kCapacity = 24 << 20;

// Ends the process in the nth write that it is handed: before it, in its middle, or when it is done
// and nothing else is.
class KillingIo final : public disk::IoBackend {
 public:
  enum class Phase { kNever, kBefore, kTorn, kWritten };
  KillingIo(std::unique_ptr<disk::IoBackend> real, Phase phase, uint64_t after)
      : real_(std::move(real)), phase_(phase), left_(after) {}
  disk::IoKind kind() const override { return real_->kind(); }
  void Submit(disk::IoRequest* request) override {
    if (!request->write || phase_ == Phase::kNever || left_-- != 0) return real_->Submit(request);
    if (phase_ == Phase::kBefore) Die();
    if (phase_ == Phase::kTorn) {
      const iovec& first = request->iov[0];
      const size_t half = first.iov_len / 2 / disk::kPageBytes * disk::kPageBytes;
      if (half > 0)
        (void)!pwrite(request->fd, first.iov_base, half, static_cast<off_t>(request->offset));
      Die();
    }
    request->done = [](disk::IoRequest*, int64_t) { Die(); };
    real_->Submit(request);
  }

 private:
  [[noreturn]] static void Die() {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  const std::unique_ptr<disk::IoBackend> real_;
  const Phase phase_;
  std::atomic<int64_t> left_;
};

int Loops(int normal) {
  const char* loops = std::getenv("CAIRN_CRASH_LOOPS");
  return loops == nullptr ? normal : std::atoi(loops);
}

std::unique_ptr<DiskTier> OpenAt(const std::string& directory,
                                 KillingIo::Phase phase = KillingIo::Phase::kNever,
                                 uint64_t after = 0) {
  DiskTierOptions options;
  options.directory = directory;
  options.capacity_bytes = kCapacity;
  options.min_free_bytes = 0;
  options.wrap_io = [&](std::unique_ptr<disk::IoBackend> io) -> std::unique_ptr<disk::IoBackend> {
    return std::make_unique<KillingIo>(std::move(io), phase, after);
  };
  auto tier = DiskTier::Open(options);
  if (!tier.ok()) {
    ADD_FAILURE() << ToString(tier.status());
    return nullptr;
  }
  return std::move(*tier);
}

void Say(int fd, char what, uint64_t seed) {
  char message[9] = {what};
  std::memcpy(message + 1, &seed, 8);
  if (write(fd, message, sizeof(message)) != sizeof(message)) _exit(3);
}

// Runs in the child only, which is this binary started again with CAIRN_CRASH_DIRECTORY. Tells
// through the pipe what was flushed ('F', all writes up to this seed) and, before it happens, what
// is released ('R'). Churns, so that files are dropped and rewritten.
TEST(DiskCrashHelper, DISABLED_WriteUntilKilled) {
  const char* directory = std::getenv("CAIRN_CRASH_DIRECTORY");
  if (directory == nullptr) GTEST_SKIP() << "only for DiskCrashTest";
  const int out = std::atoi(std::getenv("CAIRN_CRASH_PIPE"));
  const uint64_t first_seed = std::strtoull(std::getenv("CAIRN_CRASH_SEED"), nullptr, 10);
  auto tier =
      OpenAt(directory, static_cast<KillingIo::Phase>(std::atoi(std::getenv("CAIRN_CRASH_PHASE"))),
             std::strtoull(std::getenv("CAIRN_CRASH_AFTER"), nullptr, 10));
  std::vector<std::pair<uint64_t, Extent>> kept;
  if (!tier || !tier->Recover([&](const Extent& extent, std::string_view record) {
                      kept.emplace_back(std::stoull(std::string(record)), extent);
                      return true;
                    })
                    .ok()) {
    _exit(2);
  }
  std::mt19937_64 rng(first_seed);
  for (uint64_t seed = first_seed;; ++seed) {
    const auto length = static_cast<uint32_t>(1 + rng() % 400000);
    auto extent = tier->Reserve(length);
    while (!extent.ok()) {
      const size_t victim = rng() % kept.size();
      Say(out, 'R', kept[victim].first);
      tier->Release(kept[victim].second);
      kept.erase(kept.begin() + static_cast<ptrdiff_t>(victim));
      extent = tier->Reserve(length);
    }
    if (!WriteAndWait(*tier, *extent, std::to_string(seed), Pattern(seed, length)).ok()) _exit(4);
    kept.emplace_back(seed, *extent);
    if (rng() % 10 == 0) {
      if (!tier->Flush().ok()) _exit(5);
      Say(out, 'F', seed);
    }
  }
}

pid_t StartChild(const std::string& directory, uint64_t seed, KillingIo::Phase phase,
                 uint64_t after, int* read_end) {
  int ends[2];
  CAIRN_CHECK(pipe(ends) == 0);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string pipe_text = std::to_string(ends[1]);
  const std::string seed_text = std::to_string(seed);
  const std::string phase_text = std::to_string(static_cast<int>(phase));
  const std::string after_text = std::to_string(after);
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("CAIRN_CRASH_DIRECTORY", directory.c_str(), 1);
    setenv("CAIRN_CRASH_PIPE", pipe_text.c_str(), 1);
    setenv("CAIRN_CRASH_SEED", seed_text.c_str(), 1);
    setenv("CAIRN_CRASH_PHASE", phase_text.c_str(), 1);
    setenv("CAIRN_CRASH_AFTER", after_text.c_str(), 1);
    close(ends[0]);
    execl(self.c_str(), self.c_str(), "--gtest_also_run_disabled_tests",
          "--gtest_filter=DiskCrashHelper.*", "--gtest_brief=1", nullptr);
    _exit(127);
  }
  close(ends[1]);
  *read_end = ends[0];
  return pid;
}

class DiskCrashTest : public ::testing::TestWithParam<KillingIo::Phase> {};

TEST_P(DiskCrashTest, FlushedExtentsSurviveSigkill) {
  const KillingIo::Phase phase = GetParam();
  ScratchDirectory directory("crash");
  std::mt19937_64 rng(42);
  // Seeds whose extents are flushed and were not released, even tentatively.
  std::set<uint64_t> promised;
  uint64_t next_seed = 1;
  uint64_t found_in_all = 0;
  const int loops = Loops(12);
  for (int round = 0; round < loops; ++round) {
    SCOPED_TRACE(round);
    int out = -1;
    const pid_t child = StartChild(directory.path(), next_seed, phase, rng() % 200, &out);
    // Killed after some messages and a random while more: in the middle of a write, a flush, or a
    // rewrite of files.
    const uint64_t messages = 1 + rng() % 25;
    uint64_t last_flushed = next_seed - 1;
    std::set<uint64_t> released;
    const auto take = [&](const char* message) {
      uint64_t seed;
      std::memcpy(&seed, message + 1, 8);
      if (message[0] == 'F') last_flushed = seed;
      if (message[0] == 'R') released.insert(seed);
    };
    char message[9];
    for (uint64_t i = 0; phase == KillingIo::Phase::kNever && i < messages; ++i) {
      ASSERT_EQ(read(out, message, sizeof(message)), 9) << "the child ended by itself";
      take(message);
    }
    if (phase == KillingIo::Phase::kNever) {
      usleep(static_cast<useconds_t>(rng() % 30000));
      kill(child, SIGKILL);
    }
    // Else it ends by itself, in its phase.
    while (read(out, message, sizeof(message)) == 9) take(message);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
    close(out);
    for (uint64_t seed = next_seed; seed <= last_flushed; ++seed) promised.insert(seed);
    for (uint64_t seed : released) promised.erase(seed);

    auto tier = OpenAt(directory.path());
    ASSERT_NE(tier, nullptr);
    std::map<uint64_t, Extent> found;
    ASSERT_OK(tier->Recover([&](const Extent& extent, std::string_view record) {
      found[std::stoull(std::string(record))] = extent;
      return true;
    }));
    for (uint64_t seed : promised) {
      ASSERT_TRUE(found.contains(seed)) << "seed " << seed << " was flushed and is gone";
    }
    for (const auto& [seed, extent] : found) {
      std::vector<std::byte> bytes(extent.length);
      ASSERT_OK(ReadAndWait(*tier, extent, bytes)) << "seed " << seed;
      ASSERT_EQ(bytes, Pattern(seed, extent.length)) << "seed " << seed;
      next_seed = std::max(next_seed, seed + 1);
    }
    next_seed = std::max(next_seed, last_flushed + 1);
    // Blocks that were found count from now on: the clean close below flushes.
    promised.clear();
    for (const auto& [seed, extent] : found) promised.insert(seed);
    found_in_all += found.size();
    EXPECT_EQ(tier->GetDiskStats().corrupt_records, 0u);
  }
  EXPECT_GT(found_in_all, 5u * static_cast<uint64_t>(loops));
}

INSTANTIATE_TEST_SUITE_P(All, DiskCrashTest,
                         ::testing::Values(KillingIo::Phase::kNever, KillingIo::Phase::kBefore,
                                           KillingIo::Phase::kTorn, KillingIo::Phase::kWritten),
                         [](const auto& c) {
                           return std::string(
                               c.param == KillingIo::Phase::kNever    ? "AtAnyTime"
                               : c.param == KillingIo::Phase::kBefore ? "BeforeAWrite"
                               : c.param == KillingIo::Phase::kTorn   ? "InAWrite"
                                                                      : "BeforeTheRecord");
                         });

}  // namespace
}  // namespace cairn::cache::conformance
