#include "common/tenants/fair_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Refuses work when a test says so.
class FullExecutor final : public Executor {
 public:
  Status Post(std::function<void()> task) override {
    if (full) return Errorf(StatusCode::kResourceExhausted, "full");
    return inner.Post(std::move(task));
  }
  ManualExecutor inner;
  bool full = false;
};

class FairQueueTest : public ::testing::Test {
 protected:
  // Writes its name down for each piece of it that is done.
  class Named final : public FairQueue::Work {
   public:
    Named(std::string name, uint64_t bytes, std::vector<std::string>* log)
        : name_(std::move(name)), is_long_(bytes > 10), left_(bytes), log_(log) {}
    uint64_t Step(uint64_t bytes) override {
      log_->push_back(name_);
      left_ -= std::min(left_, bytes);
      return left_;
    }

   private:
    bool is_long() const override { return is_long_; }

    const std::string name_;
    const bool is_long_;
    uint64_t left_;
    std::vector<std::string>* const log_;
  };

  void Make(FairQueue::Options options) {
    options.piece_bytes = 10;
    queue_ = std::make_unique<FairQueue>(std::move(options), &executor_, &clock_);
  }
  Status Post(const std::string& tenant, const std::string& name, uint64_t bytes) {
    std::unique_ptr<FairQueue::Work> work = std::make_unique<Named>(name, bytes, &log_);
    const Status posted = queue_->Post(tenant, bytes, work);
    EXPECT_EQ(work == nullptr, posted.ok());
    return posted;
  }

  FakeClock clock_;
  FullExecutor executor_;
  std::vector<std::string> log_;
  std::unique_ptr<FairQueue> queue_;
};

TEST_F(FairQueueTest, ShortWorkWaitsForNoLongWorkThatHasAnExecutorOfItsOwn) {
  ManualExecutor long_work;
  Make({.long_work = &long_work});
  ASSERT_OK(Post("a", "long", 30));
  ASSERT_OK(Post("a", "short", 5));
  EXPECT_EQ(executor_.inner.Pending(), 1u);
  EXPECT_EQ(long_work.Pending(), 1u);
  executor_.inner.RunAll();
  EXPECT_THAT(log_, ElementsAre("short"));
  long_work.RunAll();
  EXPECT_THAT(log_, ElementsAre("short", "long", "long", "long"));
  EXPECT_EQ(queue_->numbers().works, 0u);
  EXPECT_EQ(queue_->numbers().bytes, 0u);
}

TEST_F(FairQueueTest, ATenantHasOneAccountForShortAndLongWork) {
  ManualExecutor long_work;
  Make({.long_work = &long_work});
  ASSERT_OK(Post("a", "a long", 100));
  ASSERT_OK(Post("b", "b long", 100));
  EXPECT_TRUE(long_work.RunOne());
  ASSERT_OK(Post("a", "a", 5));
  ASSERT_OK(Post("b", "b", 5));
  executor_.inner.RunAll();
  EXPECT_THAT(log_, ElementsAre("a long", "b", "a"));
  long_work.RunAll();
  EXPECT_EQ(queue_->numbers().works, 0u);
}

TEST_F(FairQueueTest, LongWorkThatFindsItsExecutorFullIsRefused) {
  FullExecutor long_work;
  long_work.full = true;
  Make({.long_work = &long_work});
  EXPECT_THAT(Post("a", "long", 30), StatusIs(StatusCode::kResourceExhausted, HasSubstr("full")));
  ASSERT_OK(Post("a", "short", 5));
  executor_.inner.RunAll();
  EXPECT_THAT(log_, ElementsAre("short"));
  EXPECT_EQ(queue_->numbers().works, 0u);
  EXPECT_EQ(queue_->numbers().refused, 1u);
}

