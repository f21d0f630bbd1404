#include "services/cache/store/block/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

BlockRecord Sample() {
  BlockRecord record;
  record.fingerprint = Sha256::Of("ns");
  record.generation = 3;
  record.key = Sha256::Of("key");
  record.parent = Sha256::Of("parent");
  record.rect = {0, 4, 1, 2};
  record.grid = {0, 8, 0, 3};
  record.bytes = 12345;
  record.recompute_seconds = 0.25f;
  return record;
}

TEST(RecordTest, ComesBackAsItWas) {
  const auto read = DecodeRecord(EncodeRecord(Sample()));
  ASSERT_OK(read);
  EXPECT_EQ(read->fingerprint, Sample().fingerprint);
  EXPECT_EQ(read->generation, 3u);
  EXPECT_EQ(read->key, Sample().key);
  EXPECT_EQ(read->parent, Sample().parent);
  EXPECT_EQ(read->rect, Sample().rect);
  EXPECT_EQ(read->grid, Sample().grid);
  EXPECT_EQ(read->bytes, 12345u);
  EXPECT_EQ(read->recompute_seconds, 0.25f);
  BlockRecord root = Sample();
  root.parent.reset();
  EXPECT_EQ(DecodeRecord(EncodeRecord(root))->parent, std::nullopt);
}

// The bytes of version 1: a change of this hash is a change of the format.
TEST(RecordTest, BytesOfVersionOneAreFixed) {
  const std::string bytes = EncodeRecord(Sample());
  EXPECT_EQ(bytes.size(), 136u);
  EXPECT_EQ(Sha256::Of(bytes).Hex(),
            "d337ccb223ea2b185637578825e2b842a14aef68a06b074ea2a74e40d695e1c8");
}

// The same with the time of the last use: version 2.
TEST(RecordTest, VersionTwoHasTheTimeOfTheLastUse) {
  BlockRecord record = Sample();
  EXPECT_EQ(DecodeRecord(EncodeRecord(record))->used_at, std::nullopt);
  record.used_at = 1'700'000'000;
  const std::string bytes = EncodeRecord(record);
  EXPECT_EQ(bytes.size(), 144u);
  const auto read = DecodeRecord(bytes);
  ASSERT_OK(read);
  EXPECT_EQ(read->used_at, 1'700'000'000);
  EXPECT_EQ(read->recompute_seconds, 0.25f);
  EXPECT_EQ(read->key, record.key);
}

TEST(RecordTest, ANamespaceRecordMayHaveALife) {
  NamespaceRecord record;
  record.spec.model = "m";
  record.spec.layout.form = OpaqueLayout{"d", 100, 2};
  EXPECT_EQ(DecodeNamespaceRecord(EncodeNamespaceRecord(record))->block_life, Duration(0));
  record.block_life = std::chrono::hours(5);
  const auto read = DecodeNamespaceRecord(EncodeNamespaceRecord(record));
  ASSERT_OK(read);
  EXPECT_EQ(read->block_life, std::chrono::hours(5));
  EXPECT_EQ(read->spec, record.spec);
}

TEST(RecordTest, EveryFlippedBitAndEveryTruncationIsRefused) {
  BlockRecord sample = Sample();
  sample.used_at = 5;
  const std::string good = EncodeRecord(sample);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    EXPECT_EQ(DecodeRecord(bad).status().code(), StatusCode::kDataLoss) << i;
    EXPECT_EQ(DecodeRecord(good.substr(0, i)).status().code(), StatusCode::kDataLoss) << i;
  }
}

TEST(RecordTest, NamespaceRecordComesBackAndRefusesDamage) {
  NamespaceRecord record;
  record.spec.model = "m";
  record.spec.revision = "r";
  record.spec.numerics = "f32";
  record.spec.layout.form = OpaqueLayout{"d", 100, 2};
  record.generation = 9;
  record.dropped = true;
  std::string bytes = EncodeNamespaceRecord(record);
  const auto read = DecodeNamespaceRecord(bytes);
  ASSERT_OK(read);
  EXPECT_EQ(read->spec, record.spec);
  EXPECT_EQ(read->generation, 9u);
  EXPECT_TRUE(read->dropped);
  bytes[14] = static_cast<char>(bytes[14] ^ 1);
  EXPECT_EQ(DecodeNamespaceRecord(bytes).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(DecodeNamespaceRecord("").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace cairn::cache
