// The disk tier's own features: the directory, time and room, damage, a full disk. The common
// promises: tests/conformance/cache/tier.

#include "services/cache/store/tier/disk/disk_tier.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/io_backend.h"
#include "tests/unit/cache/store/tier/disk/disk_fixture.h"

namespace cairn::cache {
namespace {

namespace fs = std::filesystem;
using ::cairn::testing::StatusIs;
using conformance::Pattern;
using conformance::ReadAndWait;
using conformance::ScratchDirectory;
using conformance::Waiter;
using conformance::WriteAndWait;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::kMiB;

template <typename Condition>
bool WaitUntil(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(120)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

class DiskTierTest : public testing::DiskFixture {
 protected:
  std::vector<fs::path> Files(const std::string& extension) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path())) {
      if (entry.path().extension() == extension) files.push_back(entry.path());
    }
    return files;
  }
  static uint64_t DirectoryBytes(const std::string& path) {
    uint64_t bytes = 0;
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(path, error)) {
      // A file may go while it is looked at.
      const uint64_t size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
      if (!error) bytes += size;
    }
    return bytes;
  }
};

TEST_F(DiskTierTest, BadOptionsAreNamed) {
  const auto open = [&](auto change) {
    DiskTierOptions options = Options();
    change(options);
    return DiskTier::Open(options).status();
  };
  using O = DiskTierOptions;
  EXPECT_THAT(open([](O& o) { o.capacity_bytes = 0; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'capacity_bytes': got 0")));
  EXPECT_THAT(open([](O& o) { o.directory = ""; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("disk.path: got ''")));
  EXPECT_THAT(open([](O& o) { o.node_id = "a b"; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'node_id': got 'a b'")));
  EXPECT_THAT(open([](O& o) { o.queue_depth = 65; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'queue_depth': got 65")));
  EXPECT_THAT(open([](O& o) { o.max_extent_bytes = 0; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'max_extent_bytes': got 0")));
  EXPECT_THAT(open([](O& o) { o.io_backend = "fast"; }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'io_backend': got 'fast'")));
  EXPECT_THAT(open([](O& o) { o.directory = "/proc/nowhere"; }),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("/proc/nowhere")));
}

TEST_F(DiskTierTest, NodeIdIsKept) {
  std::string id;
  {
    const auto tier = Open(Options());
    id = tier->node_id();
    EXPECT_THAT(id, ::testing::StartsWith("node-"));
  }
  EXPECT_EQ(Open(Options())->node_id(), id);
}

TEST_F(DiskTierTest, DirectoryOfAnotherNodeIsRefusedOrWiped) {
  DiskTierOptions options = Options();
  options.node_id = "node-a";
  {
    const auto tier = Open(options);
    Put(*tier, 1, 1000);
  }
  options.node_id = "node-b";
  EXPECT_THAT(DiskTier::Open(options), StatusIs(StatusCode::kFailedPrecondition,
                                                AllOf(HasSubstr("node-a"), HasSubstr("node-b"),
                                                      HasSubstr("disk.wipe_on_mismatch"))));
  options.wipe_on_mismatch = true;
  std::vector<Extent> found;
  EXPECT_EQ(Open(options, &found)->node_id(), "node-b");
  EXPECT_TRUE(found.empty());
}

TEST_F(DiskTierTest, DirectoryOfAnotherNodeIsTakenOverWithItsBlocks) {
  std::string first;
  {
    const auto tier = Open(Options());  // A node that chose its own name.
    Put(*tier, 1, 1000);
    first = tier->node_id();
  }
  DiskTierOptions options = Options();
  options.node_id = "cairn-0";
  options.take_over = true;
  std::vector<Extent> found;
  EXPECT_EQ(Open(options, &found)->node_id(), "cairn-0");
  EXPECT_EQ(found.size(), 1u);
  // It is the new node's from now on.
  options.take_over = false;
  EXPECT_EQ(Open(options)->node_id(), "cairn-0");
  options.node_id = first;
  EXPECT_THAT(DiskTier::Open(options),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("cairn-0")));
}

TEST_F(DiskTierTest, AnotherFormatIsNotTakenOver) {
  fs::create_directories(directory_.path());
  std::ofstream(directory_.path() + "/DISK_FORMAT") << "cairn-disk 99\nnode x\nstate ready\n";
  DiskTierOptions options = Options();
  options.node_id = "cairn-0";
  options.take_over = true;
  EXPECT_THAT(DiskTier::Open(options),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("format '99', expected 2")));
}

TEST_F(DiskTierTest, AnotherFormatIsRefusedOrWiped) {
  { Put(*Open(Options()), 1, 1000); }
  std::ofstream(directory_.path() + "/DISK_FORMAT") << "cairn-disk 99\nnode x\nstate ready\n";
  EXPECT_THAT(DiskTier::Open(Options()),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("format '99', expected 2")));
  DiskTierOptions options = Options();
  options.wipe_on_mismatch = true;
  std::vector<Extent> found;
  Open(options, &found);
  EXPECT_TRUE(found.empty());
}

TEST_F(DiskTierTest, ForeignFormatFileIsShownShortAndPrintable) {
  fs::create_directories(directory_.path());
  std::ofstream(directory_.path() + "/DISK_FORMAT") << "gar\x01"
                                                       "bage\n"
                                                    << std::string(5000, 'x');
  const Status status = DiskTier::Open(Options()).status();
  EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("format '', expected 2"),
                                     HasSubstr("DISK_FORMAT says 'gar\\x01bage\\nxxx"),
                                     HasSubstr("xxx...'"))));
  EXPECT_LT(Message(status).size(), 500u);
}

TEST_F(DiskTierTest, DatabaseWithoutAFormatFileIsRefused) {
  fs::create_directories(directory_.path() + "/db");
  EXPECT_THAT(DiskTier::Open(Options()),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("without DISK_FORMAT")));
}

TEST_F(DiskTierTest, FilesOfOthersStay) {
  fs::create_directories(directory_.path());
  std::ofstream(directory_.path() + "/notes.txt") << "mine";
  DiskTierOptions options = Options();
  options.wipe_on_mismatch = true;
  Open(options);
  EXPECT_TRUE(fs::exists(directory_.path() + "/notes.txt"));
}

TEST_F(DiskTierTest, CrashWhileTheDatabaseIsMadeIsHarmless) {
  fs::create_directories(directory_.path() + "/db");
  std::ofstream(directory_.path() + "/db/MANIFEST-000001") << "half";
  std::ofstream(directory_.path() + "/DISK_FORMAT")
      << "cairn-disk 2\nnode x\nsegment 2097152\nstate new\n";
  EXPECT_EQ(Open(Options())->node_id(), "x");
}

TEST_F(DiskTierTest, SecondOpenIsRefused) {
  const auto tier = Open(Options());
  EXPECT_THAT(DiskTier::Open(Options()),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("in use by another process")));
}

// The remains of an earlier version: values in the database.
TEST_F(DiskTierTest, DirectoryOfTheFormerFormatIsRefusedOrWiped) {
  fs::create_directories(directory_.path() + "/db");
  std::ofstream(directory_.path() + "/db/000008.sst") << "values";
  std::ofstream(directory_.path() + "/DISK_FORMAT") << "cairn-disk 1\nnode old\nstate ready\n";
  EXPECT_THAT(DiskTier::Open(Options()),
              StatusIs(StatusCode::kFailedPrecondition, AllOf(HasSubstr("format '1', expected 2"),
                                                              HasSubstr("disk.wipe_on_mismatch"))));
  EXPECT_TRUE(fs::exists(directory_.path() + "/db/000008.sst"));
  DiskTierOptions options = Options();
  options.wipe_on_mismatch = true;
  std::vector<Extent> found;
  Put(*Open(options, &found), 1, 1000);
  EXPECT_TRUE(found.empty());
}

TEST_F(DiskTierTest, BadSegmentSizesInTheFormatAreRefused) {
  fs::create_directories(directory_.path());
  for (const char* size : {"0", "4096", "2097153", "many"}) {
    std::ofstream(directory_.path() + "/DISK_FORMAT")
        << "cairn-disk 2\nnode x\nsegment " << size << "\nstate ready\n";
    EXPECT_THAT(DiskTier::Open(Options()),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("has segments of")));
  }
}

TEST_F(DiskTierTest, CompletedWritesSurviveAtOnce) {
  const auto tier = Open(Options());
  const Extent extent = Put(*tier, 1, 100000);
  EXPECT_EQ(tier->GetDiskStats().waiting_bytes, 0u);
  // A copy of the directory is what a killed process leaves.
  ScratchDirectory copy("disk_copy");
  fs::copy(directory_.path(), copy.path(), fs::copy_options::recursive);
  DiskTierOptions options = Options();
  options.directory = copy.path();
  std::vector<Extent> found;
  const auto again = Open(options, &found);
  EXPECT_THAT(found, ::testing::ElementsAre(extent));
  std::vector<std::byte> bytes(extent.length);
  ASSERT_OK(ReadAndWait(*again, extent, bytes));
  EXPECT_EQ(bytes, Pattern(1, 100000));
}

TEST_F(DiskTierTest, AccessesToTheDeviceAreCountedWithTheirTime) {
  const auto tier = Open(Options());
  const Extent first = Put(*tier, 1, 100000);
  Put(*tier, 2, 100000);
  std::vector<std::byte> bytes(first.length);
  ASSERT_OK(ReadAndWait(*tier, first, bytes));
  ASSERT_OK(tier->Flush());
  const DiskTierStats stats = tier->GetDiskStats();
  // One after the other, so that each write is a group of its own.
  EXPECT_EQ(stats.writes.ended, 2u);
  EXPECT_EQ(stats.reads.ended, 1u);
  EXPECT_GE(stats.syncs.ended, 1u);
  for (const disk::IoTimeStats& io : {stats.reads, stats.writes, stats.syncs}) {
    EXPECT_GT(io.seconds, 0);
    EXPECT_LT(io.seconds, 60);
  }
}

TEST_F(DiskTierTest, FlushIsDurableAndReleaseToo) {
  const auto tier = Open(Options());
  const Extent kept = Put(*tier, 1, 100000);
  const Extent released = Put(*tier, 2, 100000);
  ASSERT_OK(tier->Flush());
  tier->Release(released);
  ASSERT_OK(tier->Flush());
  ScratchDirectory copy("disk_copy");
  fs::copy(directory_.path(), copy.path(), fs::copy_options::recursive);
  DiskTierOptions options = Options();
  options.directory = copy.path();
  std::vector<Extent> found;
  Open(options, &found);
  EXPECT_THAT(found, ::testing::ElementsAre(kept));
}

TEST_F(DiskTierTest, MetaIsDurableAtOnce) {
  const auto tier = Open(Options());
  ASSERT_OK(tier->PutMeta("namespace", "fingerprint"));
  ScratchDirectory copy("disk_copy");
  fs::copy(directory_.path(), copy.path(), fs::copy_options::recursive);
  DiskTierOptions options = Options();
  options.directory = copy.path();
  int metas = 0;
  ASSERT_OK(Open(options)->ListMeta([&](std::string_view, std::string_view) { ++metas; }));
  EXPECT_EQ(metas, 1);
}

TEST_F(DiskTierTest, FullQueueIsRefused) {
  DiskTierOptions options = Options();
  options.queue_capacity = 1;
  options.queue_depth = 1;
  const auto tier = Open(options);
  const Extent extent = Put(*tier, 1, 1000);
  std::vector<std::byte> bytes(1000);
  // The only thread is held inside a callback.
  std::mutex gate;
  gate.lock();
  Waiter first, second, third;
  tier->Read(extent, bytes, [&, done = first.Callback()](Status s) {
    std::lock_guard wait(gate);
    done(s);
  });
  ASSERT_TRUE(WaitUntil([&] { return tier->GetStats().read_bytes == 1000; }));
  std::vector<std::byte> other(1000);
  tier->Read(extent, other, second.Callback());
  std::vector<std::byte> last(1000);
  tier->Read(extent, last, third.Callback());
  EXPECT_THAT(third.Wait(), StatusIs(StatusCode::kResourceExhausted, HasSubstr("queue is full")));
  gate.unlock();
  EXPECT_OK(first.Wait());
  EXPECT_OK(second.Wait());
}

// Holds requests back until it is opened.
class HeldIo final : public disk::IoBackend {
 public:
  struct Gate {
    Mutex mu;
    bool open ABSL_GUARDED_BY(mu) = true;
    std::vector<std::pair<disk::IoBackend*, disk::IoRequest*>> held ABSL_GUARDED_BY(mu);

    void Close() {
      MutexLock lock(mu);
      open = false;
    }
    void Open() {
      MutexLock lock(mu);
      open = true;
      for (const auto& [backend, request] : held) backend->Submit(request);
      held.clear();
    }
    std::vector<uint64_t> Sizes() {
      MutexLock lock(mu);
      std::vector<uint64_t> sizes;
      for (const auto& [backend, request] : held) {
        sizes.push_back(0);
        for (int i = 0; i < request->iov_count; ++i) sizes.back() += request->iov[i].iov_len;
      }
      return sizes;
    }
  };
  HeldIo(std::unique_ptr<disk::IoBackend> real, Gate* gate) : real_(std::move(real)), gate_(gate) {}
  disk::IoKind kind() const override { return real_->kind(); }
  void Submit(disk::IoRequest* request) override {
    MutexLock lock(gate_->mu);
    if (gate_->open) return real_->Submit(request);
    gate_->held.emplace_back(real_.get(), request);
  }

 private:
  const std::unique_ptr<disk::IoBackend> real_;
  Gate* const gate_;
};

TEST_F(DiskTierTest, FullGroupsWaitAtTheBackendAndSmallerOnesForMore) {
  HeldIo::Gate gate;
  DiskTierOptions options = Options();
  options.capacity_bytes = 128 * kMiB;
  options.queue_depth = 1;
  options.wrap_io = [&gate](auto io) { return std::make_unique<HeldIo>(std::move(io), &gate); };
  const auto tier = Open(options);
  Put(*tier, 1, 1000);         // Makes a segment.
  std::vector<uint64_t> held;  // Bytes of each request that waits at the backend.
  const auto write = [&](size_t count, uint32_t length) {
    gate.Close();
    const std::vector<std::byte> bytes = Pattern(2, length);
    std::vector<Waiter> waiters(count);
    for (Waiter& waiter : waiters) {
      const auto extent = tier->Reserve(length);
      ASSERT_OK(extent);
      tier->Write(*extent, "r", bytes, waiter.Callback());
    }
    held = gate.Sizes();
    gate.Open();
    for (Waiter& waiter : waiters) EXPECT_OK(waiter.Wait());
  };
  write(3, kMiB);
  EXPECT_EQ(held, (std::vector<uint64_t>{kMiB, kMiB}));
  write(10, 64 << 10);
  EXPECT_EQ(held, (std::vector<uint64_t>{64 << 10}));
  write(20, 64 << 10);
  EXPECT_EQ(held, (std::vector<uint64_t>{64 << 10, kMiB}));
}

// Five times the capacity through a small tier: in turn (as LRU does), at random, and as the tier
// advises.
TEST_F(DiskTierTest, DirectoryStaysBoundedUnderChurn) {
  enum Way { kInTurn, kAtRandom, kAsAdvised };
  for (const Way way : {kInTurn, kAtRandom, kAsAdvised}) {
    SCOPED_TRACE(way);
    ScratchDirectory directory("churn");
    DiskTierOptions options = Options();
    options.directory = directory.path();
    options.capacity_bytes = 64 * kMiB;
    const auto tier = Open(options);
    std::mt19937_64 rng(9);
    std::map<uint64_t, std::pair<uint64_t, Extent>> kept;  // By id: in the order of writing.
    uint64_t largest = 0;
    uint64_t written = 0;
    for (uint64_t seed = 1; written < 5 * options.capacity_bytes; ++seed) {
      const auto length = static_cast<uint32_t>(200000 + rng() % 1400000);
      auto extent = tier->Reserve(length);
      while (!extent.ok()) {
        const VictimGroup victims = way == kAsAdvised ? tier->NextVictims() : VictimGroup{};
        for (const auto& member : victims.members) {
          tier->Release(member.extent);
          ASSERT_EQ(kept.erase(member.extent.id), 1u);
        }
        if (victims.members.empty()) {
          const auto victim = std::next(
              kept.begin(), way == kAtRandom ? static_cast<ptrdiff_t>(rng() % kept.size()) : 0);
          tier->Release(victim->second.second);
          kept.erase(victim);
        }
        extent = tier->Reserve(length);
      }
      const Status status = WriteAndWait(*tier, *extent, "r", Pattern(seed, length));
      if (!status.ok()) {  // Scattered holes leave no room: the owner evicts more.
        ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << ToString(status);
        tier->Release(*extent);
        continue;
      }
      kept[extent->id] = {seed, *extent};
      written += length;
      if (seed % 8 == 0) largest = std::max(largest, DirectoryBytes(directory.path()));
    }
    EXPECT_LE(static_cast<double>(largest), 1.3 * static_cast<double>(options.capacity_bytes));
    const double amplification =
        1 + static_cast<double>(tier->GetDiskStats().moved_bytes) / static_cast<double>(written);
    std::printf("[          ] largest directory %.2f x capacity, write amplification %.2f\n",
                static_cast<double>(largest) / static_cast<double>(options.capacity_bytes),
                amplification);
    if (way == kAsAdvised) {
      EXPECT_LE(amplification, 1.01);
    }
    for (const auto& [id, seed_and_extent] : kept) {
      const auto& [seed, extent] = seed_and_extent;
      std::vector<std::byte> bytes(extent.length);
      ASSERT_OK(ReadAndWait(*tier, extent, bytes));
      ASSERT_EQ(bytes, Pattern(seed, extent.length)) << "seed " << seed;
    }
    for (const auto& [id, seed_and_extent] : kept) tier->Release(seed_and_extent.second);
    ASSERT_OK(tier->Flush());
    const DiskTierStats stats = tier->GetDiskStats();
    EXPECT_GE(stats.free_segments + 2, stats.segments) << "but for the two that are open";
    EXPECT_EQ(tier->GetStats().used_bytes, 0u);
  }
}

TEST_F(DiskTierTest, FlippedBitsAreNeverServed) {
  constexpr int kExtents = 8;
  std::vector<Extent> extents;
  {
    const auto tier = Open(Options());
    for (int i = 0; i < kExtents; ++i)
      extents.push_back(Put(*tier, static_cast<uint64_t>(i), 200000));
  }
  const fs::path first = directory_.path() + "/values/000000.seg";
  {
    // In the middle of the third payload.
    std::fstream file(first, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(500000);
    const int byte = file.get();
    file.seekp(500000);
    file.put(static_cast<char>(byte ^ 1));
  }
  std::vector<Extent> found;
  const auto tier = Open(Options(), &found);
  EXPECT_EQ(found.size(), size_t{kExtents});
  int lost = 0;
  for (int i = 0; i < kExtents; ++i) {
    std::vector<std::byte> bytes(200000);
    const Status status = ReadAndWait(*tier, extents[static_cast<size_t>(i)], bytes);
    if (status.ok()) {
      EXPECT_EQ(bytes, Pattern(static_cast<uint64_t>(i), 200000));
    } else {
      ++lost;
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << ToString(status);
    }
  }
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(tier->GetDiskStats().corrupt_reads, 1u);
}

// Damage anywhere in any file: opening fails with advice, or what is read is right or refused.
// Nothing crashes.
TEST_F(DiskTierTest, RandomDamageNeverGivesWrongBytes) {
  constexpr uint64_t kExtents = 10;
  {
    const auto tier = Open(Options());
    for (uint64_t i = 0; i < kExtents; ++i) Put(*tier, i, static_cast<uint32_t>(5000 + 1000 * i));
  }
  int opened = 0;
  int refused = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    ScratchDirectory copy("damaged");
    fs::copy(directory_.path(), copy.path(), fs::copy_options::recursive);
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(copy.path() + "/db")) {
      const std::string name = entry.path().filename();
      if (fs::file_size(entry) > 0 && name.find("LOG") == std::string::npos) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    const fs::path& victim = files[rng() % files.size()];
    SCOPED_TRACE(victim.filename().string());
    const uint64_t size = fs::file_size(victim);
    if (rng() % 4 == 0) {
      fs::resize_file(victim, rng() % size);
    } else {
      std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(rng() % size);
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ (1 << rng() % 8)));
    }
    DiskTierOptions options = Options();
    options.directory = copy.path();
    auto tier = DiskTier::Open(options);
    std::vector<Extent> found;
    Status status = tier.status();
    if (tier.ok()) {
      status = (*tier)->Recover([&](const Extent& extent, std::string_view) {
        found.push_back(extent);
        return true;
      });
    }
    if (!status.ok()) {
      ++refused;
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << ToString(status);
      if (!tier.ok()) {
        EXPECT_THAT(Message(status), HasSubstr("disk.wipe_on_damage"));
      }
      tier = Errorf(StatusCode::kUnknown, "closed");
      options.wipe_on_damage = true;
      EXPECT_OK(DiskTier::Open(options));
      continue;
    }
    ++opened;
    for (const Extent& extent : found) {
      std::vector<std::byte> bytes(extent.length);
      const Status read = ReadAndWait(**tier, extent, bytes);
      if (read.ok()) {
        EXPECT_EQ(bytes, Pattern((extent.length - 5000) / 1000, extent.length));
      } else {
        EXPECT_TRUE(read.code() == StatusCode::kDataLoss || read.code() == StatusCode::kNotFound)
            << ToString(read);
      }
    }
  }
  EXPECT_GT(opened, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(DiskTierTest, LittleRoomOnTheFileSystemIsRefused) {
  DiskTierOptions options = Options();
  options.min_free_bytes = uint64_t{1} << 60;
  const auto tier = Open(options);
  const Extent extent = *tier->Reserve(1000);
  EXPECT_THAT(WriteAndWait(*tier, extent, "r", Pattern(1, 1000)),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("disk.path: the file system of '" + options.directory),
                             HasSubstr("disk.min_free, 1152921504606846976, more"))));
}

// A file system of 40 MiB that fills up for real, below the tier's own guard.
TEST_F(DiskTierTest, FullDiskRefusesWritesServesReadsAndRecovers) {
  fs::create_directories(directory_.path());
  if (mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, "size=40m") != 0) {
    GTEST_SKIP() << "cannot mount a tmpfs here: " << std::strerror(errno);
  }
  struct Unmount {
    std::string path;
    ~Unmount() { umount2(path.c_str(), MNT_DETACH); }
  } unmount{directory_.path()};
  const std::string ballast = directory_.path() + "/ballast";
  DiskTierOptions options = Options();
  options.capacity_bytes = 128 * kMiB;  // Segments of 8 MiB.
  auto tier = Open(options);
  std::vector<std::pair<uint64_t, Extent>> kept;
  for (uint64_t seed = 0; seed < 10; ++seed) kept.emplace_back(seed, Put(*tier, seed, kMiB));
  {
    std::ofstream out(ballast, std::ios::binary);
    const std::string chunk(kMiB, 'x');
    while (out.write(chunk.data(), static_cast<std::streamsize>(chunk.size())) && out.flush()) {
    }
  }

  // Extents that fit into the segments that are there may be accepted; then one is refused.
  Status refused = OkStatus();
  for (uint64_t seed = 100; seed < 180 && refused.ok(); ++seed) {
    const Extent extent = *tier->Reserve(kMiB);
    refused = WriteAndWait(*tier, extent, "r", Pattern(seed, kMiB));
    if (refused.ok()) {
      kept.emplace_back(seed, extent);
    } else {
      tier->Release(extent);
    }
  }
  EXPECT_THAT(refused, ::testing::AnyOf(StatusIs(StatusCode::kResourceExhausted, ::testing::_),
                                        StatusIs(StatusCode::kUnavailable, ::testing::_)));
  EXPECT_GT(tier->GetStats().io_errors, 0u);
  for (const auto& [seed, extent] : kept) {
    std::vector<std::byte> bytes(extent.length);
    ASSERT_OK(ReadAndWait(*tier, extent, bytes)) << seed;
    ASSERT_EQ(bytes, Pattern(seed, kMiB));
  }

  fs::remove(ballast);
  ASSERT_TRUE(WaitUntil([&] {
    const Extent extent = *tier->Reserve(kMiB);
    if (WriteAndWait(*tier, extent, "r", Pattern(200, kMiB)).ok()) {
      kept.emplace_back(200, extent);
      return true;
    }
    tier->Release(extent);
    return false;
  }));
  ASSERT_TRUE(WaitUntil([&] { return tier->Flush().ok(); }));
  ASSERT_OK(tier->PutMeta("name", "value"));
  for (uint64_t seed = 201; seed < 205; ++seed) kept.emplace_back(seed, Put(*tier, seed, kMiB));
  tier.reset();
  std::vector<Extent> found;
  tier = Open(options, &found);
  EXPECT_EQ(found.size(), kept.size());
  for (const auto& [seed, extent] : kept) {
    std::vector<std::byte> bytes(extent.length);
    ASSERT_OK(ReadAndWait(*tier, extent, bytes)) << seed;
    ASSERT_EQ(bytes, Pattern(seed, kMiB));
  }
  tier.reset();
}

TEST_F(DiskTierTest, EmptyTierNeedsLittleMemory) {
  const auto tier = Open(Options());
  EXPECT_LT(tier->memory_bytes(), 8 * kMiB);
}

TEST_F(DiskTierTest, BufferedModeIsSaid) {
  DiskTierOptions options = Options();
  options.direct_io = false;
  EXPECT_THAT(Open(options)->io_mode(), ::testing::EndsWith("/buffered"));
}

}  // namespace
}  // namespace cairn::cache
