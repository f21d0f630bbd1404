#include "services/router/events/batch_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "common/status/matchers.h"
#include "tests/support/engine_batches.h"

namespace cairn::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Keys = std::vector<std::vector<std::string>>;
using Forms = std::tuple<EventForm, HashForm>;

class BatchDecoderTest : public ::testing::TestWithParam<Forms> {
 protected:
  BatchWriter Writer() const { return {std::get<0>(GetParam()), std::get<1>(GetParam())}; }
  uint64_t High() const {
    return std::get<1>(GetParam()) == HashForm::kBytes ? 0x6868686868686868 : 0;
  }
  EngineHash Hash(uint64_t low) const { return {.high = High(), .low = low}; }
  static EngineEventBatch Decode(const std::string& message) {
    auto batch = DecodeBatch(message);
    EXPECT_OK(batch);
    return batch.ok() ? *std::move(batch) : EngineEventBatch();
  }
  EngineBlocksStored Stored(const WrittenStored& event) const {
    BatchWriter writer = Writer();
    const auto batch = Decode(writer.Stored(event).Take());
    const auto* stored =
        batch.events.empty() ? nullptr : std::get_if<EngineBlocksStored>(&batch.events[0]);
    EXPECT_NE(stored, nullptr);
    return stored == nullptr ? EngineBlocksStored() : *stored;
  }
  EngineBlocksRemoved Removed(const WrittenRemoved& event) const {
    BatchWriter writer = Writer();
    const auto batch = Decode(writer.Removed(event).Take());
    const auto* removed =
        batch.events.empty() ? nullptr : std::get_if<EngineBlocksRemoved>(&batch.events[0]);
    EXPECT_NE(removed, nullptr);
    return removed == nullptr ? EngineBlocksRemoved() : *removed;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Forms, BatchDecoderTest,
    ::testing::Combine(::testing::Values(EventForm::kMaps, EventForm::kArrays),
                       ::testing::Values(HashForm::kBytes, HashForm::kSigned, HashForm::kUnsigned)),
    [](const auto& forms) { return FormName(std::get<0>(forms.param), std::get<1>(forms.param)); });

TEST_P(BatchDecoderTest, ReadsWhatAnEngineStored) {
  const uint64_t big = 0xfedcba9876543210;  // Negative as a signed number.
  const EngineBlocksStored event =
      Stored({.hashes = {big, 2}, .parent = 7, .tokens = Counting(100, 8), .block_size = 4});
  EXPECT_THAT(event.hashes, ElementsAre(Hash(big), Hash(2)));
  EXPECT_EQ(event.parent, Hash(7));
  EXPECT_THAT(event.tokens, ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
  EXPECT_EQ(event.block_tokens, 4u);
  EXPECT_EQ(event.medium, (EngineMedium{.tier = TierKind::kDevice}));
  EXPECT_EQ(event.plain_blocks, 2u);
  EXPECT_EQ(event.group, EngineGroup{});
}

TEST_P(BatchDecoderTest, KnowsTheMediaOfAllEngines) {
  const auto medium = [&](std::optional<std::string> word,
                          std::optional<std::string> locality = {}) {
    const WrittenStored stored = {
        .hashes = {1}, .tokens = Counting(0, 4), .medium = word, .locality = locality};
    const WrittenRemoved removed = {.hashes = {1}, .medium = word, .locality = locality};
    EXPECT_EQ(Stored(stored).medium, Removed(removed).medium);
    return Stored(stored).medium;
  };
  EXPECT_EQ(medium("GPU"), (EngineMedium{TierKind::kDevice, false}));
  EXPECT_EQ(medium("gpu"), (EngineMedium{TierKind::kDevice, false}));
  EXPECT_EQ(medium({}), (EngineMedium{TierKind::kDevice, false}));
  EXPECT_EQ(medium("CPU"), (EngineMedium{TierKind::kHost, false}));
  EXPECT_EQ(medium("CPU_PINNED"), (EngineMedium{TierKind::kHost, false}));
  EXPECT_EQ(medium("STORAGE"), (EngineMedium{TierKind::kDisk, false}));
  EXPECT_EQ(medium("DISK"), (EngineMedium{TierKind::kDisk, false}));
  EXPECT_EQ(medium("EXTERNAL"), (EngineMedium{TierKind::kDisk, true}));
  EXPECT_EQ(medium("CPU", "REMOTE"), (EngineMedium{TierKind::kHost, true}));
  EXPECT_EQ(medium("CPU", "LOCAL"), (EngineMedium{TierKind::kHost, false}));
  EXPECT_EQ(medium("TAPE"), std::nullopt);
  EXPECT_EQ(medium(""), std::nullopt);
}

TEST_P(BatchDecoderTest, SaysWhichBlocksDependOnMoreThanTokens) {
  WrittenStored event = {.hashes = {1, 2, 3}, .tokens = Counting(0, 12)};
  EXPECT_EQ(Stored(event).plain_blocks, 3u);
  event.extra_keys = Keys{{}, {"image"}, {}};
  EXPECT_EQ(Stored(event).plain_blocks, 1u);
  event.extra_keys = Keys{{"salt"}, {}, {}};
  EXPECT_EQ(Stored(event).plain_blocks, 0u);
  event.extra_keys = Keys{{}, {}, {}};
  EXPECT_EQ(Stored(event).plain_blocks, 3u);
  event.lora_name = "adapter";
  EXPECT_EQ(Stored(event).plain_blocks, 0u);
  event.lora_name = {};
  event.lora_id = 3;
  EXPECT_EQ(Stored(event).plain_blocks, 0u);
}

TEST_P(BatchDecoderTest, SaysWhatAGroupOfLayersNeeds) {
  using GroupKind = EngineGroup::Kind;
  const auto group = [&](std::optional<uint32_t> index, std::optional<std::string> kind,
                         std::optional<uint32_t> window = {}) {
    return Stored({.hashes = {1},
                   .tokens = Counting(0, 4),
                   .group = index,
                   .spec_kind = kind,
                   .window = window})
        .group;
  };
  EXPECT_EQ(group({}, {}), (EngineGroup{0, GroupKind::kUntold, 0}));
  EXPECT_EQ(group(0, "full_attention"), (EngineGroup{0, GroupKind::kFull, 0}));
  EXPECT_EQ(group(1, "mla_attention"), (EngineGroup{1, GroupKind::kFull, 0}));
  EXPECT_EQ(group(2, "sink_full_attention"), (EngineGroup{2, GroupKind::kFull, 0}));
  // A token of a window of 1,024 needs the 1,023 before it.
  EXPECT_EQ(group(0, "sliding_window", 1024), (EngineGroup{0, GroupKind::kTail, 1023}));
  EXPECT_EQ(group(3, "sliding_window_mla", 1), (EngineGroup{3, GroupKind::kTail, 1}));
  EXPECT_EQ(group(3, "sliding_window", 0), (EngineGroup{3, GroupKind::kTail, 1}));
  EXPECT_EQ(group(0, {}, 1024), (EngineGroup{0, GroupKind::kTail, 1023}));
  EXPECT_EQ(group(4, "mamba"), (EngineGroup{4, GroupKind::kTail, 1}));
  EXPECT_EQ(group(0, "sliding_window"), (EngineGroup{0, GroupKind::kOther, 0}));
  EXPECT_EQ(group(0, "chunked_local_attention"), (EngineGroup{0, GroupKind::kOther, 0}));
  EXPECT_EQ(Removed({.hashes = {1}, .group = 2}).group, (EngineGroup{2, GroupKind::kUntold, 0}));
}

// vLLM keeps only the blocks of a window that a prompt can end behind. Such an event once made the
// batch unreadable, so that the router forgot the engine.
TEST_P(BatchDecoderTest, AWindowsEventHasTheTokensOfBlocksThatAreNotKept) {
  WrittenStored event = {.hashes = {3}, .tokens = Counting(0, 12), .group = 1};
  for (const char* kind : {"sliding_window", "mamba", "unknown"}) {
    event.spec_kind = kind;
    event.window = 9;
    const EngineBlocksStored stored = Stored(event);
    EXPECT_THAT(stored.hashes, ElementsAre(Hash(3)));
    EXPECT_TRUE(stored.tokens.empty());
  }
  event.hashes = {};
  EXPECT_TRUE(Stored(event).hashes.empty());
}

TEST_P(BatchDecoderTest, ReadsEventsInTheirOrderAndCountsUnknownOnes) {
  BatchWriter writer = Writer();
  const auto batch = Decode(writer.Removed({.hashes = {5}})
                                .Unknown()
                                .Cleared()
                                .Stored({.hashes = {6}, .tokens = Counting(0, 4)})
                                .Take());
  ASSERT_EQ(batch.events.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<EngineBlocksRemoved>(batch.events[0]));
  EXPECT_TRUE(std::holds_alternative<EngineBlocksCleared>(batch.events[1]));
  EXPECT_TRUE(std::holds_alternative<EngineBlocksStored>(batch.events[2]));
  EXPECT_EQ(batch.unknown, 1u);
}

TEST_P(BatchDecoderTest, AnEventWithoutTokensOnlyNamesBlocks) {
  const EngineBlocksStored event = Stored({.hashes = {1, 2}, .block_size = 0, .medium = "CPU"});
  EXPECT_EQ(event.hashes.size(), 2u);
  EXPECT_TRUE(event.tokens.empty());
}

TEST_P(BatchDecoderTest, SaysWhatIsWrong) {
  const auto error = [&](const WrittenStored& event) {
    BatchWriter writer = Writer();
    const auto batch = DecodeBatch(writer.Removed({}).Stored(event).Take());
    EXPECT_THAT(batch, cairn::testing::StatusIs(StatusCode::kInvalidArgument, ::testing::_));
    return Message(batch.status());
  };
  EXPECT_EQ(error({.hashes = {1, 2}, .tokens = Counting(0, 7), .block_size = 4}),
            "events[1]: token_ids: got 7 tokens, expected 8 for 2 blocks of 4");
  EXPECT_EQ(error({.hashes = {1}, .tokens = {1, 2, 3, -4}}),
            "events[1]: token_ids[3]: got -4, expected 0 to 2147483647");
  EXPECT_EQ(error({.hashes = {1}, .tokens = {1, 2, 3, int64_t{1} << 31}}),
            "events[1]: token_ids[3]: got 2147483648, expected 0 to 2147483647");
}

TEST_P(BatchDecoderTest, NoBeginningOfAMessageIsABatch) {
  BatchWriter writer = Writer();
  const std::string message = writer
                                  .Stored({.hashes = {1, 2},
                                           .parent = 3,
                                           .tokens = Counting(0, 8),
                                           .extra_keys = Keys{{}, {"x"}}})
                                  .Unknown()
                                  .Take();
  EXPECT_OK(DecodeBatch(message));
  for (size_t size = 0; size < message.size(); ++size) {
    EXPECT_THAT(DecodeBatch(std::string_view(message).substr(0, size)),
                cairn::testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("cut short")))
        << size;
  }
  EXPECT_THAT(DecodeBatch(message + '\0'),
              cairn::testing::StatusIs(StatusCode::kInvalidArgument,
                                       HasSubstr("batch: got 1 bytes after its end")));
}

std::string ErrorOf(const std::string& message) {
  const auto batch = DecodeBatch(message);
  return batch.ok() ? "" : Message(batch.status());
}

TEST(BatchDecoderErrorTest, NamesWhatItGot) {
  EXPECT_EQ(ErrorOf("\xc0"), "batch: got nil, expected an array");
  EXPECT_EQ(ErrorOf("\x91\x01"), "batch: got 1 values, expected 2 or 3");
  EXPECT_EQ(ErrorOf("\x92\xa1x\x90"), "ts: got a text, expected a number");
  EXPECT_EQ(ErrorOf("\x92\x01\x80"), "events: got a map, expected an array");
  EXPECT_EQ(ErrorOf("\x92\x01\x91\x01"), "events[0]: got an integer, expected a map or an array");
  EXPECT_EQ(ErrorOf("\x92\x01\x91\x90"),
            "events[0]: got an empty array, expected the event's name first");
  EXPECT_EQ(ErrorOf("\x92\x01\x91\x81\xa1x\x01"), "events[0]: type: missing");
  EXPECT_EQ(ErrorOf("\x92\x01\x91\x91\xac"
                    "BlockRemoved"),
            "events[0]: block_hashes: missing");
  EXPECT_EQ(ErrorOf("\x92\x01\x91\x92\xac"
                    "BlockRemoved\x91\x80"),
            "events[0]: block_hashes[0]: got a map, expected an integer or bytes");
  EXPECT_EQ(ErrorOf("\x92\x01\x91\x92\xac"
                    "BlockRemoved\x91\xc4\x02"
                    "ab"),
            "events[0]: block_hashes[0]: got 2 bytes, expected 8 to 64");
  EXPECT_EQ(ErrorOf("\x92\x01\x91\x93\xac"
                    "BlockRemoved\x90\x05"),
            "events[0]: medium: got an integer, expected a text");
}

TEST(BatchDecoderErrorTest, ALengthThatTheMessageDoesNotHaveCostsNothing) {
  // Arrays of 4 billion values in arrays of 4 billion values.
  std::string message = "\x92\x01";
  for (int i = 0; i < 1000; ++i) message += "\xdd\xff\xff\xff\xff";
  EXPECT_THAT(ErrorOf(message), HasSubstr("cut short"));
  message = std::string(
                "\x92\x01\x91\x92\xac"
                "BlockRemoved",
                17) +
            "\xdd\xff\xff\xff\xff";
  EXPECT_THAT(ErrorOf(message), HasSubstr("cut short"));
}

TEST(BatchDecoderErrorTest, ValuesOfUnknownFieldsMayNotBeNestedWithoutEnd) {
  const auto nested = [](int levels) {
    std::string message =
        "\x92\x01\x91\x93\xac"
        "BlockPainted\xc0";
    for (int i = 0; i < levels; ++i) message += "\x91";
    return message + "\xc0";
  };
  EXPECT_EQ(ErrorOf(nested(16)), "");
  EXPECT_THAT(ErrorOf(nested(17)), HasSubstr("nested too deep"));
}

TEST(BatchDecoderErrorTest, SGLangsArraysHaveOtherLastValues) {
  // cache_salt, session_id and lora_name, where vLLM has lora_name, extra_keys and group_idx.
  const auto plain = [](const char* salt, const char* session, const char* adapter) {
    const auto batch = DecodeBatch(SGLangStored({salt, session, adapter}));
    EXPECT_OK(batch);
    return batch.ok() ? std::get<EngineBlocksStored>(batch->events[0]).plain_blocks : 99;
  };
  EXPECT_EQ(plain(nullptr, nullptr, nullptr), 1u);
  EXPECT_EQ(plain(nullptr, "session", nullptr), 1u);
  EXPECT_EQ(plain("salt", nullptr, nullptr), 0u);
  EXPECT_EQ(plain(nullptr, nullptr, "adapter"), 0u);
}

}  // namespace
}  // namespace cairn::router
