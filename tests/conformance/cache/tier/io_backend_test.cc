// The promises of every way to the device, and the disk tier over one that breaks its promises.

#include "services/cache/store/tier/disk/io_backend.h"

#include <fcntl.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <map>
#include <mutex>

#include "services/cache/store/tier/disk/disk_tier.h"
#include "services/cache/store/tier/disk/full_io.h"
#include "services/cache/store/tier/disk/testing/faulty_io.h"
#include "tests/conformance/cache/tier/tier_conformance.h"

namespace cairn::cache::conformance {
namespace {

using ::cairn::testing::StatusIs;
using disk::FullIo;
using disk::IoBackend;
using disk::IoKind;
using testing::FaultyIo;

constexpr uint32_t kMiB = 1 << 20;

struct BackendCase {
  IoKind kind;
  bool direct;
};

class IoBackendConformance : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(directory_.path());
    fd_ = open((directory_.path() + "/file").c_str(),
               O_RDWR | O_CREAT | O_CLOEXEC | (GetParam().direct ? O_DIRECT : 0), 0600);
    if (fd_ < 0) GTEST_SKIP() << "O_DIRECT does not work here";
    ASSERT_EQ(ftruncate(fd_, 16 * kMiB), 0);
    auto made = disk::MakeIoBackend(GetParam().kind, {.depth = 4});
    if (!made.ok()) GTEST_SKIP() << ToString(made.status());
    backend_ = *std::move(made);
  }
  void TearDown() override {
    backend_.reset();
    if (fd_ >= 0) close(fd_);
  }
  Status Run(FullIo* io) {
    Waiter waiter;
    io->Start(backend_.get(), waiter.Callback());
    return waiter.Wait();
  }
  Status Write(uint64_t offset, std::span<const std::byte> bytes) {
    auto* const io = FullIo::NewWrite(fd_, offset);
    io->AddSource(bytes);
    return Run(io);
  }
  Status Read(uint64_t offset, std::span<std::byte> bytes) {
    auto* const io = FullIo::NewRead(fd_, offset);
    io->AddDestination(bytes);
    return Run(io);
  }

  ScratchDirectory directory_{"io"};
  int fd_ = -1;
  std::unique_ptr<IoBackend> backend_;
};

TEST_P(IoBackendConformance, SaysWhatItIs) { EXPECT_EQ(backend_->kind(), GetParam().kind); }

