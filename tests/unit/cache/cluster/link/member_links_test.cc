// Blocks between the device tiers of two members, in one thread: the fake device, communicators
// that copy memory, a fake clock.

#include "services/cache/cluster/link/member_links.h"

#include <gmock/gmock.h>

#include <cstring>
#include <optional>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/unit/common/link/link_world.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using device::fake::FakeDevices;
using link::testing::DirectCalls;
using link::testing::PairMaker;
using link::testing::World;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = 256 << 10;
constexpr uint64_t kBuffer = 128 << 10;

class MemberLinksTest : public ::testing::Test {
 protected:
  struct Member {
    std::unique_ptr<DeviceTier> tier;
    DirectCalls calls;
    std::unique_ptr<MemberLinks> links;
  };

  void SetUp() override {
    for (Member* const member : {&holder_, &reader_}) {
      DeviceTierOptions options;
      options.pool = {
          .capacity_bytes = 2 * kChunk, .chunk_bytes = kChunk, .slot_bytes = 16 << 10, .slots = 2};
      options.poll_interval = Duration(0);
      auto tier = DeviceTier::Create(options, {.driver = fake_.driver(), .clock = &world_.clock});
      ASSERT_OK(tier);
      member->tier = *std::move(tier);
      const link::Link::Dependencies shared = world_.links();
      auto links = MemberLinks::Create(
          {.links = {.host = "here"}, .buffer_bytes = kBuffer, .timeout = seconds(1)},
          {.tier = member->tier.get(),
           .maker = &maker_,
           .calls = &member->calls,
           .timers = shared.timers,
           .clock = shared.clock,
           .threads = shared.threads});
      ASSERT_OK(links);
      member->links = *std::move(links);
    }
    reader_.calls.holders["holder"] = holder_.links->holder();
  }
  void TearDown() override {
    // Stop would wait on the fake clock.
    reader_.links->Close();
    holder_.links->Close();
    world_.Finish();
    EXPECT_TRUE(reader_.links->Stop());
    EXPECT_TRUE(holder_.links->Stop());
    for (const Extent& extent : extents_) holder_.tier->Release(extent);
    reader_.calls.holders.clear();
  }

  static SourceBlock OneBlock(const std::vector<uint32_t>& parts) {
    SourceBlock block;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto layer = static_cast<uint16_t>(i);
      const auto next = static_cast<uint16_t>(i + 1);
      block.parts.push_back({{layer, next, 0, 1}, parts[i]});
    }
    return block;
  }
  static std::vector<std::byte> Bytes(size_t count, int value) {
    return std::vector<std::byte>(count, static_cast<std::byte>(value));
  }
  // Everything that can go on without time.
  void Step() {
    for (int i = 0; i < 200; ++i) {
      world_.Run();
      holder_.tier->Step();
      reader_.tier->Step();
    }
  }
  // A block in the holder's device tier, whose part i is full of i + first.
  DeviceBlock Store(const std::vector<uint32_t>& parts, int first = 1) {
    DeviceBlock block{.block = OneBlock(parts), .extents = {}, .hold = hold_};
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto extent = holder_.tier->ReserveOf("t", parts[i]);
      EXPECT_OK(extent);
      const auto bytes = Bytes(parts[i], first + static_cast<int>(i));
      std::optional<Status> written;
      holder_.tier->Write(*extent, {}, bytes, [&](Status status) { written = std::move(status); });
      Step();
      EXPECT_EQ(written, OkStatus());
      block.extents.push_back(*extent);
      extents_.push_back(*extent);
    }
    return block;
  }
  Result<LentPlace> Lend(DeviceBlock block, const std::string& member = "reader") {
    std::optional<Result<LentPlace>> place;
    holder_.links->lender()->Lend(member, std::move(block),
                                  [&](Result<LentPlace> lent) { place = std::move(lent); });
    Step();
    EXPECT_TRUE(place.has_value());
    return place.value_or(Errorf(StatusCode::kUnknown, "it has not ended"));
  }
  // What comes of it, once everything has gone on that needs no time.
  std::shared_ptr<std::optional<Status>> Fetch(const LentBlock& lent,
                                               Duration patience = seconds(60)) {
    rooms_.clear();
    std::vector<std::span<std::byte>> rooms;
    for (const auto& part : lent.block.parts) {
      rooms_.push_back(std::make_unique<std::vector<std::byte>>(part.bytes));
      rooms.emplace_back(*rooms_.back());
    }
    auto result = std::make_shared<std::optional<Status>>();
    reader_.links->fetcher()->Fetch("holder", lent, std::move(rooms), world_.clock.Now() + patience,
                                    [result](const Status& status) {
                                      EXPECT_FALSE(result->has_value()) << "it ends twice";
                                      *result = status;
                                    });
    // A link polls.
    for (int i = 0; i < 20; ++i) {
      Step();
      world_.Advance(milliseconds(1));
    }
    return result;
  }
  void Move() {
    const auto block = Store({1000});
    const auto place = Lend(block);
    ASSERT_OK(place);
    ASSERT_EQ(**Fetch({block.block, *place}), OkStatus());
  }
  uint64_t Failures(MoveFailure why) const {
    return reader_.links->stats().received.failures[static_cast<size_t>(why)];
  }

  FakeDevices fake_;
  PairMaker maker_;
  World world_;
  Member holder_, reader_;
  std::vector<Extent> extents_;  // Of the holder.
  std::vector<std::unique_ptr<std::vector<std::byte>>> rooms_;
  const std::shared_ptr<int> hold_ = std::make_shared<int>(0);
};

