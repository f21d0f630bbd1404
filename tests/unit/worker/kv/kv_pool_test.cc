#include "services/worker/kv/kv_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

namespace cairn::worker {
namespace {

constexpr KvLayout kLayout{.layers = 3, .kv_heads = 2, .head_dim = 8, .block_tokens = 16};

std::unique_ptr<KvPool> MakePool(size_t pages) {
  auto made = KvPool::Create(kLayout, kLayout.page_bytes() * pages + 1);
  EXPECT_TRUE(made.ok()) << made.status();
  return std::move(made).value();
}

TEST(KvLayoutTest, LayerOfAPageIsOneRunOfBytes) {
  EXPECT_EQ(kLayout.head_bytes(), 16u * 8 * 2);
  EXPECT_EQ(kLayout.plane_bytes(), 2 * kLayout.head_bytes());
  EXPECT_EQ(kLayout.layer_bytes(), 2 * kLayout.plane_bytes());
  EXPECT_EQ(kLayout.page_bytes(), 3 * kLayout.layer_bytes());
  const auto pool = MakePool(1);
  KvSequence s = pool->NewSequence();
  ASSERT_TRUE(s.Reserve(1).ok());
  EXPECT_EQ(s.LayerSlice(0, 0).size(), kLayout.layer_bytes());
  EXPECT_EQ(s.LayerSlice(0, 1).data(), s.LayerSlice(0, 0).data() + kLayout.layer_bytes());
}

TEST(KvPoolTest, ReservesWholePagesAndKeepsThem) {
  const auto pool = MakePool(4);
  EXPECT_EQ(pool->total_pages(), 4);
  KvSequence s = pool->NewSequence();
  EXPECT_EQ(s.capacity(), 0);
  ASSERT_TRUE(s.Reserve(17).ok());
  EXPECT_EQ(s.page_count(), 2);
  EXPECT_EQ(s.capacity(), 32);
  ASSERT_TRUE(s.Reserve(32).ok());
  EXPECT_EQ(pool->free_pages(), 2);
}

TEST(KvPoolTest, ExhaustionIsAnErrorThatChangesNothing) {
  const auto pool = MakePool(3);
  KvSequence a = pool->NewSequence(), b = pool->NewSequence();
  ASSERT_TRUE(a.Reserve(32).ok());
  const Status status = b.Reserve(17);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(b.page_count(), 0);
  EXPECT_EQ(pool->free_pages(), 1);
  a.Clear();
  EXPECT_TRUE(b.Reserve(17).ok());
}

TEST(KvPoolTest, SequencesNeverShareAPage) {
  const auto pool = MakePool(8);
  KvSequence a = pool->NewSequence(), b = pool->NewSequence();
  ASSERT_TRUE(a.Reserve(16).ok());
  ASSERT_TRUE(b.Reserve(48).ok());
  ASSERT_TRUE(a.Reserve(64).ok());
  std::set<std::byte*> pages(a.pages().begin(), a.pages().end());
  pages.insert(b.pages().begin(), b.pages().end());
  EXPECT_EQ(pages.size(), 7u);
  // Every byte of each can be written.
  for (KvSequence* s : {&a, &b}) {
    for (int64_t p = 0; p < s->page_count(); ++p) {
      for (int l = 0; l < kLayout.layers; ++l) {
        std::memset(s->LayerSlice(p, l).data(), s == &a ? 1 : 2, s->LayerSlice(p, l).size());
      }
    }
  }
  for (const std::byte x : a.LayerSlice(3, 2)) EXPECT_EQ(x, std::byte{1});
}

TEST(KvPoolTest, TruncateGivesBackPagesBeyondTheLength) {
  const auto pool = MakePool(4);
  KvSequence s = pool->NewSequence();
  ASSERT_TRUE(s.Reserve(64).ok());
  s.SetLength(60);
  s.Truncate(60);
  EXPECT_EQ(s.page_count(), 4);
  s.Truncate(33);
  EXPECT_EQ(s.page_count(), 3);
  EXPECT_EQ(s.length(), 33);
  s.Truncate(32);
  EXPECT_EQ(s.page_count(), 2);
  s.Truncate(0);
  EXPECT_EQ(pool->free_pages(), 4);
}

TEST(KvPoolTest, TheFrontOfASequenceMayLieElsewhere) {
  const auto pool = MakePool(4);
  KvSequence s = pool->NewSequence();
  s.StartAt(160);  // Ten blocks, of which the pool would have room for four.
  EXPECT_EQ(s.base(), 160);
  EXPECT_EQ(s.length(), 160);
  ASSERT_TRUE(s.Reserve(160 + 60).ok());
  EXPECT_EQ(pool->free_pages(), 0);
  s.SetLength(210);
  std::memset(s.LayerSlice(2, 0).data(), 7, kLayout.layer_bytes());
  s.DropFront(160 + 32);
  EXPECT_EQ(s.base(), 192);
  EXPECT_EQ(s.length(), 210);
  EXPECT_EQ(s.page_count(), 2);
  EXPECT_EQ(pool->free_pages(), 2);
  EXPECT_EQ(s.LayerSlice(0, 0)[0], std::byte{7});
  // The pages that came back serve the same sequence.
  ASSERT_TRUE(s.Reserve(192 + 64).ok());
  EXPECT_EQ(s.capacity(), 192 + 64);
  s.Truncate(192);
  EXPECT_EQ(s.page_count(), 0);
  s.Clear();
  EXPECT_EQ(s.base(), 0);
  EXPECT_EQ(pool->free_pages(), 4);
}

TEST(KvPoolTest, MovingASequenceMovesItsPages) {
  const auto pool = MakePool(2);
  KvSequence a = pool->NewSequence();
  ASSERT_TRUE(a.Reserve(16).ok());
  a.SetLength(5);
  KvSequence b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move): what a moved-from one is.
  EXPECT_EQ(a.length(), 0);
  EXPECT_EQ(b.length(), 5);
  b = pool->NewSequence();
  EXPECT_EQ(pool->free_pages(), 2);
}

Digest NameOf(uint8_t n) {
  Digest name;
  name.bytes[0] = n;
  return name;
}

TEST(KvPoolTest, WithdrawnPagesAreAdoptedOnlyIfOthersHoldThem) {
  const auto pool = MakePool(6);
  KvSequence a = pool->NewSequence(), b = pool->NewSequence(), c = pool->NewSequence();
  for (KvSequence* sequence : {&a, &b, &c}) ASSERT_TRUE(sequence->Reserve(32).ok());
  a.Publish(0, NameOf(1));
  a.Publish(1, NameOf(2));
  ASSERT_TRUE(b.Adopt(0, NameOf(1)));
  a.Withdraw();
  EXPECT_TRUE(c.Adopt(0, NameOf(1)));
  EXPECT_FALSE(c.Adopt(1, NameOf(2)));
  // The page can be published again.
  a.Publish(1, NameOf(2));
  EXPECT_TRUE(c.Adopt(1, NameOf(2)));
}

TEST(KvPoolTest, APublishedPageIsHeldByAllThatAdoptIt) {
  const auto pool = MakePool(4);
  KvSequence a = pool->NewSequence(), b = pool->NewSequence();
  ASSERT_TRUE(a.Reserve(32).ok());
  ASSERT_TRUE(b.Reserve(32).ok());
  EXPECT_EQ(pool->free_pages(), 0);
  EXPECT_FALSE(b.Adopt(0, NameOf(1)));
  a.Publish(0, NameOf(1));
  a.Publish(1, NameOf(2));
  EXPECT_EQ(b.Published(std::vector{NameOf(1), NameOf(2), NameOf(3)}), 2);
  EXPECT_EQ(b.Published(std::vector{NameOf(3), NameOf(1)}), 0);
  ASSERT_TRUE(b.Adopt(0, NameOf(1)));
  EXPECT_EQ(b.pages()[0], a.pages()[0]);
  EXPECT_NE(b.pages()[1], a.pages()[1]);
  EXPECT_EQ(pool->free_pages(), 1);  // b's own page.

  a.Clear();
  EXPECT_EQ(pool->free_pages(), 2);
  // b still has the first page, and nobody the second.
  EXPECT_EQ(b.Published(std::vector{NameOf(1), NameOf(2)}), 1);
  b.Clear();
  EXPECT_EQ(pool->free_pages(), 4);
  EXPECT_EQ(b.Published(std::vector{NameOf(1)}), 0);
}

TEST(KvPoolTest, ANameStaysWithTheFirstPageThatGotIt) {
  const auto pool = MakePool(3);
  KvSequence a = pool->NewSequence(), b = pool->NewSequence();
  ASSERT_TRUE(a.Reserve(16).ok());
  ASSERT_TRUE(b.Reserve(32).ok());
  a.Publish(0, NameOf(1));
  b.Publish(0, NameOf(1));
  std::byte* const own = b.pages()[0];
  b.Clear();
  ASSERT_TRUE(b.Reserve(32).ok());
  EXPECT_EQ(b.pages()[0], own);
  ASSERT_TRUE(b.Adopt(1, NameOf(1)));
  EXPECT_EQ(b.pages()[1], a.pages()[0]);
  // To adopt one's own page changes nothing.
  ASSERT_TRUE(a.Adopt(0, NameOf(1)));
  EXPECT_EQ(a.pages()[0], b.pages()[1]);
  b.Truncate(0);
  a.Clear();
  EXPECT_EQ(pool->free_pages(), 1);  // b has length 0, and keeps what it reserved.
  b.Clear();
  EXPECT_EQ(pool->free_pages(), 3);
}

TEST(KvPoolTest, ImpossibleLayoutsNameTheField) {
  KvLayout layout = kLayout;
  layout.block_tokens = 8;
  auto made = KvPool::Create(layout, 1 << 20);
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(made.status()).find("block_tokens"), std::string::npos) << made.status();
  EXPECT_EQ(KvPool::Create(kLayout, kLayout.page_bytes() - 1).status().code(),
            StatusCode::kInvalidArgument);
}

