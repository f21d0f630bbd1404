// Requests of readers that cost the node more than they should: repeated keys, headers of many
// blocks, blocks of many parts. What they hold is counted.

#include "services/cache/state/memory_account.h"
#include "tests/unit/cache/engine/engine_fixture.h"

namespace cairn::cache {
namespace {

using testing::EngineTest;
using testing::Fetched;
using ::testing::HasSubstr;
using testing::StatusIs;
using testing::TestKey;
using testing::TestKeys;

class HostileReadsTest : public EngineTest {
 protected:
  // An opaque namespace whose blocks have `parts` parts of `bytes` bytes.
  void UseOpaque(uint32_t parts, uint64_t bytes) {
    spec_ = testing::TestSpec("opaque");
    spec_.layout.form = OpaqueLayout{"engine", bytes, parts};
    part_bytes_ = bytes;
  }
  Status StoreOpaque(uint64_t n) {
    for (uint32_t head = 0; head < spec_.layout.KvHeads(); ++head) {
      const format::PartRect rect{0, 1, static_cast<uint16_t>(head),
                                  static_cast<uint16_t>(head + 1)};
      const std::vector<uint64_t> lengths = {part_bytes_};
      std::vector<std::byte> bytes(format::PartBytes(lengths), static_cast<std::byte>(n + head));
      format::SealPart(bytes, format::Codec::kOpaque, rect,
                       static_cast<uint16_t>(spec_.layout.block_tokens), lengths);
      ReservePartRequest part;
      part.key = TestKey(n);
      part.part = rect;
      part.bytes = bytes.size();
      CAIRN_ASSIGN_OR_RETURN(const ReservationId id, Reserve(part));
      CAIRN_RETURN_IF_ERROR(engine_->Write(session_, id, 0, bytes));
      CAIRN_RETURN_IF_ERROR(CommitOne(id));
    }
    return OkStatus();
  }

  uint64_t part_bytes_ = 0;
};

TEST_F(HostileReadsTest, ARepeatedKeyIsAMiss) {
  Start();
  ASSERT_OK(Store(1, std::nullopt));
  const std::vector<BlockKey> keys(1000, TestKey(1));
  const MatchResult match = Match(keys);
  EXPECT_EQ(match.matched_blocks, 1u);
  EXPECT_EQ(match.miss_reason, MissReason::kAbsent);
  ASSERT_TRUE(match.lease);
  EXPECT_EQ(Fetch(*match.lease).slices.size(), testing::kLayers);
  const auto exists = engine_->Exists(ns_, keys);
  ASSERT_OK(exists);
  for (const auto& tier : *exists) EXPECT_TRUE(tier.has_value());
}

TEST_F(HostileReadsTest, LeasesLeaveNothingInTheIndex) {
  StartWithoutDevice();  // Blocks that are copied to a device while they are read take more.
  StoreChain(1, 4);
  const uint64_t before = engine_->GetStats().index_bytes;
  std::vector<LeaseId> leases;
  for (int i = 0; i < 2000; ++i) leases.push_back(*Match(TestKeys(1, 4)).lease);
  EXPECT_EQ(engine_->GetStats().index_bytes, before);
  EXPECT_OK(engine_->Release(session_, leases));
  EXPECT_EQ(engine_->GetStats().index_bytes, before);
}

}  // namespace
}  // namespace cairn::cache