TEST_F(FairQueueTest, ShortWorkWaitsForOnePieceOfLongWork) {
  Make({});
  for (const char* name : {"long 1", "long 2", "long 3"}) ASSERT_OK(Post("a", name, 1000));
  EXPECT_EQ(executor_.inner.Pending(), 1u);  // However much there is.
  EXPECT_TRUE(executor_.inner.RunOne());
  ASSERT_OK(Post("a", "short", 5));
  ASSERT_OK(Post("b", "other", 5));
  EXPECT_TRUE(executor_.inner.RunOne());
  EXPECT_TRUE(executor_.inner.RunOne());
  EXPECT_EQ(log_.front(), "long 1");
  EXPECT_THAT(std::vector(log_.begin() + 1, log_.end()), UnorderedElementsAre("other", "short"));
  executor_.inner.RunAll();
  EXPECT_EQ(log_.size(), 2u + 3 * 100);
  EXPECT_EQ(queue_->numbers().works, 0u);
  EXPECT_EQ(queue_->numbers().bytes, 0u);
}

TEST_F(FairQueueTest, TenantsGetWhatTheirWeightsSay) {
  Make({.tenants = {{"heavy", {.weight = 3}}}});
  for (int i = 0; i < 10; ++i) ASSERT_OK(Post("usual", "usual", 1000));
  ASSERT_OK(Post("heavy", "heavy", 1000));
  for (int i = 0; i < 80; ++i) EXPECT_TRUE(executor_.inner.RunOne());
  const auto count = std::count(log_.begin(), log_.end(), "heavy");
  EXPECT_GE(count, 58);
  EXPECT_LE(count, 62);
  executor_.inner.RunAll();
}

TEST_F(FairQueueTest, LongWorkIsNotLeftForEver) {
  Make({});
  ASSERT_OK(Post("a", "long", 1'000'000));
  clock_.Advance(seconds(11));
  ASSERT_OK(Post("a", "young", 100'000));
  EXPECT_TRUE(executor_.inner.RunOne());
  EXPECT_THAT(log_, ElementsAre("long"));
  executor_.inner.RunAll();
}

TEST_F(FairQueueTest, ATenantHasSoManyBytesHereAndNoMore) {
  Make({.tenant_bytes = 100, .setting = "the setting"});
  ASSERT_OK(Post("a", "first", 150));  // Alone it is taken, however long.
  EXPECT_THAT(Post("a", "second", 20),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("tenant 'a': got 20 bytes in addition to 150 that wait, "
                                 "expected at most 100 together; see the setting")));
  ASSERT_OK(Post("a", "short", 10));
  ASSERT_OK(Post("b", "other", 90));
  EXPECT_EQ(queue_->numbers().refused, 1u);
  EXPECT_EQ(queue_->numbers().bytes, 250u);
  executor_.inner.RunAll();
  ASSERT_OK(Post("a", "third", 20));
  executor_.inner.RunAll();
  EXPECT_EQ(log_.back(), "third");
}

TEST_F(FairQueueTest, AFullExecutorRefusesAndLosesNothing) {
  Make({});
  executor_.full = true;
  EXPECT_THAT(Post("a", "refused", 5), StatusIs(StatusCode::kResourceExhausted, HasSubstr("full")));
  EXPECT_EQ(queue_->numbers().works, 0u);
  executor_.full = false;
  ASSERT_OK(Post("a", "long", 100));
  executor_.full = true;
  ASSERT_OK(Post("a", "more", 50));  // Somebody works here already.
  // Its pieces go on where they are.
  EXPECT_TRUE(executor_.inner.RunOne());
  EXPECT_EQ(log_.size(), 15u);
  EXPECT_EQ(queue_->numbers().works, 0u);
}

TEST_F(FairQueueTest, AsManyPiecesAtATimeAsThereAreThreads) {
  Make({.threads = 2});
  for (int i = 0; i < 5; ++i) ASSERT_OK(Post("a", "work", 100));
  EXPECT_EQ(executor_.inner.Pending(), 2u);
  // The remaining work runs after the queue's end, too.
  queue_.reset();
  executor_.inner.RunAll();
  EXPECT_EQ(log_.size(), 50u);
}

}  // namespace
}  // namespace cairn