class FakeLoan final : public PageLoan {
 public:
  explicit FakeLoan(int* open) : open_(open) { ++*open_; }
  ~FakeLoan() override { --*open_; }
  bool Intact() const override { return intact; }
  bool intact = true;

 private:
  int* open_;
};

TEST(KvSequenceTest, LentPagesAreReadWhereTheyLieAndGivenBack) {
  const auto pool = MakePool(4);
  std::vector<std::byte> shared(2 * kLayout.page_bytes(), std::byte{7});
  int open = 0;
  auto loan = std::make_shared<FakeLoan>(&open);
  KvSequence s = pool->NewSequence();
  ASSERT_TRUE(s.Reserve(3 * 16).ok());
  std::byte* const own = s.pages()[1];
  std::memset(own, 1, kLayout.page_bytes());
  s.Lend(0, shared.data(), loan);
  s.Lend(1, shared.data() + kLayout.page_bytes(), loan);
  EXPECT_EQ(s.lent_pages(), 2);
  EXPECT_EQ(s.pages()[1], shared.data() + kLayout.page_bytes());
  EXPECT_EQ(std::as_const(s).LayerSlice(1, 2)[0], std::byte{7});
  EXPECT_EQ(own[0], std::byte{1});  // Nothing was copied.
  EXPECT_EQ(s.FirstBrokenLoan(), 3);
  loan->intact = false;
  EXPECT_EQ(s.FirstBrokenLoan(), 0);
  loan.reset();
  s.TakeBack(0);
  EXPECT_EQ(open, 1);
  EXPECT_FALSE(s.CopyOut());  // The bytes were no longer sure.
  EXPECT_EQ(open, 0);
  EXPECT_EQ(s.pages()[1], own);
  EXPECT_EQ(s.LayerSlice(1, 0)[0], std::byte{7});
}

