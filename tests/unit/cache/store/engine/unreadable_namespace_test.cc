// Namespaces on disk that this node cannot read: an older version did not check whether the recipe
// can store the planes, and a newer version may know more recipes. Nothing of them is lost, and
// nothing of them is taken for raw.

#include "services/cache/store/block/record.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

enum class Version { kOlder, kNewer };

class UnreadableNamespaceTest : public EngineTest, public ::testing::WithParamInterface<Version> {
 protected:
  static constexpr uint64_t kBlocks = 3;

  UnreadableNamespaceTest() {
    unreadable_ = TestSpec("unreadable");
    unreadable_.tenant = "other";
    if (GetParam() == Version::kOlder) {
      unreadable_.recipe = "int8";
      for (Plane& plane : std::get<NativeLayout>(unreadable_.layout.form).groups[0].planes) {
        plane.dtype = DType::kBF16;
      }
    } else {
      unreadable_.recipe = "codec9:of=tomorrow";
    }
    fingerprint_ = cairn::Fingerprint(unreadable_);
  }

  // The remains of the other version on disk: the namespace, and a chain of blocks 1 .. kBlocks.
  void StoreByAnotherVersion(uint64_t disk_bytes) {
    disk_ = std::make_unique<FakeTier>(FakeTier::Options{.capacity_bytes = disk_bytes});
    record_ = EncodeNamespaceRecord({.spec = unreadable_, .generation = 4, .dropped = false});
    ASSERT_OK(disk_->PutMeta(NamespaceMetaName(fingerprint_), record_));
    for (uint64_t n = 1; n <= kBlocks; ++n) {
      const std::vector<std::byte> part = TestPart(unreadable_.layout, n, Whole());
      const BlockRecord record{.fingerprint = fingerprint_,
                               .generation = 4,
                               .key = TestKey(n),
                               .parent = n > 1 ? std::optional(TestKey(n - 1)) : std::nullopt,
                               .rect = Whole(),
                               .grid = Whole(),
                               .bytes = static_cast<uint32_t>(part.size())};
      const auto extent = disk_->Reserve(record.bytes);
      ASSERT_OK(extent);
      disk_->Write(*extent, EncodeRecord(record), part, [](Status s) { EXPECT_OK(s); });
    }
    ASSERT_OK(disk_->Flush());
  }
  void StartOverThem(uint64_t disk_bytes = 1 << 20) {
    StoreByAnotherVersion(disk_bytes);
    StartWithoutDevice();
  }

  uint64_t BlocksListed() {
    for (const NamespaceInfo& info : engine_->ListNamespaces("")) {
      if (info.fingerprint == fingerprint_) return info.blocks;
    }
    return 0;
  }
  void ExpectRefused(const Status& status) {
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'recipe'")));
  }

  NamespaceSpec unreadable_;
  Fingerprint fingerprint_;
  std::string record_;
};

TEST_P(UnreadableNamespaceTest, ItsBlocksAreKeptThroughRestarts) {
  StartOverThem();
  for (int restart = 0; restart < 3; ++restart) {
    EXPECT_EQ(BlocksListed(), kBlocks);
    EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->extents, kBlocks);
    std::string record;
    ASSERT_OK(disk_->ListMeta([&](std::string_view name, std::string_view value) {
      if (name == NamespaceMetaName(fingerprint_)) record = value;
    }));
    EXPECT_EQ(record, record_);
    CrashAndRestart();
  }
}

TEST_P(UnreadableNamespaceTest, NobodyReadsOrWritesIt) {
  StartOverThem();
  ExpectRefused(engine_->OpenNamespace(unreadable_, false).status());
  const auto keys = TestKeys(1, kBlocks);
  ExpectRefused(
      engine_->Match({.session = session_, .fingerprint = fingerprint_, .keys = keys, .trace = ""})
          .status());
  ExpectRefused(engine_->GetNamespace(fingerprint_).status());
  const ReservePartRequest part = Part(kBlocks + 1, kBlocks);
  ExpectRefused(engine_->Reserve(session_, fingerprint_, {&part, 1}, Duration(0)).status());
  EXPECT_EQ(BlocksListed(), kBlocks);
}

TEST_P(UnreadableNamespaceTest, OthersAreNotToldOfIt) {
  StartOverThem();
  auto watch = *engine_->Watch({.snapshot = true});
  for (;;) {
    const auto events = watch->Next(1000, clock_.Now());
    ASSERT_OK(events);
    if (events->empty()) break;
    for (const CacheEvent& event : *events) EXPECT_NE(event.fingerprint, fingerprint_);
  }
  NamespaceSpec similar = unreadable_;
  similar.recipe = "raw";
  const auto opened = engine_->OpenNamespace(similar, true);
  ASSERT_OK(opened);
  EXPECT_THAT(opened->differs, IsEmpty());
}

TEST_P(UnreadableNamespaceTest, OthersWorkAndTakeItsRoomWhenTheyNeedIt) {
  const uint64_t block = TestPart(spec_.layout, 1, Whole()).size();
  StartOverThem(4 * block);
  clock_.Advance(std::chrono::seconds(10));
  StoreChain(1, 4);
  Flush();
  EXPECT_EQ(BlocksListed(), 0u);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
}

TEST_P(UnreadableNamespaceTest, ADropGivesItsRoomBack) {
  StartOverThem();
  const auto dropped = engine_->DropNamespace(fingerprint_);
  ASSERT_OK(dropped);
  EXPECT_EQ(dropped->hidden_blocks, kBlocks);
  engine_->Tick();
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->extents, 0u);
  CrashAndRestart();
  EXPECT_EQ(BlocksListed(), 0u);
  EXPECT_EQ(engine_->ListNamespaces("").size(), 1u);
}

TEST_P(UnreadableNamespaceTest, ANewEpochHidesItsBlocks) {
  StartOverThem();
  const auto bumped = engine_->BumpEpoch(fingerprint_);
  ASSERT_OK(bumped);
  EXPECT_EQ(bumped->hidden_blocks, kBlocks);
  engine_->Tick();
  CrashAndRestart();
  EXPECT_EQ(BlocksListed(), 0u);
  ExpectRefused(engine_->GetNamespace(fingerprint_).status());
}

INSTANTIATE_TEST_SUITE_P(StoredBy, UnreadableNamespaceTest,
                         ::testing::Values(Version::kOlder, Version::kNewer),
                         [](const ::testing::TestParamInfo<Version>& version) {
                           return version.param == Version::kOlder ? "AnOlderVersion"
                                                                   : "ANewerVersion";
                         });

}  // namespace
}  // namespace cairn::cache::testing
