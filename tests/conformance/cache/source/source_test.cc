// The suite that every source passes; the files next to this one name the sources.

#include <atomic>
#include <thread>

#include "tests/conformance/cache/source/source_conformance.h"

namespace cairn::cache::conformance {

using ::cairn::testing::StatusIs;

TEST_P(SourceConformance, LocatesTheLeadingKeys) {
  for (const uint64_t n : {1, 2, 3, 5}) Put(n);
  EXPECT_EQ(Blocks(ns_, Keys(1, 3)), 3u);
  EXPECT_EQ(Blocks(ns_, Keys(1, 6)), 3u);
  EXPECT_EQ(Blocks(ns_, Keys(2, 6)), 2u);
  EXPECT_EQ(Blocks(ns_, Keys(4, 6)), 0u);
  EXPECT_EQ(Blocks(ns_, Keys(5, 5)), 1u);
}

TEST_P(SourceConformance, RunsHaveBlocksAndBytesAndTheirSecondsNeverFall) {
  for (uint64_t n = 1; n <= 40; ++n) Put(n);
  const auto located = Locate(ns_, Keys(1, 40));
  ASSERT_TRUE(located.has_value());
  ASSERT_OK(*located);
  double seconds = 0;
  for (const SourceRun& run : (*located)->runs) {
    EXPECT_GT(run.blocks, 0u);
    EXPECT_GE(run.bytes, uint64_t{run.blocks} * 5000);
    EXPECT_GE(run.seconds, seconds);
    seconds = run.seconds;
  }
}

TEST_P(SourceConformance, AnotherNamespaceHasNothing) {
  Put(1);
  EXPECT_EQ(Blocks(Name(77), Keys(1, 1)), 0u);
}

TEST_P(SourceConformance, ReadsWhatWasPut) {
  for (const uint64_t n : {1, 2}) Put(n);
  for (const uint64_t n : {1, 2, 1}) {
    RecordingSink sink;
    EXPECT_THAT(Read(n, &sink), ::testing::Optional(OkStatus()));
    EXPECT_EQ(sink.bytes, BytesOf(n));
    EXPECT_GE(sink.begun, 1);
    EXPECT_GE(sink.finished, 1);
    const SourceBlock expected = BlockOf(n);
    EXPECT_EQ(sink.described.parent, expected.parent);
    EXPECT_EQ(sink.described.at_start, expected.at_start);
    EXPECT_EQ(sink.described.recompute_seconds, expected.recompute_seconds);
    ASSERT_EQ(sink.described.parts.size(), 2u);
    EXPECT_EQ(sink.described.parts[1].rect, expected.parts[1].rect);
  }
}

TEST_P(SourceConformance, AnAbsentBlockIsNotFound) {
  Put(1);
  under_->Remove(ns_, Name(1));
  RecordingSink sink;
  EXPECT_EQ(Read(1, &sink).value_or(OkStatus()).code(), StatusCode::kNotFound);
  EXPECT_EQ(sink.finished, 0);
}

TEST_P(SourceConformance, ARefusalOfTheSinkEndsTheReadWithIt) {
  Put(1);
  RecordingSink sink;
  sink.refuse = Errorf(StatusCode::kResourceExhausted, "no room");
  EXPECT_EQ(Read(1, &sink).value_or(OkStatus()).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(sink.finished, 0);
}

TEST_P(SourceConformance, DamagedBytesAreDataLoss) {
  Put(1);
  under_->Damage(ns_, Name(1));
  RecordingSink sink;
  EXPECT_EQ(Read(1, &sink).value_or(OkStatus()).code(), StatusCode::kDataLoss);
  RecordingSink again;
  EXPECT_THAT(Read(1, &again), ::testing::Optional(OkStatus()));
}

TEST_P(SourceConformance, WithoutAnAnswerTheDeadlineEndsBoth) {
  Put(1);
  under_->Stall();
  const std::vector<BlockKey> keys = Keys(1, 1);
  Answer<Result<Located>> located;
  Answer<Status> read;
  RecordingSink sink;
  source().Locate(ns_, keys, Soon(), located.Callback());
  source().Read(ns_, Name(1), Soon(), &sink, read.Callback());
  EXPECT_FALSE(located.over());
  EXPECT_FALSE(read.over());
  under_->Pass(2 * kPatience);
  const auto answer = located.Wait();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(read.Wait().value_or(OkStatus()).code(), StatusCode::kDeadlineExceeded);
}

TEST_P(SourceConformance, ASourceThatEndsLetsGoOfEveryCallback) {
  Put(1);
  under_->Stall();
  const std::vector<BlockKey> keys = Keys(1, 1);
  Answer<Result<Located>> located;
  Answer<Status> read;
  RecordingSink sink;
  source().Locate(ns_, keys, Soon(), located.Callback());
  source().Read(ns_, Name(1), Soon(), &sink, read.Callback());
  under_->Stop();
  const auto answer = located.Wait();
  EXPECT_TRUE(!answer || !answer->ok());
  const auto status = read.Wait();
  EXPECT_TRUE(!status || !status->ok());
}

TEST_P(SourceConformance, ThreadsGetTheirOwnBlocks) {
  for (uint64_t n = 1; n <= 8; ++n) Put(n);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (uint64_t round = 0; round < 50; ++round) {
        const uint64_t n = 1 + (round + t * 2) % 8;
        RecordingSink sink;
        ASSERT_THAT(Read(n, &sink), ::testing::Optional(OkStatus()));
        ASSERT_EQ(Blocks(ns_, Keys(n, 9)), 9 - n);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace cairn::cache::conformance
