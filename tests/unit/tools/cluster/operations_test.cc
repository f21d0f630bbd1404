#include "tools/cairn/cluster/operations.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"
#include "tests/unit/tools/cluster/fake_nodes.h"

namespace cairn::cli {
namespace {

using cairn::testing::StatusIs;
using std::chrono::seconds;
using ::testing::_;
using ::testing::HasSubstr;

class OperationsTest : public ::testing::Test {
 protected:
  OperationsTest() {
    for (auto& [address, node] : nodes_.nodes) node.view.bumps_digest = nodes_.bumps;
  }
  Patience Wait(Duration limit) {
    return {.clock = &clock_,
            .pause =
                [this](Duration duration) {
                  ++pauses_;
                  clock_.Advance(duration);
                },
            .limit = limit};
  }
  static std::string Problem(const OperationReport& report, const std::string& name) {
    for (const auto& node : report.nodes) {
      if (node.name == name) return node.problem;
    }
    return "not named";
  }

  FakeClock clock_;
  FakeNodes nodes_{3};
  int pauses_ = 0;
};

TEST_F(OperationsTest, ABumpAtOneMemberIsWaitedForAtAll) {
  nodes_.at(0).knows_namespace = false;
  const auto report = BumpEverywhere(&nodes_, {"n0:1"}, Digest(), Wait(seconds(10)));
  ASSERT_OK(report);
  EXPECT_TRUE(report->done());
  EXPECT_EQ(report->hidden_blocks, 5u);
  EXPECT_EQ(nodes_.at(1).bumps, 1);
  EXPECT_EQ(nodes_.at(2).bumps, 0);
  EXPECT_GT(pauses_, 0) << "equal digests of before the bump say nothing";
}

TEST_F(OperationsTest, AMemberThatDoesNotHearOfABumpIsNamed) {
  nodes_.at(2).hears_of_bumps = false;
  const auto report = BumpEverywhere(&nodes_, {"n0:1"}, Digest(), Wait(seconds(10)));
  ASSERT_OK(report);
  EXPECT_FALSE(report->done());
  EXPECT_EQ(Problem(*report, "n1"), "");
  EXPECT_THAT(Problem(*report, "n2"), HasSubstr("does not know the bump"));
  EXPECT_EQ(pauses_, 100);
}

TEST_F(OperationsTest, AMemberThatIsAwayHasNotHeardOfABump) {
  nodes_.at(1).answers = false;
  const auto report = BumpEverywhere(&nodes_, {"n0:1"}, Digest(), Wait(seconds(1)));
  ASSERT_OK(report);
  EXPECT_THAT(Problem(*report, "n1"), HasSubstr("does not answer"));
}

TEST_F(OperationsTest, ABumpOfAnUnknownNamespaceIsAnError) {
  for (auto& [address, node] : nodes_.nodes) node.knows_namespace = false;
  EXPECT_THAT(BumpEverywhere(&nodes_, {"n0:1"}, Digest(), Wait(seconds(1))),
              StatusIs(StatusCode::kNotFound, HasSubstr("no member knows")));
}

TEST_F(OperationsTest, ABumpWithoutRightsIsAnErrorThatSaysSo) {
  for (auto& [address, node] : nodes_.nodes) node.may_admin = false;
  EXPECT_THAT(BumpEverywhere(&nodes_, {"n0:1"}, Digest(), Wait(seconds(1))),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("admins only")));
}

TEST_F(OperationsTest, ABumpOfANodeThatIsAloneNeedsNoWaiting) {
  FakeNodes alone(1);
  alone.at(0).view.cluster = "";
  const auto report = BumpEverywhere(&alone, {"n0:1"}, Digest(), Wait(seconds(10)));
  ASSERT_OK(report);
  EXPECT_TRUE(report->done());
  EXPECT_EQ(pauses_, 0);
}

TEST_F(OperationsTest, ATenantIsDroppedAtAllMembers) {
  nodes_.at(2).may_admin = false;
  const auto report = DropTenantEverywhere(&nodes_, {"n1:1"}, "t");
  ASSERT_OK(report);
  EXPECT_FALSE(report->done());
  EXPECT_EQ(report->namespaces, 4u);
  EXPECT_EQ(nodes_.at(0).drops, 1);
  EXPECT_THAT(Problem(*report, "n2"), HasSubstr("admins only"));
}

TEST_F(OperationsTest, DrainWaitsUntilTheNodeIsGone) {
  EXPECT_OK(DrainNode(&nodes_, "n1:1", Wait(seconds(10))));
  EXPECT_EQ(nodes_.at(1).drains, 1);
  EXPECT_EQ(pauses_, 3);
}

TEST_F(OperationsTest, DrainEndsAtItsLimit) {
  nodes_.at(1).answers_while_draining = 1 << 20;
  EXPECT_THAT(DrainNode(&nodes_, "n1:1", Wait(seconds(1))),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("n1:1")));
}

TEST_F(OperationsTest, DrainDoesNotWaitWhereNobodyWantsIt) {
  EXPECT_OK(DrainNode(&nodes_, "n1:1", Wait(seconds(0))));
  EXPECT_EQ(pauses_, 0);
  EXPECT_THAT(DrainNode(&nodes_, "dead:1", Wait(seconds(0))),
              StatusIs(StatusCode::kUnavailable, _));
}

}  // namespace
}  // namespace cairn::cli
