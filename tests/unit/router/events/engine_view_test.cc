#include "services/router/events/engine_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <tuple>

#include "common/status/matchers.h"
#include "services/router/events/batch_decoder.h"
#include "services/router/index/prefix_index.h"
#include "tests/support/engine_batches.h"

namespace cairn::router {
namespace {

constexpr char kEngine[] = "http://10.0.0.1:8000";
const EngineNamespace kSpace = MakeEngineNamespace(EngineKeys::kTokens, 4);

using Forms = std::tuple<EventForm, HashForm>;
using Keys = std::vector<std::vector<std::string>>;

// One engine in the encodings of all engines, into a real index.
class EngineViewTest : public ::testing::TestWithParam<Forms> {
 protected:
  BatchWriter Writer() const { return {std::get<0>(GetParam()), std::get<1>(GetParam())}; }
  void Apply(BatchWriter& writer) {
    const auto batch = DecodeBatch(writer.Take());
    ASSERT_OK(batch);
    view_.Apply(*batch);
  }
  void Store(const WrittenStored& event) {
    BatchWriter writer = Writer();
    Apply(writer.Stored(event));
  }
  void Remove(const WrittenRemoved& event) {
    BatchWriter writer = Writer();
    Apply(writer.Removed(event));
  }
  // Blocks of the prompt begin, begin + 1, ... that the engine holds: all, and in memory.
  std::pair<uint32_t, uint32_t> Held(int32_t begin, size_t tokens) {
    std::vector<int32_t> ids;
    for (const int64_t token : Counting(begin, tokens)) ids.push_back(static_cast<int32_t>(token));
    const auto keys = BlockKeyChain(kSpace.fingerprint).Keys(ids, kSpace.block_tokens);
    const HeldPrefix held = index_.Lookup(kSpace.fingerprint, keys);
    if (held.holders.empty()) return {0, 0};
    EXPECT_EQ(held.holders[0].id, kEngine);
    EXPECT_FALSE(held.holders[0].approximate);
    return {held.holders[0].blocks, held.holders[0].memory_blocks};
  }

