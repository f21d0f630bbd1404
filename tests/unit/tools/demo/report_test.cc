#include "tools/cairn/demo/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cairn/demo/texts.h"
#include "tools/cairn/output/json.h"

namespace cairn::cli {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
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
  report.rows.push_back({"cold/q1", 4100, 0, 0, 4100, 4.0, 0, 0, 0, true});
  report.rows.push_back({"ram/q1", 4100, 4096, 0, 4, 0.2, 100, 100, 0, true, 4.0});
  report.rows.push_back({"disk/q1", 4100, 4096, 0, 4, 0.4, 100, 20, 80, true, 4.0});
  report.rows.push_back({"chat/turn1", 900, 0, 0, 900, 1.0, 0, 0, 0, true});
  report.rows.push_back({"chat/turn2", 1000, 896, 0, 104, 0.1, 70, 70, 0, true, 1.2});
  DemoRow lossy{"int8/q1", 4100, 4096, 0, 4, 0.2, 52, 52, 0, false, 4.0};
  lossy.recipe = "int8";
  lossy.bits_per_number = 8.27;
  lossy.answer = "They are\nbent, mostly.";
  lossy.same_ids_as_full = 17;
  report.rows.push_back(lossy);
  report.rows[0].answer = "They are bent.";
  report.rows[1].recipe = "raw";
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

TEST(SameIdsTest, CountsUpToTheFirstDifference) {
  EXPECT_EQ(SameIds(SomeAnswer(), SomeAnswer()), kComparedTokens);
  Answer other = SomeAnswer();
  other.tokens[5] ^= 1;
  EXPECT_EQ(SameIds(other, SomeAnswer()), 5u);
  other.tokens.resize(3);
  EXPECT_EQ(SameIds(other, SomeAnswer()), 3u);
  EXPECT_EQ(SameIds({}, SomeAnswer()), 0u);
}

TEST(ReportTest, JsonHasExactlyTheDocumentedFields) {
  const Json json = Json::parse(ReportJson(GoodReport()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("model", "machine", "commit", "rows"));
  keys.clear();
  const Json& row = json["rows"][2];
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("name", "prompt_tokens", "fetched_tokens", "shared_tokens",
                                "computed_tokens", "ttft_s", "bytes", "tiers", "peer_bytes",
                                "killed", "path", "lent_bytes", "copied_bytes", "identical",
                                "recipe", "bits_per_number", "answer", "same_ids_as_full", "held"));
  EXPECT_EQ(row["tiers"]["disk"], 80);
  EXPECT_EQ(row["identical"], true);
  EXPECT_TRUE(row["recipe"].is_null());
  EXPECT_TRUE(row["held"].is_null());
  const Json& lossy = json["rows"][5];
  EXPECT_EQ(lossy["identical"], false);
  EXPECT_EQ(lossy["recipe"], "int8");
  EXPECT_EQ(lossy["bits_per_number"], 8.27);
  EXPECT_EQ(lossy["same_ids_as_full"], 17);
}

TEST(ReportTest, GoodReportBreaksNoPromise) {
  EXPECT_THAT(BrokenPromises(GoodReport()), IsEmpty());
}

TEST(ReportTest, ADifferentAnswerIsAFailure) {
  DemoReport report = GoodReport();
  report.rows[1].identical = false;
  EXPECT_THAT(BrokenPromises(report), ElementsAre(HasSubstr("ram/q1")));
}

TEST(ReportTest, OnlyALossyRecipeExcusesADifferentAnswer) {
  DemoReport report = GoodReport();
  report.rows.back().recipe = "raw";
  EXPECT_THAT(BrokenPromises(report), ElementsAre(HasSubstr("int8/q1: the answer differs")));
  report.rows.back().recipe = "int8";
  report.rows.back().fetched_tokens = 0;
  EXPECT_THAT(BrokenPromises(report), ElementsAre(HasSubstr("int8/q1: nothing was fetched")));
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

TEST(ReportTest, AHolderThatDidNotDieWhileItAnsweredIsAFailure) {
  DemoReport report = GoodReport();
  DemoRow row{"holder-killed/turn2", 1000, 512, 0, 488, 0.6, 40, 40, 0, true, 1.2};
  row.killed = KilledNode{.node = "holder", .during_answer = true, .sent_bytes = 40};
  report.rows.push_back(row);
  EXPECT_THAT(BrokenPromises(report), IsEmpty());
  EXPECT_THAT(RenderSummary(report, {}), HasSubstr("holder killed while it answers"));
  const Json json = Json::parse(ReportJson(report));
  EXPECT_EQ(json["rows"].back()["killed"]["node"], "holder");
  EXPECT_EQ(json["rows"].back()["killed"]["sent_bytes"], 40);
  report.rows.back().fetched_tokens = 0;
  EXPECT_THAT(BrokenPromises(report), IsEmpty()) << "no block was whole when it died";
  report.rows.back().killed->during_answer = false;
  EXPECT_THAT(BrokenPromises(report),
              ElementsAre(HasSubstr("holder-killed/turn2: the holder was not killed")));
  EXPECT_THAT(RenderSummary(report, {}), HasSubstr("NOT killed in time"));
  report.rows.back().killed.reset();
  EXPECT_EQ(BrokenPromises(report).size(), 1u);
}

TEST(ReportTest, AClusterRowWithoutBytesOfAnotherNodeIsAFailure) {
  DemoReport report = GoodReport();
  report.rows.push_back({"cluster/q1", 4100, 4096, 0, 4, 0.5, 100, 100, 0, true, 4.0});
  EXPECT_THAT(BrokenPromises(report), ElementsAre(HasSubstr("cluster/q1: no byte came from")));
  report.rows.back().peer_bytes = 100;
  EXPECT_THAT(BrokenPromises(report), IsEmpty());
}

TEST(ReportTest, ALongPromptInASmallWorkerIsShownBesideFullKv) {
  DemoReport report = GoodReport();
  DemoRow full{"beyond/full", 8000, 0, 0, 8000, 30, 0, 0, 0, true};
  full.answer = "They are bent at the edges.";
  full.same_ids_as_full = kComparedTokens;
  full.held = HeldKv{
      .prompt_bytes = 1000 << 20, .pool_bytes = 1000 << 20, .token_s = 0.05, .same_prompt = true};
  DemoRow rows{"beyond/rows", 8000, 0, 0, 8000, 36, 500, 500, 0, false, 30};
  rows.recipe = "raw";
  rows.answer = "They are bent, all of them.";
  rows.same_ids_as_full = 21;
  rows.held = HeldKv{.prompt_bytes = 1000 << 20,
                     .pool_bytes = 200 << 20,
                     .near_bytes = 227 << 20,
                     .read_bytes = 9 << 20,
                     .token_s = 0.06,
                     .same_prompt = true};
  report.rows.push_back(full);
  report.rows.push_back(rows);
  EXPECT_THAT(BrokenPromises(report), IsEmpty()) << "rows in few bits excuse a different answer";
  const std::string table = RenderHeld(report, {});
  for (const char* text : {"(20.0 %)", "(22.7 %)", "36.00 s", "60 ms", "first 21 of 64"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
  EXPECT_THAT(RenderAnswers(report, {}), HasSubstr("beyond/full   They are bent at the edges.\n"
                                                   "beyond/rows   They are bent, all of them.\n"));
  EXPECT_THAT(RenderSummary(report, {}), HasSubstr("more KV than the worker holds"));
  EXPECT_EQ(Json::parse(ReportJson(report))["rows"].back()["held"]["near_bytes"], 227 << 20);
  EXPECT_EQ(RenderHeld(GoodReport(), {}), "");

  report.rows.back().held->same_prompt = false;
  EXPECT_THAT(BrokenPromises(report),
              ElementsAre(HasSubstr("beyond/rows: the prompt's logits differ")));
  report.rows.back().held = HeldKv{.same_prompt = true};
  report.rows.back().identical = true;
  EXPECT_THAT(BrokenPromises(report),
              ElementsAre(HasSubstr("beyond/rows: the prompt was not read")));
}

TEST(RowLineTest, OnlyARowThatMustNotDifferSaysSoInCapitals) {
  DemoRow row{"ram/q1", 4100, 4096, 0, 4, 0.2, 100, 100, 0, true, 4.0};
  row.recipe = "raw";
  row.same_ids_as_full = kComparedTokens;
  EXPECT_EQ(RowLine(row),
            "ram/q1               4100 prompt tokens,  4096 fetched, first token  0.20 s, 100 B "
            "from RAM");
  row.identical = false;
  row.same_ids_as_full = 23;
  EXPECT_THAT(RowLine(row), EndsWith(", ANSWER DIFFERS"));
  // Logits that differ by a bit are an error, too, whatever the tokens are.
  row.same_ids_as_full = kComparedTokens;
  EXPECT_THAT(RowLine(row), EndsWith(", ANSWER DIFFERS"));
}

TEST(RowLineTest, ARowThatMayDifferSaysFromWhereOnAndWhy) {
  DemoRow row{"beyond/rows", 6000, 0, 0, 6000, 18, 500, 500, 0, false, 15};
  row.recipe = "raw";
  row.same_ids_as_full = 23;
  EXPECT_THAT(RowLine(row), EndsWith("ANSWER DIFFERS")) << "it was not read by rows";
  row.held = HeldKv{.prompt_bytes = 100, .near_bytes = 20, .same_prompt = true};
  EXPECT_THAT(RowLine(row), EndsWith(", differs from token 24 of 64 on, as it may: only part of "
                                     "the KV is read exactly"));
  row.same_ids_as_full = kComparedTokens;
  EXPECT_THAT(RowLine(row), EndsWith(", all 64 tokens as with full KV"));
  row.held.reset();
  row.recipe = "int8";
  row.same_ids_as_full = 0;
  EXPECT_THAT(RowLine(row), EndsWith(", differs from token 1 of 64 on, as it may: its recipe "
                                     "stores less than all of the KV"));
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
  EXPECT_THAT(rows, HasSubstr("first 17 of 64"));
  EXPECT_THAT(summary, HasSubstr("int8: 8.27 bits a number"));
  EXPECT_THAT(summary, HasSubstr("first 17 of 64"));
}

TEST(ReportTest, LossyAnswersStandUnderTheFullOne) {
  EXPECT_EQ(RenderAnswers(GoodReport(), {}),
            "cold/q1       They are bent.\n"
            "int8/q1       They are bent, mostly.\n");
  DemoReport exact = GoodReport();
  exact.rows.pop_back();
  EXPECT_EQ(RenderAnswers(exact, {}), "");
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
