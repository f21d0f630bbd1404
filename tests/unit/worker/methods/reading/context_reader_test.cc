// Rows that are late, lost or too many.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "common/concurrency/executor.h"
#include "services/worker/methods/reading/background_rows.h"
#include "tests/unit/worker/methods/reading/context_fixture.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kRows = 4 * 64;

// Brings rows when the test says so.
class Courier final : public RowSource {
 public:
  struct Order {
    RowRequest request;
    std::shared_ptr<RowGather> gather;
  };
  Courier(std::shared_ptr<const FarPages> pages, std::deque<Order>* orders)
      : rows_(std::move(pages)), orders_(orders) {}
  std::shared_ptr<RowGather> Gather(RowRequest request) override {
    orders_->push_back({std::move(request), std::make_shared<RowGather>()});
    return orders_->back().gather;
  }
  static void Bring(const std::shared_ptr<const FarPages>& pages, Order& order) {
    PageRows rows(pages);
    order.gather->Finish(rows.Gather(order.request)->state() == RowGather::State::kHere);
  }

 private:
  PageRows rows_;
  std::deque<Order>* const orders_;
};

class ContextReaderTest : public ContextFixture {
 protected:
  std::unique_ptr<ContextReader> Open(const std::string& policy, bool by_courier) {
    ReadingTerms terms = Terms(policy);
    if (by_courier) {
      terms.source = [this](std::shared_ptr<const FarPages> pages) {
        pages_ = pages;
        return std::make_unique<Courier>(pages, &orders_);
      };
    }
    auto reader = OpenContext(terms, context_, kRows, 1, pool_);
    EXPECT_OK(reader);
    return *std::move(reader);
  }
  std::vector<float> Step(ContextReader& reader, const std::vector<float>& q) {
    std::vector<float> out(kHeads * kDim);
    reader.BeginStep();
    EXPECT_OK(reader.Attend(0, q.data(), OwnView(own_, 0), 1, out.data(), pool_));
    return out;
  }

  KvSequence context_ = RandomContext(kRows);
  KvSequence own_ = RandomContext(1);
  std::shared_ptr<const FarPages> pages_;
  std::deque<Courier::Order> orders_;
};

TEST_F(ContextReaderTest, LateRowsAreReadFromTheCopyAndServeTheNextStep) {
  const auto prompt = Open("precision:rows=0.05", false);
  const auto reader = Open("precision:rows=0.05", true);
  const std::vector<float> q = RandomQuery();
  const std::vector<float> exact = Step(*prompt, q);
  const std::vector<float> copied = Step(*reader, q);
  EXPECT_EQ(reader->counters().late_rows,
            reader->counters().chosen_rows - reader->counters().hit_rows);
  EXPECT_NE(copied, exact);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(copied[i], exact[i], 0.5);
  // A step that comes before the rows asks for no more of this layer.
  EXPECT_EQ(Step(*reader, q), copied);
  ASSERT_EQ(orders_.size(), 1u);
  const uint64_t late = reader->counters().late_rows;
  Courier::Bring(pages_, orders_[0]);
  EXPECT_EQ(Step(*reader, q), exact);
  EXPECT_EQ(reader->counters().late_rows, late);
  EXPECT_EQ(orders_.size(), 1u);
}

// Rows that came after their layer's attention used to keep their places in the staging memory
// until the next step, so that only the first layers ever asked for rows.
TEST_F(ContextReaderTest, RowsThatComeLateDoNotKeepLaterLayersFromAsking) {
  const auto reader = Open("precision:rows=0.05", true);
  reader->BeginStep();
  for (int layer = 0; layer < kKv.layers; ++layer) {
    const std::vector<float> q = RandomQuery();
    std::vector<float> out(kHeads * kDim);
    ASSERT_OK(reader->Attend(layer, q.data(), OwnView(own_, layer), 1, out.data(), pool_));
    ASSERT_EQ(std::ssize(orders_), layer + 1);
    Courier::Bring(pages_, orders_.back());
  }
}

TEST_F(ContextReaderTest, LostRowsAreReadFromTheCopyAndAskedForAgain) {
  const auto reader = Open("precision:rows=0.05", true);
  const std::vector<float> q = RandomQuery();
  const std::vector<float> copied = Step(*reader, q);
  orders_[0].gather->Finish(false);
  EXPECT_EQ(Step(*reader, q), copied);
  EXPECT_GT(reader->counters().lost_rows, 0u);
  EXPECT_EQ(orders_.size(), 2u);
}