  using Blocks = std::pair<uint32_t, uint32_t>;
  PrefixIndex index_{PrefixIndex::Options{}};
  const EngineView::Sink sink_ = [this](const client::MemberEvent& event, uint32_t tail_blocks) {
    index_.Apply(event, tail_blocks);
  };
  EngineView view_{{.member = kEngine, .space = kSpace}, sink_};
};

INSTANTIATE_TEST_SUITE_P(
    Forms, EngineViewTest,
    ::testing::Combine(::testing::Values(EventForm::kMaps, EventForm::kArrays),
                       ::testing::Values(HashForm::kBytes, HashForm::kSigned, HashForm::kUnsigned)),
    [](const auto& forms) { return FormName(std::get<0>(forms.param), std::get<1>(forms.param)); });

TEST_P(EngineViewTest, StoredBlocksAreFoundByTheirTokens) {
  Store({.hashes = {11, 12}, .tokens = Counting(100, 8)});
  EXPECT_EQ(Held(100, 8), Blocks(2, 2));
  EXPECT_EQ(Held(100, 100), Blocks(2, 2));
  EXPECT_EQ(Held(101, 8), Blocks(0, 0));
  EXPECT_EQ(Held(100, 7), Blocks(1, 1));
}

TEST_P(EngineViewTest, LaterBlocksGoOnFromTheirParent) {
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  Store({.hashes = {12, 13}, .parent = 11, .tokens = Counting(104, 8)});
  EXPECT_EQ(Held(100, 12), Blocks(3, 3));
  // The same tokens at the beginning of a prompt are another block.
  EXPECT_EQ(Held(104, 8), Blocks(0, 0));
}

TEST_P(EngineViewTest, RemovedBlocksAreGone) {
  Store({.hashes = {11, 12, 13}, .tokens = Counting(100, 12)});
  Remove({.hashes = {12}});
  EXPECT_EQ(Held(100, 12), Blocks(1, 1));
  Store({.hashes = {12}, .parent = 11, .tokens = Counting(104, 4)});
  EXPECT_EQ(Held(100, 12), Blocks(3, 3));
  Remove({.hashes = {11, 99}});
  EXPECT_EQ(Held(100, 12), Blocks(0, 0));
}

TEST_P(EngineViewTest, ClearedMeansAll) {
  Store({.hashes = {11, 12}, .tokens = Counting(100, 8)});
  BatchWriter writer = Writer();
  Apply(writer.Cleared().Stored({.hashes = {21}, .tokens = Counting(500, 4)}));
  EXPECT_EQ(Held(100, 8), Blocks(0, 0));
  EXPECT_EQ(Held(500, 4), Blocks(1, 1));
  // Its hashes mean nothing any more either.
  Store({.hashes = {12}, .parent = 11, .tokens = Counting(104, 4)});
  EXPECT_EQ(view_.numbers().skipped.parent, 1u);
}

TEST_P(EngineViewTest, ABlockIsHeldAsLongAsOnePlaceHasIt) {
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  // The event is about a tier below the engine, which knows hashes alone.
  Store({.hashes = {11}, .block_size = 0, .medium = "STORAGE"});
  Store({.hashes = {11}, .block_size = 0, .medium = "CPU"});
  EXPECT_EQ(Held(100, 4), Blocks(1, 1));
  Remove({.hashes = {11}});
  EXPECT_EQ(Held(100, 4), Blocks(1, 1));
  Remove({.hashes = {11}, .medium = "CPU"});
  EXPECT_EQ(Held(100, 4), Blocks(1, 0));
  Remove({.hashes = {11}, .medium = "STORAGE"});
  EXPECT_EQ(Held(100, 4), Blocks(0, 0));
}

// vLLM has blocks twice, and tells when each copy is evicted.
TEST_P(EngineViewTest, ABlockIsHeldAsLongAsOneCopyIsThere) {
  Store({.hashes = {11, 12}, .tokens = Counting(100, 8)});
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  Remove({.hashes = {11}});
  EXPECT_EQ(Held(100, 8), Blocks(2, 2));
  Remove({.hashes = {11}});
  EXPECT_EQ(Held(100, 8), Blocks(0, 0));
  // More removals than copies are no debt.
  Remove({.hashes = {11}});
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  EXPECT_EQ(Held(100, 8), Blocks(2, 2));
  for (int i = 0; i < 300; ++i) Store({.hashes = {11}, .tokens = Counting(100, 4)});
  for (int i = 0; i < 300; ++i) Remove({.hashes = {11}});
  EXPECT_EQ(Held(100, 8), Blocks(0, 0));
  // A tier has a block once, however often it is told.
  Store({.hashes = {11}, .block_size = 0, .medium = "CPU"});
  Store({.hashes = {11}, .block_size = 0, .medium = "CPU"});
  EXPECT_EQ(Held(100, 8), Blocks(2, 2));
  Remove({.hashes = {11}, .medium = "CPU"});
  EXPECT_EQ(Held(100, 8), Blocks(0, 0));
}

TEST_P(EngineViewTest, TheEnginesMemoryAndACacheNodesAreTwoPlaces) {
  Store({.hashes = {11}, .tokens = Counting(100, 4), .medium = "CPU"});
  Store({.hashes = {11}, .block_size = 0, .medium = "CPU", .locality = "REMOTE"});
  Remove({.hashes = {11}, .medium = "CPU"});
  EXPECT_EQ(Held(100, 4), Blocks(1, 1));
  Remove({.hashes = {11}, .medium = "CPU", .locality = "REMOTE"});
  EXPECT_EQ(Held(100, 4), Blocks(0, 0));
}

TEST_P(EngineViewTest, ABlockThatLeftTheEngineIsKnownWhenATierTellsOfIt) {
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  Remove({.hashes = {11}});
  Store({.hashes = {11}, .block_size = 0, .medium = "STORAGE", .locality = "REMOTE"});
  EXPECT_EQ(Held(100, 4), Blocks(1, 0));
}

TEST_P(EngineViewTest, ATierMayTellOfABlockBeforeTheEngineDoes) {
  Store({.hashes = {11}, .block_size = 0, .medium = "CPU", .locality = "REMOTE"});
  EXPECT_EQ(Held(100, 4), Blocks(0, 0));
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  Remove({.hashes = {11}});
  EXPECT_EQ(Held(100, 4), Blocks(1, 1));
}

TEST_P(EngineViewTest, EnginesWithTheSameHashesExplainBlocksToEachOther) {
  EngineView other({.member = "http://10.0.0.2:8000",
                    .space = kSpace,
                    .ask = [this](const EngineHash& hash) { return view_.NameOf(hash); }},
                   sink_);
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  Remove({.hashes = {11}});
  BatchWriter writer = Writer();
  const auto batch = DecodeBatch(
      writer.Stored({.hashes = {11, 99}, .block_size = 0, .medium = "CPU", .locality = "REMOTE"})
          .Take());
  ASSERT_OK(batch);
  other.Apply(*batch);
  const std::vector<int32_t> tokens = {100, 101, 102, 103};
  const auto keys = BlockKeyChain(kSpace.fingerprint).Keys(tokens, 4);
  const HeldPrefix held = index_.Lookup(kSpace.fingerprint, keys);
  ASSERT_EQ(held.holders.size(), 1u);
  EXPECT_EQ(held.holders[0].id, "http://10.0.0.2:8000");
}

TEST_P(EngineViewTest, WhatDependsOnMoreThanTokensIsInNoAnswer) {
  Store(
      {.hashes = {11, 12, 13}, .tokens = Counting(100, 12), .extra_keys = Keys{{}, {"image"}, {}}});
  EXPECT_EQ(Held(100, 12), Blocks(1, 1));
  EXPECT_EQ(view_.numbers().skipped.special, 2u);
  // Nor what comes after it.
  Store({.hashes = {14}, .parent = 13, .tokens = Counting(112, 4)});
  EXPECT_EQ(view_.numbers().skipped.parent, 1u);
  Store({.hashes = {21}, .tokens = Counting(200, 4), .lora_name = "adapter"});
  EXPECT_EQ(Held(200, 4), Blocks(0, 0));
}

TEST_P(EngineViewTest, OtherGroupsSizesAndMediaAreCountedOnly) {
  Store({.hashes = {11}, .tokens = Counting(100, 4), .group = 1});
  Store({.hashes = {12}, .group = 2, .spec_kind = "chunked_local_attention"});
  Store({.hashes = {12}, .block_size = 64, .group = 3, .spec_kind = "mamba"});
  EXPECT_EQ(view_.numbers().other_block_tokens, 0u);
  Store({.hashes = {13}, .tokens = Counting(100, 8), .block_size = 8});
  Store({.hashes = {14}, .tokens = Counting(100, 4), .medium = "TAPE"});
  EXPECT_EQ(Held(100, 8), Blocks(0, 0));
  const SkippedBlocks skipped = view_.numbers().skipped;
  EXPECT_EQ(skipped.group, 3u);
  EXPECT_EQ(skipped.block_size, 1u);
  EXPECT_EQ(view_.numbers().other_block_tokens, 8u);
  EXPECT_EQ(skipped.medium, 1u);
  // A removal in another group is no removal.
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  Remove({.hashes = {11}, .group = 1});
  EXPECT_EQ(Held(100, 4), Blocks(1, 1));
}

// Gemma-3 and gpt-oss: the first group has windows, the second one full attention.
TEST_P(EngineViewTest, AnAnswerEndsWhereTheWindowsBlocksAre) {
  // 8 tokens before the end: 2 blocks.
  const auto window = [&](std::vector<uint64_t> hashes) {
    Store({.hashes = std::move(hashes),
           .tokens = Counting(100, 20),
           .group = 0,
           .spec_kind = "sliding_window",
           .window = 9});
  };
  window({14, 15});
  EXPECT_EQ(Held(100, 20), Blocks(0, 0));
  Store({.hashes = {11, 12, 13, 14, 15},
         .tokens = Counting(100, 20),
         .group = 1,
         .spec_kind = "full_attention"});
  EXPECT_EQ(Held(100, 20), Blocks(5, 5));
  EXPECT_EQ(Held(100, 19), Blocks(0, 0));  // Block 13 is missing in the window.
  Remove({.hashes = {15}, .group = 0});
  EXPECT_EQ(Held(100, 20), Blocks(0, 0));
  window({11, 12});
  EXPECT_EQ(Held(100, 20), Blocks(2, 2));
  EXPECT_EQ(Held(100, 7), Blocks(1, 1));
  window({13});
  EXPECT_EQ(Held(100, 20), Blocks(4, 4));
  // The window's block in the node below the engine is as good.
  Store({.hashes = {15},
         .block_size = 0,
         .medium = "STORAGE",
         .group = 0,
         .spec_kind = "sliding_window",
         .window = 9,
         .locality = "REMOTE"});
  EXPECT_EQ(Held(100, 20), Blocks(5, 5));
  Remove({.hashes = {12}, .group = 1});
  EXPECT_EQ(Held(100, 20), Blocks(1, 1));
  EXPECT_EQ(view_.numbers().skipped.group, 0u);
}

// A removal has the index of a group alone. The first group has windows here.
TEST_P(EngineViewTest, ARemovalSaysNothingOfWhatAGroupNeeds) {
  Remove({.hashes = {11}, .group = 0});
  Store(
      {.hashes = {11, 12}, .tokens = Counting(100, 8), .group = 1, .spec_kind = "full_attention"});
  EXPECT_EQ(Held(100, 8), Blocks(2, 2));
  Store({.hashes = {12}, .group = 0, .spec_kind = "sliding_window", .window = 3});
  EXPECT_EQ(Held(100, 8), Blocks(2, 2));
  EXPECT_EQ(Held(100, 4), Blocks(0, 0));
}

TEST_P(EngineViewTest, AStateIsNeededAtTheEndAlone) {
  Store({.hashes = {11, 12, 13, 14}, .tokens = Counting(100, 16)});
  EXPECT_EQ(Held(100, 16), Blocks(4, 4));
  // What is held is less as soon as it is known that there are states.
  Store({.hashes = {12}, .tokens = Counting(100, 16), .group = 1, .spec_kind = "mamba"});
  EXPECT_EQ(Held(100, 16), Blocks(2, 2));
  view_.Forget();
  // It may be another model now.
  Store({.hashes = {11, 12, 13, 14}, .tokens = Counting(100, 16)});
  EXPECT_EQ(Held(100, 16), Blocks(4, 4));
}

// Against a plain search, as vLLM's, over random events of five groups.
TEST_P(EngineViewTest, GroupsTogetherHoldWhatAPlainSearchFinds) {
  constexpr uint64_t kBlocks = 10;
  // Full attention, a window of 2 blocks, one of 3, the same once more, states.
  const std::vector<WrittenStored> kGroups = {
      {.group = 3, .spec_kind = "full_attention"},
      {.group = 0, .spec_kind = "sliding_window", .window = 9},
      {.group = 2, .spec_kind = "sliding_window", .window = 13},
      {.group = 5, .spec_kind = "sliding_window", .window = 10},
      {.group = 4, .spec_kind = "mamba"},
  };
  const std::array<uint64_t, 5> kNeeded = {kBlocks, 2, 3, 3, 1};
  std::mt19937_64 random(7);
  std::array<std::map<uint64_t, int>, 5> held;  // Copies of each block.
  uint64_t ends = 0;
  for (int step = 0; step < 2000; ++step) {
    // The first steps name all groups and all blocks.
    const size_t group = step < 5 ? static_cast<size_t>(step) : random() % 5;
    const uint64_t first = step < 5 ? 0 : random() % kBlocks;
    if (step >= 5 && random() % 10 < 7) {
      if (held[group][first] > 0) --held[group][first];
      Remove({.hashes = {100 + first}, .group = kGroups[group].group});
    } else {
      WrittenStored event = kGroups[group];
      event.hashes.clear();
      for (uint64_t block = first; block < kBlocks; ++block) {
        // Windows and states skip some.
        if (group > 0 && random() % 2 == 0) continue;
        event.hashes.push_back(100 + block);
        ++held[group][block];
      }
      if (first > 0) event.parent = 100 + first - 1;
      event.tokens = Counting(static_cast<int64_t>(1000 + 4 * first), 4 * (kBlocks - first));
      Store(event);
    }
    if (step < 4) continue;
    uint32_t expected = 0;
    for (uint32_t end = 1; end <= kBlocks; ++end) {
      bool usable = true;
      for (size_t i = 0; i < held.size(); ++i) {
        for (uint64_t back = 1; back <= std::min<uint64_t>(kNeeded[i], end); ++back) {
          usable = usable && held[i][end - back] > 0;
        }
      }
      if (usable) expected = end;
    }
    ends += expected > 0 ? 1 : 0;
    ASSERT_EQ(Held(1000, 4 * kBlocks).first, expected) << "step " << step;
  }
  EXPECT_THAT(ends, ::testing::AllOf(::testing::Gt(200u), ::testing::Lt(1800u)));
  EXPECT_EQ(view_.numbers().skipped.group, 0u);
}

TEST_P(EngineViewTest, GroupsBeyondTheLimitsAreCountedOnly) {
  for (uint32_t i = 1; i < 30; ++i) {
    Store({.hashes = {i}, .group = i, .spec_kind = "full_attention"});
  }
  EXPECT_EQ(view_.numbers().skipped.group, 29 - EngineGroups::kMost);
  view_.Forget();
  for (uint32_t i = 1; i < 10; ++i) {
    Store({.hashes = {i}, .group = i, .spec_kind = "sliding_window", .window = 1 + 4 * i});
  }
  EXPECT_EQ(view_.numbers().skipped.group, 29 - EngineGroups::kMost + 9 - EngineGroups::kMostTails);
}

TEST_P(EngineViewTest, AViewThatBeganLateKnowsWhatIsBuiltOnWhatItKnows) {
  Store({.hashes = {12}, .parent = 11, .tokens = Counting(104, 4)});
  EXPECT_EQ(Held(100, 8), Blocks(0, 0));
  EXPECT_EQ(view_.numbers().skipped.parent, 1u);
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  EXPECT_EQ(Held(100, 8), Blocks(1, 1));
}

TEST_P(EngineViewTest, ForgetLeavesNothing) {
  Store({.hashes = {11, 12}, .tokens = Counting(100, 8)});
  view_.Forget();
  EXPECT_EQ(Held(100, 8), Blocks(0, 0));
  EXPECT_EQ(view_.numbers().blocks, 0u);
  EXPECT_EQ(index_.numbers().members, 1u);
  view_.Leave();
  EXPECT_EQ(index_.numbers().members, 0u);
}

TEST_P(EngineViewTest, AtTheLimitBlocksThatAreGoneLeaveFirst) {
  EngineView small({.member = kEngine, .space = kSpace, .max_blocks = 3}, sink_);
  const auto store = [&](const WrittenStored& event) {
    BatchWriter writer = Writer();
    small.Apply(*DecodeBatch(writer.Stored(event).Take()));
  };
  store({.hashes = {11, 12, 13}, .tokens = Counting(100, 12)});
  BatchWriter writer = Writer();
  small.Apply(*DecodeBatch(writer.Removed({.hashes = {12}}).Take()));
  store({.hashes = {21}, .tokens = Counting(500, 4)});
  EXPECT_EQ(small.numbers().blocks, 3u);
  EXPECT_EQ(small.numbers().evicted, 0u);
  EXPECT_EQ(Held(100, 12), Blocks(1, 1));
  EXPECT_EQ(Held(500, 4), Blocks(1, 1));
}

TEST_P(EngineViewTest, AtTheLimitTheIndexForgetsAPromptFromItsEnd) {
  EngineView small({.member = kEngine, .space = kSpace, .max_blocks = 3}, sink_);
  const auto store = [&](const WrittenStored& event) {
    BatchWriter writer = Writer();
    small.Apply(*DecodeBatch(writer.Stored(event).Take()));
  };
  store({.hashes = {11, 12, 13}, .tokens = Counting(100, 12)});
  store({.hashes = {21}, .tokens = Counting(500, 4)});
  EXPECT_EQ(small.numbers().evicted, 1u);
  EXPECT_EQ(Held(100, 12), Blocks(2, 2));
  EXPECT_EQ(Held(500, 4), Blocks(1, 1));
  // A prompt of more blocks than there is room for.
  store({.hashes = {31, 32, 33, 34, 35}, .tokens = Counting(900, 20)});
  EXPECT_EQ(small.numbers().blocks, 3u);
}

TEST_P(EngineViewTest, AHashThatStandsForOtherTokensNowIsTheNewBlock) {
  Store({.hashes = {11}, .tokens = Counting(100, 4)});
  Store({.hashes = {11}, .tokens = Counting(200, 4)});
  EXPECT_EQ(Held(100, 4), Blocks(0, 0));
  EXPECT_EQ(Held(200, 4), Blocks(1, 1));
  EXPECT_EQ(view_.numbers().blocks, 1u);
}

}  // namespace
}  // namespace cairn::router
