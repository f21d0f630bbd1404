#include "tools/cairn/generator/answer_text.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

worker::GenerateSummary Answered() {
  worker::GenerateSummary summary;
  summary.prompt_tokens = 1600;
  summary.fetched_tokens = 1536;
  summary.computed_tokens = 64;
  summary.ttft_seconds = 0.04;
  summary.total_seconds = 1.2;
  summary.finish_reason = "length";
  summary.fetched.host = 46 << 20;
  return summary;
}

TEST(AnswerTextTest, SaysWhatWasFetchedAndHowLongItTook) {
  EXPECT_EQ(AnswerLine(Answered()),
            "1,600 prompt tokens: 1,536 fetched (46.0 MiB over gRPC), 64 computed; first token "
            "40 ms, all 1.20 s");
  EXPECT_EQ(ToJson(Answered())["ttft_s"], 0.04);
}

TEST(AnswerTextTest, WhatEndedBeforeTheFirstTokenHasNoTimeOfOne) {
  worker::GenerateSummary summary;
  summary.prompt_tokens = 8181;
  summary.computed_tokens = 2048;
  summary.total_seconds = 5.82;
  summary.finish_reason = "cancelled";
  EXPECT_EQ(AnswerLine(summary),
            "8,181 prompt tokens: 0 fetched, 2,048 computed; cancelled before the first token, "
            "after 5.82 s");
  EXPECT_TRUE(ToJson(summary)["ttft_s"].is_null());
  summary.finish_reason = "deadline";
  EXPECT_TRUE(
      AnswerLine(summary).ends_with("; over its deadline before the first token, after "
                                    "5.82 s"));
}

TEST(AnswerTextTest, WhatEndedLaterSaysSo) {
  worker::GenerateSummary summary = Answered();
  summary.finish_reason = "cancelled";
  EXPECT_TRUE(AnswerLine(summary).ends_with("; first token 40 ms, cancelled after 1.20 s"));
}

TEST(AnswerTextTest, AnotherWorkerSaysNothingOfACallThatWasCancelled) {
  worker::GenerateSummary summary;
  summary.finish_reason = "cancelled";
  EXPECT_EQ(AnswerLine(summary), "cancelled before the worker said what it had done");
}

TEST(AnswerTextTest, SaysWhyNothingWasFetched) {
  worker::GenerateSummary summary = Answered();
  summary.fetched = {};
  summary.fetched_tokens = 0;
  summary.computed_tokens = 1600;
  summary.miss_reason = MissReason::kExpired;
  EXPECT_TRUE(AnswerLine(summary).starts_with("1,600 prompt tokens: 0 fetched (expired), "));
  summary.fetched.host = 3 << 20;  // They came and were given up.
  EXPECT_TRUE(AnswerLine(summary).starts_with("1,600 prompt tokens: 0 fetched (expired), "));
}

TEST(AnswerTextTest, ASelectionThatNobodySharesIsTold) {
  worker::GenerateRequest request;
  worker::GenerateSummary summary;
  summary.prompt_tokens = summary.selected_tokens = 600;
  EXPECT_TRUE(NothingWasShared(request, summary));
  // A shared one is selected to the end of a block before its last token, also at a worker without
  // a node, which has no miss reason.
  summary.selected_tokens = 576;
  EXPECT_FALSE(NothingWasShared(request, summary));
  summary.selected_tokens = 0;
  EXPECT_FALSE(NothingWasShared(request, summary));
  summary.selected_tokens = 600;
  request.no_cache = true;
  EXPECT_FALSE(NothingWasShared(request, summary));
}

}  // namespace
}  // namespace cairn::cli
