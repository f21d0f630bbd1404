#include "services/worker/session/push_queue.h"

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

  static TimePoint Soon() { return SteadyClock::Get().Now() + seconds(20); }

  std::vector<BlockKey> keys_;
};

TEST_F(PushQueueTest, PagesAreFreeOnceCopied) {
  PushQueue push(client_, spec_.layout, {});
  auto sequence = Filled(16);
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(sequence, keys_));
  sequence.reset();
  ASSERT_TRUE(push.WaitEmpty(Soon()));
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
  EXPECT_EQ(push.GetStats().pushed_blocks, 16u);
  EXPECT_EQ(client_.complete_blocks(), 16u);
}

TEST_F(PushQueueTest, NothingIsSentWhilePaused) {
  PushQueue push(client_, spec_.layout, {});
  push.Pause();
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  push.Resume();
  EXPECT_FALSE(push.WaitEmpty(SteadyClock::Get().Now() + std::chrono::milliseconds(50)));
  EXPECT_EQ(client_.complete_blocks(), 0u);
  push.Resume();
  ASSERT_TRUE(push.WaitEmpty(Soon()));
  EXPECT_EQ(client_.complete_blocks(), 4u);
}

TEST_F(PushQueueTest, FullQueueDropsTheEndOfThePrompt) {
  PushQueue push(client_, spec_.layout, {.max_blocks = 10});
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(16), keys_));
  EXPECT_EQ(push.GetStats().dropped_blocks, 6u);
  push.Resume();
  ASSERT_TRUE(push.WaitEmpty(Soon()));
  const auto match = client_.Match(Fingerprint(spec_), keys_, {});
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 10u);
}

TEST_F(PushQueueTest, BytesAreBoundedToo) {
  PushQueue push(client_, spec_.layout, {.max_bytes = 3 * kKv.page_bytes()});
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(16), keys_));
  EXPECT_EQ(push.GetStats().queued_blocks, 3u);
  EXPECT_EQ(push.GetStats().dropped_blocks, 13u);
}

TEST_F(PushQueueTest, DropPendingFreesThePages) {
  PushQueue push(client_, spec_.layout, {});
  push.Pause();
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(16), keys_));
  EXPECT_LT(pool_->free_pages(), pool_->total_pages());
  push.DropPending();
  EXPECT_EQ(pool_->free_pages(), pool_->total_pages());
  EXPECT_EQ(push.GetStats().dropped_blocks, 16u);
}

TEST_F(PushQueueTest, DropPendingFreesPagesThatWaitForRoomAtAHangingNode) {
  PushQueue push(client_, spec_.layout, {.push_deadline = std::chrono::seconds(20)});
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
  PushQueue push(client_, spec_.layout, {});
  client_.SetFaults(Fault(&Faults::push, Status(StatusCode::kResourceExhausted, "full")));
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  ASSERT_TRUE(push.WaitEmpty(Soon()));
  client_.SetFaults(Fault(&Faults::every_call, Status(StatusCode::kUnavailable, "gone")));
  push.Enqueue(Fingerprint(spec_), *codec_, Blocks(Filled(4), std::span(keys_).first(4)));
  ASSERT_TRUE(push.WaitEmpty(Soon()));
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
  const auto codec = KvCodec::Create(*ns, kv);
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
  PushQueue push(client_, ns->spec.layout, {});
  push.Enqueue(ns->fingerprint, **codec, std::move(blocks));
  ASSERT_TRUE(push.WaitEmpty(Soon()));
  const PushQueue::Stats stats = push.GetStats();
  EXPECT_EQ(stats.pushed_blocks, 1u);
  EXPECT_EQ(stats.failed_blocks, 2u);
  EXPECT_GT(stats.pushed_bytes, 0u);
  EXPECT_LT(stats.pushed_bytes, kv.page_bytes());
  EXPECT_EQ(client_.complete_blocks(), 1u);
}

TEST_F(PushQueueTest, StopDropsWhatDidNotGoOut) {
  PushQueue push(client_, spec_.layout, {});
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