TEST_F(MemberLinksTest, ABlockThatIsLentArrivesPartByPart) {
  const auto block = Store({5000, 1, 300});
  const auto place = Lend(block);
  ASSERT_OK(place);
  EXPECT_EQ(place->bytes, LentOffsets(block.block).back());
  const auto result = Fetch({block.block, *place});
  ASSERT_EQ(*result, OkStatus());
  EXPECT_EQ(*rooms_[0], Bytes(5000, 1));
  EXPECT_EQ(*rooms_[1], Bytes(1, 2));
  EXPECT_EQ(*rooms_[2], Bytes(300, 3));
  const auto read = reader_.links->stats(), held = holder_.links->stats();
  EXPECT_EQ(read.received.moved, 1u);
  EXPECT_EQ(held.lent.granted_bytes, place->bytes);
  EXPECT_EQ(read.buffer_used + held.buffer_used, 0u) << "both rooms are free again";
}

TEST_F(MemberLinksTest, TheTierMayHaveItsExtentsBackOnceTheBlockIsLent) {
  ASSERT_OK(Lend(Store({1000})));
  EXPECT_EQ(hold_.use_count(), 1);
}

TEST_F(MemberLinksTest, OnlyWhoGotABlockMovesItAndOnce) {
  const auto block = Store({1000});
  const auto others = Lend(block, "another");
  const auto place = Lend(block);
  ASSERT_OK(others);
  ASSERT_OK(place);
  EXPECT_THAT(**Fetch({block.block, *others}),
              StatusIs(StatusCode::kNotFound, HasSubstr("no block is lent to 'reader'")));
  EXPECT_EQ(**Fetch({block.block, *place}), OkStatus());
  EXPECT_THAT(**Fetch({block.block, *place}), StatusIs(StatusCode::kNotFound, _));
  LentPlace part = *Lend(block);
  part.bytes -= 256;
  EXPECT_THAT(**Fetch({OneBlock({700}), part}), StatusIs(StatusCode::kNotFound, _));
  EXPECT_EQ(Failures(MoveFailure::kRefused), 3u);
}

TEST_F(MemberLinksTest, WhatNobodyMovesGivesItsRoomBack) {
  const auto block = Store({1000});
  const auto place = Lend(block);
  ASSERT_OK(place);
  EXPECT_GT(holder_.links->stats().buffer_used, 0u);
  world_.Advance(seconds(3));
  EXPECT_EQ(holder_.links->stats().lent.expired, 1u);
  EXPECT_EQ(holder_.links->stats().buffer_used, 0u);
  EXPECT_THAT(**Fetch({block.block, *place}), StatusIs(StatusCode::kNotFound, _));
}

