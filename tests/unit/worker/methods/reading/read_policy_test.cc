#include "services/worker/methods/reading/read_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

TEST(ReadPolicyTest, WhatItWritesItReads) {
  for (const PolicyCard& card : PolicyCards()) {
    const auto policy = ParseReadPolicy(card.name);
    ASSERT_OK(policy);
    const auto again = ParseReadPolicy(policy->ToString());
    ASSERT_OK(again);
    EXPECT_EQ(again->ToString(), policy->ToString());
    EXPECT_EQ(again->kind, card.kind);
  }
  const auto policy = ParseReadPolicy("precision:near=turbo3/turbo2,rows=0.01,query=attention");
  ASSERT_OK(policy);
  EXPECT_EQ(policy->ToString(),
            "precision:rows=0.01,query=attention,sink=1,set=1,victim=lru,step=0,"
            "near=turbo3/turbo2");
}

TEST(ReadPolicyTest, DefaultsAreThoseOfThePolicy) {
  EXPECT_EQ(ParseReadPolicy("infinigen")->query, DecodeReader::Guess::kInput);
  EXPECT_EQ(ParseReadPolicy("infinigen")->victim, VictimRule::kCounter);
  EXPECT_EQ(ParseReadPolicy("landmark")->page, 8);
  EXPECT_EQ(ParseReadPolicy("precision:step=4MiB")->step_bytes, 4u << 20);
  EXPECT_EQ(Name(ParseReadPolicy("keys-copy")->near_k), "turbo2");
  EXPECT_EQ(ParseReadPolicy("clusters")->centres, 0.05);
  EXPECT_EQ(ParseReadPolicy("infinigen")->rotation, 0u);
  EXPECT_EQ(ParseReadPolicy("infinigen:rotation=0023456789abcdef")->rotation, 0x23456789abcdefu);
}

TEST(ReadPolicyTest, ErrorsNameParameterValueAndWhatWasExpected) {
  const auto expect = [](const char* text, const char* message) {
    EXPECT_THAT(ParseReadPolicy(text), StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)))
        << text;
  };
  expect("", "got '', expected one of precision, exact-topk");
  expect("infinity", "got 'infinity', expected one of precision");
  expect("precision:", "expected NAME=VALUE after ':'");
  expect("precision:rows", "got 'rows', expected NAME=VALUE with one of rows, query");
  expect("precision:page=4", "got 'page=4', expected NAME=VALUE with one of rows");
  expect("precision:rows=0", "'rows': got '0', expected 0.000001 to 1");
  expect("precision:rows=nan", "'rows': got 'nan'");
  expect("precision:rows=0.1x", "'rows': got '0.1x'");
  expect("precision:near=turbo5", "'near': got 'turbo5', expected one of turbo2");
  expect("keys-copy:near=turbo3/turbo2", "one codec, since only keys are copied");
  expect("quest:page=0", "'page': got '0', expected 1 to 256");
  expect("precision:query=next", "expected one of own, attention, input");
  expect("precision:step=4QiB", "'step': got '4QiB', expected bytes such as 4MiB");
  expect("precision:rows=0.5,rows=0.02", "parameter 'rows' is given twice");
  expect("precision:victim=random", "expected one of lru, fifo, counter");
  expect("clusters:centres=0", "'centres': got '0', expected 0.001 to 1");
  expect("clusters:page=8", "got 'page=8', expected NAME=VALUE with one of rows");
  for (const char* digits : {"", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF",
                             "0123456789abcdeg", "-123456789abcdef", "0000000000000000"}) {
    expect(fmt::format("infinigen:rotation={}", digits).c_str(),
           "expected context, or the first 16 hexadecimal digits");
  }
}

TEST(ReadPolicyTest, AStepThatReadsNoRowIsRefused) {
  // 2 layers, 2 heads, rows of 2 * 64 * 2 bytes.
  const KvLayout small{.layers = 2, .kv_heads = 2, .head_dim = 64, .block_tokens = 16};
  EXPECT_THAT(CheckReadPolicy(*ParseReadPolicy("quest:step=1023"), small),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected 0 or at least 1024")));
  EXPECT_OK(CheckReadPolicy(*ParseReadPolicy("quest:step=1024"), small));
}

TEST(ReadPolicyTest, HeadsThatACodecCannotStoreAreRefused) {
  const KvLayout odd{.layers = 1, .kv_heads = 1, .head_dim = 80};
  EXPECT_THAT(CheckReadPolicy(*ParseReadPolicy("precision"), odd),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("turbo3 cannot store heads of 80 dimensions; expected 64")));
  EXPECT_OK(CheckReadPolicy(*ParseReadPolicy("precision:near=int8"), odd));
  EXPECT_OK(CheckReadPolicy(*ParseReadPolicy("quest"), odd));
}

}  // namespace
}  // namespace cairn::worker