TEST_P(IoBackendConformance, ReadsWhatWasWrittenFromMemoryOfAnyShape) {
  for (const size_t bytes : {1u, 4095u, 4096u, 4097u, 100'001u, 3u * kMiB}) {
    for (const size_t misaligned : {0u, 1u, 512u}) {
      SCOPED_TRACE(std::to_string(bytes) + " at " + std::to_string(misaligned));
      const auto pattern = Pattern(bytes, bytes);
      const disk::PageBuffer from(bytes + 4096), to(bytes + 8192);
      std::memcpy(from.data() + misaligned, pattern.data(), bytes);
      std::memset(to.data(), 0x5a, bytes + 8192);
      ASSERT_OK(Write(8192, {from.data() + misaligned, bytes}));
      ASSERT_OK(Read(8192, {to.data() + misaligned, bytes}));
      ASSERT_EQ(std::memcmp(to.data() + misaligned, pattern.data(), bytes), 0);
      // Nothing before it, nothing behind it.
      for (size_t i = 0; i < misaligned; ++i) ASSERT_EQ(to.data()[i], std::byte{0x5a});
      for (size_t i = 0; i < 64; ++i) ASSERT_EQ(to.data()[misaligned + bytes + i], std::byte{0x5a});
    }
  }
}

TEST_P(IoBackendConformance, ManyAtOnceBeyondItsDepth) {
  constexpr size_t kCount = 200;
  constexpr size_t kBytes = 20'000;
  std::vector<std::vector<std::byte>> patterns;
  for (size_t i = 0; i < kCount; ++i) patterns.push_back(Pattern(i, kBytes));
  for (const bool write : {true, false}) {
    std::vector<std::vector<std::byte>> got(kCount, std::vector<std::byte>(kBytes));
    std::deque<Waiter> waiters(kCount);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      // Threads that are gone before their requests end.
      threads.emplace_back([&, t] {
        for (size_t i = t; i < kCount; i += 4) {
          auto* const io =
              write ? FullIo::NewWrite(fd_, i * 20'480) : FullIo::NewRead(fd_, i * 20'480);
          if (write) {
            io->AddSource(patterns[i]);
          } else {
            io->AddDestination(got[i]);
          }
          io->Start(backend_.get(), waiters[i].Callback());
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (size_t i = 0; i < kCount; ++i) ASSERT_OK(waiters[i].Wait()) << i;
    if (write) continue;
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i], patterns[i]) << i;
  }
}

TEST_P(IoBackendConformance, CallbacksMaySubmit) {
  std::vector<std::byte> bytes(4096);
  std::atomic<int> left{50};
  Waiter last;
  std::function<void(Status)> next = [&](Status status) {
    EXPECT_OK(status);
    if (--left == 0) return last.Callback()(OkStatus());
    auto* const io = FullIo::NewRead(fd_, 0);
    io->AddDestination(bytes);
    io->Start(backend_.get(), next);
  };
  next(OkStatus());
  ASSERT_OK(last.Wait());
}

TEST_P(IoBackendConformance, ErrorsComeBack) {
  std::vector<std::byte> bytes(4096);
  auto* io = FullIo::NewRead(-1, 0);
  io->AddDestination(bytes);
  EXPECT_THAT(Run(io),
              StatusIs(StatusCode::kUnavailable, ::testing::HasSubstr("Bad file descriptor")));
  // Past the end of the file.
  EXPECT_THAT(Read(16 * kMiB, bytes),
              StatusIs(StatusCode::kDataLoss, ::testing::HasSubstr("got 0 of 4096")));
}

TEST_P(IoBackendConformance, ShortTransfersAreContinued) {
  auto plan = std::make_shared<FaultyIo::Plan>();
  backend_ = std::make_unique<FaultyIo>(std::move(backend_), plan);
  plan->Set([](const disk::IoRequest&) {
    return FaultyIo::Fault{.kind = FaultyIo::Kind::kShort, .bytes = 12288};
  });
  const auto pattern = Pattern(1, 300'000);
  ASSERT_OK(Write(0, pattern));
  std::vector<std::byte> bytes(pattern.size());
  ASSERT_OK(Read(0, bytes));
  EXPECT_EQ(bytes, pattern);
  EXPECT_GT(plan->faults(), 40u);
}

TEST_P(IoBackendConformance, AReadIsTriedOnceMore) {
  auto plan = std::make_shared<FaultyIo::Plan>();
  backend_ = std::make_unique<FaultyIo>(std::move(backend_), plan);
  const auto pattern = Pattern(1, 10'000);
  ASSERT_OK(Write(0, pattern));
  std::vector<std::byte> bytes(pattern.size());
  int errors = 1;
  plan->Set([&errors](const disk::IoRequest&) {
    return FaultyIo::Fault{.kind = errors-- > 0 ? FaultyIo::Kind::kError : FaultyIo::Kind::kNone};
  });
  EXPECT_OK(Read(0, bytes));
  errors = 2;
  EXPECT_THAT(Read(0, bytes), StatusIs(StatusCode::kDataLoss, ::testing::_));
  errors = 1;
  EXPECT_THAT(Write(0, pattern), StatusIs(StatusCode::kUnavailable, ::testing::_));
}

INSTANTIATE_TEST_SUITE_P(
    All, IoBackendConformance,
    ::testing::Values(BackendCase{IoKind::kUring, true}, BackendCase{IoKind::kUring, false},
                      BackendCase{IoKind::kAio, true}, BackendCase{IoKind::kAio, false},
                      BackendCase{IoKind::kThreads, true}, BackendCase{IoKind::kThreads, false}),
    [](const auto& c) {
      const std::string name(disk::Name(c.param.kind));
      return (name == "io_uring" ? "uring" : name) + (c.param.direct ? "Direct" : "Buffered");
    });

// --- The tier over a bad device
// -----------------------------------------------------------------------------------

class BadDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open(uint64_t scrub = 0) {
    tier_.reset();
    DiskTierOptions options;
    options.directory = directory_.path();
    options.capacity_bytes = 16 * kMiB;
    options.min_free_bytes = 0;
    options.scrub_bytes_per_second = scrub;
    options.wrap_io = [this](std::unique_ptr<IoBackend> io) -> std::unique_ptr<IoBackend> {
      return std::make_unique<FaultyIo>(std::move(io), plan_);
    };
    auto tier = DiskTier::Open(options);
    ASSERT_OK(tier);
    tier_ = *std::move(tier);
    tier_->SetDamageListener([this](const Extent& extent, std::string_view record) {
      std::lock_guard lock(mu_);
      damaged_.insert({extent.id, std::string(record)});
    });
    found_.clear();
    ASSERT_OK(tier_->Recover([this](const Extent& extent, std::string_view) {
      found_.push_back(extent);
      return true;
    }));
  }
  void TearDown() override {
    plan_->Clear();
    tier_.reset();
  }
  Status Put(uint64_t seed, uint32_t length, Extent* extent) {
    CAIRN_ASSIGN_OR_RETURN(*extent, tier_->Reserve(length));
    return WriteAndWait(*tier_, *extent, "record " + std::to_string(seed), Pattern(seed, length));
  }
  Status Get(const Extent& extent, std::vector<std::byte>* bytes) {
    bytes->assign(extent.length, std::byte{0});
    return ReadAndWait(*tier_, extent, *bytes);
  }
  size_t damaged() {
    std::lock_guard lock(mu_);
    return damaged_.size();
  }

  ScratchDirectory directory_{"bad"};
  std::shared_ptr<FaultyIo::Plan> plan_ = std::make_shared<FaultyIo::Plan>();
  std::mutex mu_;
  std::set<std::pair<uint64_t, std::string>> damaged_;
  std::vector<Extent> found_;
  std::unique_ptr<DiskTier> tier_;  // Last: its threads use what is above.
};

TEST_F(BadDeviceTest, AFailedWriteLeavesTheExtentReserved) {
  for (const int error : {EIO, ENOSPC}) {
    plan_->Set([error](const disk::IoRequest& r) {
      return FaultyIo::Fault{.kind = r.write ? FaultyIo::Kind::kError : FaultyIo::Kind::kNone,
                             .error = error};
    });
    Extent extent;
    EXPECT_EQ(Put(1, 100'000, &extent).code(),
              error == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kUnavailable);
    std::vector<std::byte> bytes;
    EXPECT_EQ(Get(extent, &bytes).code(), StatusCode::kNotFound);
    plan_->Clear();
    ASSERT_OK(WriteAndWait(*tier_, extent, "again", Pattern(2, extent.length)));
    ASSERT_OK(Get(extent, &bytes));
    EXPECT_EQ(bytes, Pattern(2, extent.length));
  }
  EXPECT_EQ(tier_->GetStats().io_errors, 2u);
}

TEST_F(BadDeviceTest, TornWritesAndFlippedBitsAreNeverServed) {
  for (const auto kind : {FaultyIo::Kind::kTorn, FaultyIo::Kind::kFlipBit}) {
    plan_->Set([kind](const disk::IoRequest& r) {
      return FaultyIo::Fault{.kind = r.write ? kind : FaultyIo::Kind::kNone, .bytes = 50'000};
    });
    Extent bad, good;
    // The device says that all is well.
    ASSERT_OK(Put(1, 100'000, &bad));
    plan_->Clear();
    ASSERT_OK(Put(2, 100'000, &good));
    std::vector<std::byte> bytes;
    EXPECT_EQ(Get(bad, &bytes).code(), StatusCode::kDataLoss);
    ASSERT_OK(Get(good, &bytes));
    EXPECT_EQ(bytes, Pattern(2, 100'000));
    // Nor after a restart.
    Open();
    EXPECT_EQ(Get(bad, &bytes).code(), StatusCode::kDataLoss);
    ASSERT_OK(Get(good, &bytes));
  }
}

TEST_F(BadDeviceTest, BitsThatFlipOnTheWayInAreNeverServed) {
  Extent extent;
  ASSERT_OK(Put(1, 100'000, &extent));
  std::vector<std::byte> bytes;
  uint64_t at = 0;
  plan_->Set([&at](const disk::IoRequest& r) {
    return FaultyIo::Fault{.kind = r.write ? FaultyIo::Kind::kNone : FaultyIo::Kind::kFlipBit,
                           .bytes = at};
  });
  for (at = 0; at < 100'000; at += 9'973)
    EXPECT_EQ(Get(extent, &bytes).code(), StatusCode::kDataLoss) << at;
  plan_->Clear();
  ASSERT_OK(Get(extent, &bytes));
  EXPECT_EQ(bytes, Pattern(1, 100'000));
}

TEST_F(BadDeviceTest, UnreadableExtentsAreLost) {
  Extent extent;
  ASSERT_OK(Put(1, 100'000, &extent));
  plan_->Set(
      [](const disk::IoRequest&) { return FaultyIo::Fault{.kind = FaultyIo::Kind::kError}; });
  std::vector<std::byte> bytes;
  EXPECT_EQ(Get(extent, &bytes).code(), StatusCode::kDataLoss);
}

TEST_F(BadDeviceTest, TheScrubberFindsWhatNobodyReads) {
  std::vector<Extent> extents(10);
  for (uint64_t i = 0; i < extents.size(); ++i) {
    if (i == 4 || i == 7) {
      plan_->Set([](const disk::IoRequest& r) {
        return FaultyIo::Fault{.kind = r.write ? FaultyIo::Kind::kTorn : FaultyIo::Kind::kNone};
      });
    }
    ASSERT_OK(Put(i, 50'000, &extents[i]));
    plan_->Clear();
  }
  Open(/*scrub=*/100 * kMiB);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (damaged() < 2 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::lock_guard lock(mu_);
  EXPECT_THAT(damaged_, ::testing::ElementsAre(std::pair(extents[4].id, "record 4"),
                                               std::pair(extents[7].id, "record 7")));
  EXPECT_GE(tier_->GetDiskStats().scrub_failures, 2u);
  EXPECT_GE(tier_->GetDiskStats().scrubbed_bytes, 50'000u);
}

TEST_F(BadDeviceTest, AMoveReportsDamageAndCarriesItOn) {
  // Segments of 2 MiB; every second extent goes, so that what stays is moved.
  std::map<uint64_t, std::pair<uint64_t, Extent>> kept;
  std::set<uint64_t> bad;
  std::vector<std::byte> bytes;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    if (seed % 9 == 0) {
      // This write alone: moves go on meanwhile.
      plan_->Set([first = Pattern(seed, 8)](const disk::IoRequest& r) {
        const bool it = r.write && std::memcmp(r.iov[0].iov_base, first.data(), 8) == 0;
        return FaultyIo::Fault{.kind = it ? FaultyIo::Kind::kTorn : FaultyIo::Kind::kNone};
      });
    }
    Extent extent;
    const Status status = Put(seed, 150'000, &extent);
    plan_->Clear();
    if (!status.ok()) {
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << ToString(status);
      if (extent.length != 0) tier_->Release(extent);
    } else {
      kept[extent.id] = {seed, extent};
      if (seed % 9 == 0) bad.insert(extent.id);
    }
    while (kept.size() > 60) {
      const auto victim = std::next(kept.begin(), static_cast<ptrdiff_t>(seed % 50));
      tier_->Release(victim->second.second);
      kept.erase(victim);
    }
  }
  EXPECT_GT(tier_->GetDiskStats().moved_bytes, 0u);
  for (const auto& [id, seed_and_extent] : kept) {
    const Status status = Get(seed_and_extent.second, &bytes);
    if (status.ok()) {
      EXPECT_FALSE(bad.contains(id));
      EXPECT_EQ(bytes, Pattern(seed_and_extent.first, 150'000));
    } else {
      EXPECT_TRUE(bad.contains(id)) << ToString(status);
    }
  }
  std::lock_guard lock(mu_);
  for (const auto& [id, record] : damaged_) EXPECT_TRUE(bad.contains(id));
}

}  // namespace
}  // namespace cairn::cache::conformance
