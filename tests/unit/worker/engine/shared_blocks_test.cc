#include "services/worker/engine/shared_blocks.h"

#include <gtest/gtest.h>

#include "cairn/common/hash.h"
#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

constexpr int64_t kBlock = 16;

class SharedBlocksTest : public ::testing::Test {
 protected:
  SharedBlocksTest() {
    const KvLayout kv{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = kBlock};
    auto pool = KvPool::Create(kv, 64 * kv.page_bytes());
    EXPECT_OK(pool);
    pool_ = *std::move(pool);
  }
  KvSequence Sequence(int64_t blocks) {
    KvSequence sequence = pool_->NewSequence();
    EXPECT_OK(sequence.Reserve(blocks * kBlock));
    return sequence;
  }
  static std::vector<BlockKey> Names(int blocks) {
    std::vector<BlockKey> names;
    for (int i = 0; i < blocks; ++i) {
      names.push_back(Sha256().Update(std::to_string(i)).Finish());
    }
    return names;
  }

  std::unique_ptr<KvPool> pool_;
  BlockClaims claims_;
};

TEST_F(SharedBlocksTest, BlocksThatAnotherComputesAreWaitedForAndThenTaken) {
  KvSequence first = Sequence(4), second = Sequence(4);
  SharedBlocks one(claims_, first, Names(4), 4), other(claims_, second, Names(4), 4);
  one.Claim(2 * kBlock);
  EXPECT_EQ(other.Unshared(4 * kBlock), 0);
  first.SetLength(2 * kBlock);
  one.Unclaim();
  one.Publish(0, 2);
  EXPECT_EQ(other.Adopt(), 2u);
  EXPECT_EQ(second.length(), 2 * kBlock);
  EXPECT_TRUE(other.adopted(1));
  EXPECT_FALSE(other.adopted(2));
  EXPECT_FALSE(one.adopted(1));
  EXPECT_EQ(other.Unshared(2 * kBlock), 2 * kBlock);
}

TEST_F(SharedBlocksTest, AClaimEndsWithWhoeverMadeIt) {
  KvSequence first = Sequence(2), second = Sequence(2);
  SharedBlocks other(claims_, second, Names(2), 2);
  {
    SharedBlocks one(claims_, first, Names(2), 2);
    one.Claim(kBlock);
    EXPECT_EQ(other.Unshared(kBlock), 0);
  }
  EXPECT_EQ(other.Unshared(kBlock), kBlock);
}

TEST_F(SharedBlocksTest, TheLastBlockIsComputedWhenItsLogitsAreWanted) {
  KvSequence first = Sequence(2), second = Sequence(2);
  SharedBlocks one(claims_, first, Names(2), 2), other(claims_, second, Names(2), 1);
  first.SetLength(2 * kBlock);
  one.Publish(0, 2);
  EXPECT_EQ(other.Adopt(), 1u);
  EXPECT_EQ(other.Unshared(kBlock), kBlock);
}

TEST_F(SharedBlocksTest, APromptOverDecodedKvTakesAndGivesNothing) {
  KvSequence first = Sequence(2), second = Sequence(2);
  SharedBlocks one(claims_, first, Names(2), 2), other(claims_, second, Names(2), 2);
  first.SetLength(kBlock);
  one.Stop();
  EXPECT_FALSE(one.on());
  one.Publish(0, 1);
  one.Claim(kBlock);
  EXPECT_EQ(other.Unshared(2 * kBlock), 2 * kBlock);
  EXPECT_EQ(other.Adopt(), 0u);
}

}  // namespace
}  // namespace cairn::worker