TEST_F(MemberLinksTest, ABlockThatFindsNoRoomIsRefusedAtOnce) {
  Move();
  EXPECT_THAT(Lend(Store({kBuffer / 2 + 1})),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("link.buffer")));
  // Both halves are as large: the reader's is full, whatever the holder says.
  EXPECT_THAT(**Fetch({OneBlock({100}), {.bytes = kBuffer}}),
              StatusIs(StatusCode::kResourceExhausted, _));
  EXPECT_EQ(holder_.links->stats().lent.refused, 1u);
  EXPECT_EQ(Failures(MoveFailure::kNoRoom), 1u);
  EXPECT_TRUE(reader_.links->fetcher()->MayFetch("holder")) << "the member is not to blame";
}

TEST_F(MemberLinksTest, AMoveThatIsLateEndsEarlyEnoughForAnotherWay) {
  maker_.faults.never_moves = true;
  const auto block = Store({1000});
  const auto place = Lend(block);
  ASSERT_OK(place);
  const auto result = Fetch({block.block, *place}, milliseconds(800));
  EXPECT_FALSE(result->has_value());
  world_.Advance(milliseconds(400));
  ASSERT_TRUE(result->has_value());
  EXPECT_THAT(**result, StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(Failures(MoveFailure::kDeadline), 1u);
  EXPECT_FALSE(reader_.links->fetcher()->MayFetch("holder"));
}

TEST_F(MemberLinksTest, NoBlockWaitsForALinkAndOneTriesIt) {
  BlockFetcher& fetcher = *reader_.links->fetcher();
  EXPECT_FALSE(fetcher.MayFetch("holder")) << "it is being made";
  world_.Advance(milliseconds(20));
  EXPECT_EQ(reader_.links->stats().links.opened, 1u);
  EXPECT_TRUE(fetcher.MayFetch("holder"));
  EXPECT_FALSE(fetcher.MayFetch("holder")) << "one has to come back first";
  Move();
  EXPECT_TRUE(fetcher.MayFetch("holder"));
  EXPECT_TRUE(fetcher.MayFetch("holder"));
  EXPECT_EQ(reader_.links->stats().links.opened, 1u);
}

TEST_F(MemberLinksTest, AMemberWhoseLinkCannotBeMadeIsAskedLessAndLess) {
  maker_.faults.fail = "Join";
  BlockFetcher& fetcher = *reader_.links->fetcher();
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(fetcher.MayFetch("holder"));
    world_.Advance(milliseconds(100));
  }
  // After 1, 2, 4 seconds.
  EXPECT_GE(reader_.links->stats().links.broken, 3u);
  EXPECT_LE(reader_.links->stats().links.broken, 4u);
}

TEST_F(MemberLinksTest, ALostDeviceLendsAndFetchesNothing) {
  const auto block = Store({1000});
  Move();
  EXPECT_TRUE(reader_.links->fetcher()->MayFetch("holder"));
  fake_.control().lose(0);  // Both have this one.
  EXPECT_THAT(Lend(block), StatusIs(StatusCode::kUnavailable, _));
  (void)reader_.tier->device_of(0)->GetMemoryState();  // It notices.
  EXPECT_FALSE(reader_.links->fetcher()->MayFetch("holder"));
}

TEST_F(MemberLinksTest, AMemberWhoseBytesWereWrongIsLeftAloneAndThenOneTriesIt) {
  Move();
  BlockFetcher& fetcher = *reader_.links->fetcher();
  fetcher.NoteWrong("holder", Errorf(StatusCode::kDataLoss, "a hash differs"));
  EXPECT_FALSE(fetcher.MayFetch("holder"));
  world_.Advance(seconds(1));
  EXPECT_TRUE(fetcher.MayFetch("holder"));
  EXPECT_FALSE(fetcher.MayFetch("holder")) << "one has to come back first";
  EXPECT_EQ(reader_.links->stats().links.broken, 0u) << "the link itself is well";
}

}  // namespace
}  // namespace cairn::cache
