#include "services/worker/session/push_queue.h"

#include "services/worker/session/push_thread.h"
#include "tests/unit/worker/session/session_fixture.h"

namespace cairn::worker {
namespace {

using std::chrono::seconds;

class PushQueueTest : public SessionFixture {
 protected:
  PushQueueTest() {
    CAIRN_CHECK(client_.OpenNamespace(spec_).ok());
    BlockKeyChain chain(Fingerprint(spec_));
    keys_ = chain.Keys(Tokens(16 * 16), 16);
  }

  TimePoint Soon() const { return clock_.Now() + seconds(20); }

  std::vector<BlockKey> keys_;
};

TEST_F(PushQueueTest, PagesAreFreeOnceCopied) {
  PushQueue push(client_, spec_.layout, clock_, {});
  auto sequence = Filled(16);
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(sequence, keys_));
  sequence.reset();
  PushAll(push);
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
  EXPECT_EQ(push.GetStats().pushed_blocks, 16u);
  EXPECT_EQ(client_.complete_blocks(), 16u);
}

TEST_F(PushQueueTest, NothingIsSentWhilePaused) {
  PushQueue push(client_, spec_.layout, clock_, {});
  push.Pause();
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  push.Resume();
  EXPECT_FALSE(push.RunOnce());
  EXPECT_FALSE(push.WaitEmpty(clock_.Now()));
  EXPECT_EQ(client_.complete_blocks(), 0u);
  push.Resume();
  PushAll(push);
  EXPECT_TRUE(push.WaitEmpty(clock_.Now()));
  EXPECT_EQ(client_.complete_blocks(), 4u);
}

TEST_F(PushQueueTest, FullQueueDropsTheEndOfThePrompt) {
  PushQueue push(client_, spec_.layout, clock_, {.max_blocks = 10});
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(16), keys_));
  EXPECT_EQ(push.GetStats().dropped_blocks, 6u);
  push.Resume();
  PushAll(push);
  const auto match = client_.Match(Fingerprint(spec_), keys_, {});
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 10u);
}

TEST_F(PushQueueTest, BytesAreBoundedToo) {
  PushQueue push(client_, spec_.layout, clock_, {.max_bytes = 3 * kKv.page_bytes()});
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(16), keys_));
  EXPECT_EQ(push.GetStats().queued_blocks, 3u);
  EXPECT_EQ(push.GetStats().dropped_blocks, 13u);
}

TEST_F(PushQueueTest, DropPendingFreesThePages) {
  PushQueue push(client_, spec_.layout, clock_, {});
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(16), keys_));
  EXPECT_LT(pool_->free_pages(), pool_->total_pages());
  push.DropPending();
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
  EXPECT_EQ(push.GetStats().dropped_blocks, 16u);
}

TEST_F(PushQueueTest, DropPendingFreesPagesThatWaitForRoomAtAHangingNode) {
  PushQueue push(client_, spec_.layout, clock_, {.push_deadline = std::chrono::seconds(20)});
  PushThread thread(push);
  client_.SetFaults(Fault(&Faults::hang, true));
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  client_.WaitForHang();
  push.DropPending();
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
  EXPECT_EQ(push.GetStats().dropped_blocks, 4u);
  client_.SetFaults({});
  ASSERT_TRUE(push.WaitEmpty(Soon()));
  EXPECT_EQ(push.GetStats().failed_blocks, 0u);
  EXPECT_EQ(client_.complete_blocks(), 0u);
}

TEST_F(PushQueueTest, RefusedAndUnreachableAreCounted) {
  PushQueue push(client_, spec_.layout, clock_, {});
  client_.SetFaults(Fault(&Faults::push, Status(StatusCode::kResourceExhausted, "full")));
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  PushAll(push);
  client_.SetFaults(Fault(&Faults::every_call, Status(StatusCode::kUnavailable, "gone")));
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  PushAll(push);
  EXPECT_EQ(push.GetStats().failed_blocks, 8u);
  EXPECT_EQ(push.GetStats().pushed_blocks, 0u);
}

TEST_F(PushQueueTest, ABlockThatCannotBeEncodedIsNotSentNorWhatFollowsIt) {
  constexpr KvLayout kv{.layers = 2, .kv_heads = 1, .head_dim = 16, .block_tokens = 16};
  NamespaceInputs inputs;
  inputs.model = "toy";
  inputs.kv = kv;
  inputs.numerics = "toy-1";
  inputs.recipe = "int8:group=16";
  const auto ns = WorkerNamespace(inputs);
  ASSERT_OK(ns);
  const auto codec = KvCodec::Create(*ns, kv, clock_);
  ASSERT_OK(codec);
  ASSERT_OK(client_.OpenNamespace(ns->spec));
  const std::vector<BlockKey> keys = BlockKeyChain(ns->fingerprint).Keys(Tokens(3 * 16), 16);

  std::vector<std::vector<std::byte>> pages(3, std::vector<std::byte>(kv.page_bytes()));
  const uint16_t infinity = 0x7c00;
  std::memcpy(pages[1].data() + kv.layer_bytes(), &infinity, sizeof(infinity));
  std::vector<ComputedBlock> blocks(3);
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].key = keys[b];
    if (b > 0) blocks[b].parent = keys[b - 1];
    blocks[b].first_position = b * 16;
    blocks[b].page = pages[b];
  }
  PushQueue push(client_, ns->spec.layout, clock_, {});
  push.Enqueue(ns->fingerprint, **codec, std::move(blocks));
  PushAll(push);
  const PushQueue::Stats stats = push.GetStats();
  EXPECT_EQ(stats.pushed_blocks, 1u);
  EXPECT_EQ(stats.failed_blocks, 2u);
  EXPECT_GT(stats.pushed_bytes, 0u);
  EXPECT_LT(stats.pushed_bytes, kv.page_bytes());
  EXPECT_EQ(client_.complete_blocks(), 1u);
}

TEST_F(PushQueueTest, BatchesAreOfOneNamespaceAndOfALimitedSize) {
  NamespaceSpec other = spec_;
  other.numerics = "toy-2";
  ASSERT_OK(client_.OpenNamespace(other));
  const auto other_keys = BlockKeyChain(Fingerprint(other)).Keys(Tokens(2 * 16), 16);
  PushQueue push(client_, spec_.layout, clock_, {.batch_blocks = 3});
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  push.Enqueue(Fingerprint(other), *codec_, Blocks(Filled(2), other_keys));
  for (const uint64_t blocks : {3u, 4u, 6u}) {
    ASSERT_TRUE(push.RunOnce());
    EXPECT_EQ(push.GetStats().pushed_blocks, blocks);
  }
  EXPECT_FALSE(push.RunOnce());
}

TEST_F(PushQueueTest, AThreadPushesUntilItsEnd) {
  PushQueue push(client_, spec_.layout, clock_, {});
  {
    PushThread thread(push);
    push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(16), keys_));
    ASSERT_TRUE(push.WaitEmpty(Soon()));
  }
  EXPECT_EQ(client_.complete_blocks(), 16u);
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(2), std::span(keys_).first(2)));
  EXPECT_EQ(push.GetStats().dropped_blocks, 2u);
}

TEST_F(PushQueueTest, StopDropsWhatDidNotGoOut) {
  PushQueue push(client_, spec_.layout, clock_, {});
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  push.Stop(TimePoint{});
  EXPECT_EQ(push.GetStats().dropped_blocks, 4u);
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(2), std::span(keys_).first(2)));
  EXPECT_EQ(push.GetStats().dropped_blocks, 6u);
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
}

}  // namespace
}  // namespace cairn::worker
