#include "tools/cairn/demo/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cairn/demo/texts.h"
#include "tools/cairn/output/json.h"

namespace cairn::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Answer SomeAnswer() {
  Answer answer;
  for (int32_t i = 0; i < static_cast<int32_t>(kComparedTokens); ++i) answer.tokens.push_back(i);
  answer.prompt_logits = Sha256::Of("logits");
  return answer;
}

DemoReport GoodReport() {
  DemoReport report{.model = "m", .machine = "box", .commit = "abc", .rows = {}};
  report.rows.push_back({"cold/q1", 4100, 0, 4100, 4.0, 0, 0, 0, true});
  report.rows.push_back({"ram/q1", 4100, 4096, 4, 0.2, 100, 100, 0, true, 4.0});
  report.rows.push_back({"disk/q1", 4100, 4096, 4, 0.4, 100, 20, 80, true, 4.0});
  report.rows.push_back({"chat/turn1", 900, 0, 900, 1.0, 0, 0, 0, true});
  report.rows.push_back({"chat/turn2", 1000, 896, 104, 0.1, 70, 70, 0, true, 1.2});
  return report;
}

TEST(IdenticalTest, EqualAnswersAre) { EXPECT_TRUE(Identical(SomeAnswer(), SomeAnswer())); }

TEST(IdenticalTest, OneTokenOrOneLogitBitApartAreNot) {
  Answer token = SomeAnswer();
  token.tokens.back() ^= 1;
  EXPECT_FALSE(Identical(token, SomeAnswer()));
  Answer logits = SomeAnswer();
  logits.prompt_logits->bytes[31] ^= 1;
  EXPECT_FALSE(Identical(logits, SomeAnswer()));
}

TEST(IdenticalTest, NothingToCompareIsNotIdentical) {
  EXPECT_FALSE(Identical({}, {}));
  Answer no_logits = SomeAnswer();
  no_logits.prompt_logits.reset();
  EXPECT_FALSE(Identical(no_logits, no_logits));
  Answer short_one = SomeAnswer();
  short_one.tokens.pop_back();
  EXPECT_FALSE(Identical(short_one, short_one));
}

TEST(ReportTest, JsonHasExactlyTheDocumentedFields) {
  const Json json = Json::parse(ReportJson(GoodReport()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("model", "machine", "commit", "rows"));
  keys.clear();
  const Json& row = json["rows"][2];
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("name", "prompt_tokens", "fetched_tokens", "computed_tokens",
                                "ttft_s", "bytes", "tiers", "path", "lent_bytes", "copied_bytes", "identical"));
  EXPECT_EQ(row["tiers"]["disk"], 80);
  EXPECT_EQ(row["identical"], true);
}

TEST(ReportTest, GoodReportBreaksNoPromise) {
  EXPECT_THAT(BrokenPromises(GoodReport()), IsEmpty());
}

TEST(ReportTest, ADifferentAnswerIsAFailure) {
  DemoReport report = GoodReport();
  report.rows[1].identical = false;
  EXPECT_THAT(BrokenPromises(report), ElementsAre(HasSubstr("ram/q1")));
}

TEST(ReportTest, AWarmRowThatFetchedNothingIsAFailure) {
  DemoReport report = GoodReport();
  report.rows[4].fetched_tokens = 0;
  EXPECT_THAT(BrokenPromises(report), ElementsAre(HasSubstr("chat/turn2: nothing was fetched")));
}

TEST(ReportTest, ADiskRowServedFromRamIsAFailure) {
  DemoReport report = GoodReport();
  report.rows[2].disk_bytes = 0;
  EXPECT_THAT(BrokenPromises(report),
              ElementsAre(HasSubstr("disk/q1: no byte came from the disk")));
}

TEST(ReportTest, AnEmptyReportIsAFailure) { EXPECT_EQ(BrokenPromises({}).size(), 1u); }

TEST(ReportTest, TablesShowRowsAndSpeedUp) {
  const std::string rows = RenderRows(GoodReport(), {});
  EXPECT_THAT(rows, HasSubstr("cold/q1"));
  EXPECT_THAT(rows, HasSubstr("20.0x"));
  EXPECT_THAT(rows, HasSubstr("12.0x"));
  EXPECT_THAT(rows, HasSubstr("4,096"));
  const std::string summary = RenderSummary(GoodReport(), {});
  EXPECT_THAT(summary, HasSubstr("99.9 %"));
  EXPECT_THAT(summary, HasSubstr("10.0x"));
  EXPECT_THAT(summary, HasSubstr("2 of 2"));
}

TEST(TextsTest, BuiltInTextsAreComplete) {
  const DemoTexts texts = BuiltInTexts();
  EXPECT_EQ(texts.questions.size(), 8u);
  EXPECT_EQ(texts.chat_turns.size(), 4u);
  EXPECT_THAT(texts.shared_system, HasSubstr("Qu. 18."));
  EXPECT_GT(texts.shared_system.size(), 15000u);
  EXPECT_THAT(texts.chat_system, HasSubstr("DEFIN. VIII."));
}

TEST(TextsTest, AMissingDocumentIsAnErrorThatNamesIt) {
  EXPECT_THAT(Message(TextsWithDocument("/nonexistent.txt").status()),
              HasSubstr("/nonexistent.txt"));
}

}  // namespace
}  // namespace cairn::cli