TEST_F(ContextReaderTest, APolicyWithoutACopyEndsWithAnErrorWhenRowsAreLost) {
  const auto reader = Open("exact-topk:rows=0.05", true);
  const std::vector<float> q = RandomQuery();
  std::vector<float> out(kHeads * kDim);
  // Expected ahead, and lost before attention.
  reader->BeginStep();
  reader->Expect(0, q.data(), pool_);
  orders_[0].gather->Finish(false);
  EXPECT_THAT(reader->Attend(0, q.data(), OwnView(own_, 0), 1, out.data(), pool_),
              StatusIs(StatusCode::kUnavailable, HasSubstr("layer 0 were lost")));
}

TEST_F(ContextReaderTest, AStepReadsNoMoreThanItMay) {
  // 6 layers of 2 heads; 3 rows of 256 bytes each.
  const auto reader = Open("precision:rows=0.1,step=9216", false);
  Step(*reader, RandomQuery());
  EXPECT_EQ(reader->counters().read_bytes, 2u * 3 * 256);
  EXPECT_GT(reader->counters().late_rows, 0u);
}

TEST_F(ContextReaderTest, BrokenLoansLoseRowsAndNeverGiveWrongOnes) {
  struct Loan final : PageLoan {
    bool Intact() const override { return intact; }
    bool intact = true;
  };
  const auto loan = std::make_shared<Loan>();
  const std::vector<std::byte> page(context_.pages()[1], context_.pages()[1] + kKv.page_bytes());
  context_.Lend(1, page.data(), loan);
  const auto reader = Open("precision:rows=0.05", false);
  const std::vector<float> q = RandomQuery();
  loan->intact = false;
  const std::vector<float> copied = Step(*reader, q);
  EXPECT_GT(reader->counters().lost_rows, 0u);
  EXPECT_GT(reader->counters().late_rows, 0u);
  loan->intact = true;
  EXPECT_NE(Step(*reader, q), copied);
}

TEST_F(ContextReaderTest, ALoanThatIsBrokenBeforeIsSeenAtTheBeginning) {
  struct Loan final : PageLoan {
    bool Intact() const override { return false; }
  };
  const std::vector<std::byte> page(context_.pages()[1], context_.pages()[1] + kKv.page_bytes());
  context_.Lend(1, page.data(), std::make_shared<Loan>());
  EXPECT_THAT(OpenContext(Terms("precision"), context_, kRows, 1, pool_),
              StatusIs(StatusCode::kAborted, HasSubstr("took lent memory back")));
}

TEST_F(ContextReaderTest, NumbersThatAreNotFiniteAreRefused) {
  auto* const number = reinterpret_cast<uint16_t*>(context_.LayerSlice(2, 1).data());
  *number = 0x7c00;
  for (const char* policy : {"precision", "exact-topk", "quest", "landmark", "clusters"}) {
    EXPECT_THAT(OpenContext(Terms(policy), context_, kRows, 1, pool_),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("not finite")))
        << policy;
  }
}

TEST_F(ContextReaderTest, RowsComeInTheBackgroundAtTheSpeedOfTheTier) {
  ManualExecutor executor;
  const auto pages = FarPages::Of(context_, kRows / kKv.block_tokens);
  BackgroundRows rows(std::make_unique<PageRows>(pages), executor, clock_,
                      {.bytes_per_second = 0, .row_bytes = kKv.row_bytes()});
  std::vector<std::byte> k(2 * kKv.row_bytes()), v(2 * kKv.row_bytes());
  RowRequest request{.layer = 1, .heads = {{1, {3, 130}, k.data(), v.data()}}};
  const auto gather = rows.Gather(request);
  EXPECT_EQ(gather->state(), RowGather::State::kUnderWay);
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(gather->state(), RowGather::State::kHere);
  EXPECT_EQ(0, std::memcmp(k.data() + kKv.row_bytes(), pages->K(1, 1, 2) + 2 * kKv.row_bytes(),
                           kKv.row_bytes()));
  EXPECT_EQ(0, std::memcmp(v.data(), pages->V(1, 1, 0) + 3 * kKv.row_bytes(), kKv.row_bytes()));
}

}  // namespace
}  // namespace cairn::worker
