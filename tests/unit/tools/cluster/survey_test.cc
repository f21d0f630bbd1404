#include "tools/cairn/cluster/survey.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"
#include "tests/unit/tools/cluster/fake_nodes.h"
#include "tools/cairn/cluster/survey_view.h"

namespace cairn::cli {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Terminal Plain() { return Terminal(); }

// All know the same bumps.
FakeNodes Quiet(int size) {
  FakeNodes nodes(size);
  for (auto& [address, node] : nodes.nodes) node.view.bumps_digest = nodes.bumps;
  return nodes;
}

TEST(SurveyTest, OneNodeNamesAllOthers) {
  FakeNodes nodes = Quiet(3);
  const auto survey = TakeSurvey(&nodes, {"n1:1"}, true);
  ASSERT_OK(survey);
  EXPECT_EQ(survey->cluster, "c");
  ASSERT_EQ(survey->nodes.size(), 3u);
  EXPECT_EQ(survey->nodes[0].node_id, "n0");
  EXPECT_THAT(survey->differences, IsEmpty());
  const std::string text = SurveyText(*survey, Plain());
  EXPECT_THAT(text, AllOf(HasSubstr("n2"), HasSubstr("3 of 3"), HasSubstr("512 MiB of 1.00 GiB"),
                          HasSubstr("all members see each other")));
  const Json json = SurveyJson(*survey);
  EXPECT_EQ(json["equal_views"], true);
  EXPECT_EQ(json["nodes"][2]["sees"], (Json{"n0", "n1", "n2"}));
  EXPECT_EQ(json["nodes"][0]["tiers"]["host"]["used_bytes"], 1 << 29);
}

TEST(SurveyTest, AOneWayCutIsADifference) {
  FakeNodes nodes = Quiet(3);
  nodes.Hide(0, 2, "UNAVAILABLE: no route");
  const auto survey = TakeSurvey(&nodes, {"n0:1"}, false);
  ASSERT_OK(survey);
  // n2 is found through n1.
  EXPECT_EQ(survey->nodes.size(), 3u);
  EXPECT_THAT(survey->differences, ElementsAre("n0 does not see n2: UNAVAILABLE: no route"));
  EXPECT_THAT(SurveyText(*survey, Plain()), HasSubstr("2 of 3"));
  EXPECT_EQ(SurveyJson(*survey)["equal_views"], false);
}

TEST(SurveyTest, DiscoveriesThatNameOthersAreADifference) {
  FakeNodes nodes = Quiet(2);
  nodes.at(1).view.members.clear();
  const auto survey = TakeSurvey(&nodes, {"n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_THAT(survey->differences,
              ElementsAre("n1 does not see n0: its discovery does not name it"));
}

TEST(SurveyTest, AMemberThatDoesNotAnswerIsADifference) {
  FakeNodes nodes = Quiet(2);
  nodes.at(1).answers = false;
  const auto survey = TakeSurvey(&nodes, {"n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_THAT(survey->differences, ElementsAre(HasSubstr("n1 does not answer")));
  EXPECT_THAT(SurveyText(*survey, Plain()), HasSubstr("no answer"));
  EXPECT_THAT(SurveyJson(*survey)["nodes"][1]["error"].get<std::string>(), HasSubstr("refused"));
}

TEST(SurveyTest, AnAddressWhereNobodyIsIsADifference) {
  FakeNodes nodes = Quiet(2);
  nodes.at(0).view.absent.push_back({.address = "n7:1", .reason = "not asked yet"});
  const auto survey = TakeSurvey(&nodes, {"n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_THAT(survey->differences, ElementsAre("n0 sees no member at n7:1: not asked yet"));
}

TEST(SurveyTest, OtherBumpsAreADifference) {
  FakeNodes nodes = Quiet(2);
  nodes.at(1).view.bumps_digest = 1;
  const auto survey = TakeSurvey(&nodes, {"n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_THAT(survey->differences, ElementsAre(HasSubstr("2 different sets of bumps")));
}

TEST(SurveyTest, AProcessWhoseIdWasTakenIsADifference) {
  FakeNodes nodes = Quiet(1);
  nodes.at(0).view.replaced_by = FakeNodes::Member(0);
  nodes.at(0).view.replaced_by->address = "other:1";
  const auto survey = TakeSurvey(&nodes, {"n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_THAT(survey->differences, ElementsAre(HasSubstr("a newer process at other:1")));
}

TEST(SurveyTest, ANodeUnderTwoAddressesIsOne) {
  FakeNodes nodes = Quiet(2);
  nodes.nodes["localhost:1"] = nodes.at(0);
  const auto survey = TakeSurvey(&nodes, {"localhost:1", "n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_EQ(survey->nodes.size(), 2u);
  EXPECT_EQ(survey->nodes[0].address, "n0:1");
}

TEST(SurveyTest, ASecondAddressHelpsWhereTheFirstIsDead) {
  FakeNodes nodes = Quiet(2);
  const auto survey = TakeSurvey(&nodes, {"dead:1", "n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_THAT(survey->differences, ElementsAre(HasSubstr("dead:1 does not answer")));
}

TEST(SurveyTest, NobodyAnswers) {
  FakeNodes nodes(0);
  EXPECT_THAT(TakeSurvey(&nodes, {"dead:1"}, false),
              StatusIs(StatusCode::kUnavailable, HasSubstr("dead:1")));
  EXPECT_THAT(TakeSurvey(&nodes, {}, false), StatusIs(StatusCode::kInvalidArgument, ::testing::_));
}

TEST(SurveyTest, ANodeThatIsAloneIsFine) {
  FakeNodes nodes = Quiet(1);
  nodes.at(0).view.cluster = "";
  nodes.at(0).view.self.address = "";
  const auto survey = TakeSurvey(&nodes, {"n0:1"}, false);
  ASSERT_OK(survey);
  EXPECT_THAT(survey->differences, IsEmpty());
  EXPECT_THAT(SurveyText(*survey, Plain()), HasSubstr("not in a cluster"));
}

TEST(MembersViewTest, ShowsMembersAndWhoIsAbsent) {
  FakeNodes nodes = Quiet(3);
  nodes.Hide(0, 2, "it is leaving");
  nodes.at(0).view.members[0].skipped = true;
  const std::string text = MembersText(nodes.at(0).view, Plain());
  EXPECT_THAT(text, AllOf(HasSubstr("cluster c, 1 other members"), HasSubstr("skipped"),
                          HasSubstr("no member at n2:1: it is leaving")));
  const Json json = MembersJson(nodes.at(0).view);
  EXPECT_EQ(json["members"][0]["node_id"], "n1");
  EXPECT_EQ(json["absent"][0]["reason"], "it is leaving");
  EXPECT_TRUE(json["replaced_by"].is_null());
}

TEST(LocationsViewTest, ShowsTiersAndSilentMembers) {
  client::ClusterLocations found;
  found.nodes = {{.node_id = "n1",
                  .blocks = 10,
                  .bytes = 2048,
                  .memory_blocks = 4,
                  .memory_bytes = 1024,
                  .seconds = 0.25},
                 {.node_id = "n0"}};
  found.silent_members = 2;
  const std::string text = LocationsText(found, Plain());
  EXPECT_THAT(text, AllOf(HasSubstr("n1"), HasSubstr("0.25 s"), HasSubstr("2 members")));
  EXPECT_EQ(LocationsJson(found)["nodes"][0]["memory_blocks"], 4);
}

}  // namespace
}  // namespace cairn::cli