// A pass asks for stamps of pages that a fetch still brings. The build with TSan looks at the two.
TEST(KvSequenceTest, AStampMayBeAskedForWhileAnotherThreadLendsThePage) {
  constexpr int64_t kPages = 64;
  const auto pool = MakePool(kPages);
  std::vector<std::byte> shared(kLayout.page_bytes());
  int open = 0;
  const auto loan = std::make_shared<FakeLoan>(&open);
  KvSequence s = pool->NewSequence();
  ASSERT_TRUE(s.Reserve(kPages * 16).ok());
  std::set<uint64_t> before, during, after;
  for (int64_t page = 0; page < kPages; page += 2) before.insert(s.PageStamp(page));
  std::thread fetch([&] {
    for (int64_t page = 0; page < kPages; ++page) s.Lend(page, shared.data(), loan);
  });
  for (int64_t page = 0; page < kPages; ++page) during.insert(s.PageStamp(page));
  fetch.join();
  for (int64_t page = 0; page < kPages; ++page) after.insert(s.PageStamp(page));
  EXPECT_EQ(during.size(), size_t{kPages});
  EXPECT_EQ(after.size(), size_t{kPages});
  EXPECT_FALSE(during.contains(0) || after.contains(0));
  for (const uint64_t stamp : before) EXPECT_FALSE(after.contains(stamp)) << "other bytes now";
}

TEST(KvSequenceTest, TruncateMoveAndEndGiveLoansBack) {
  const auto pool = MakePool(4);
  std::vector<std::byte> shared(kLayout.page_bytes());
  int open = 0;
  {
    KvSequence s = pool->NewSequence();
    ASSERT_TRUE(s.Reserve(4 * 16).ok());
    s.SetLength(64);
    for (int64_t page = 0; page < 4; ++page) {
      s.Lend(page, shared.data(), std::make_shared<FakeLoan>(&open));
    }
    s.Truncate(32);
    EXPECT_EQ(open, 2);
    EXPECT_EQ(pool->free_pages(), 2);
    KvSequence moved = std::move(s);
    EXPECT_EQ(moved.lent_pages(), 2);
    EXPECT_EQ(open, 2);
  }
  EXPECT_EQ(open, 0);
  EXPECT_EQ(pool->free_pages(), 4);
}

}  // namespace
}  // namespace cairn::worker
