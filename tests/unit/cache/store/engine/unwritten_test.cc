// A reservation that nobody filled, or not all of it: the room still has the bytes of the block
// that lay there before, with right checksums, and they may be another tenant's.

#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/lease/written_ranges.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"
#include "tests/unit/cache/store/engine/source_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class UnwrittenTest : public EngineTest {
 protected:
  void SetUp() override {
    Options options;
    options.disk = false;
    options.segment_bytes = 2 << 20;
    StartWithoutDevice(options);
    NamespaceSpec other = spec_;
    other.tenant = "other";
    theirs_ = engine_->OpenNamespace(other, false)->fingerprint;
  }
  // Blocks of the other tenant fill the host tier, and then leave it.
  void LeaveBytesOfAnotherTenant() {
    for (uint64_t n = 1; n <= 600; ++n) ASSERT_OK(StoreTheirs(n));
    ASSERT_OK(engine_->DropNamespace(theirs_));
    ASSERT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  }
  Status StoreTheirs(uint64_t n) {
    const ReservePartRequest part = Part(n, std::nullopt);
    CAIRN_ASSIGN_OR_RETURN(const auto ids,
                           engine_->Reserve(session_, theirs_, {&part, 1}, Duration(0)));
    CAIRN_RETURN_IF_ERROR(ids[0].status());
    CAIRN_RETURN_IF_ERROR(engine_->Write(session_, *ids[0], 0, Bytes(n)));
    return CommitOne(*ids[0]);
  }
  std::vector<std::byte> Bytes(uint64_t n) const { return TestPart(spec_.layout, n, Whole()); }
  Status Write(ReservationId id, uint64_t n, size_t begin, size_t end) {
    const auto bytes = Bytes(n);
    return engine_->Write(session_, id, begin, std::span(bytes).subspan(begin, end - begin));
  }
  // Reserves block n, writes the pieces, and commits.
  Status StorePieces(uint64_t n, const std::vector<std::pair<size_t, size_t>>& pieces) {
    CAIRN_ASSIGN_OR_RETURN(const ReservationId id, Reserve(Part(n, std::nullopt)));
    for (const auto& [begin, end] : pieces) CAIRN_RETURN_IF_ERROR(Write(id, n, begin, end));
    return CommitOne(id);
  }

  const size_t whole_ = TestPart(TestSpec().layout, 1, TestSpec().layout.WholeRect()).size();
  Fingerprint theirs_;
};

TEST_F(UnwrittenTest, NothingOfAnotherTenantComesOutOfAReservation) {
  LeaveBytesOfAnotherTenant();
  for (uint64_t n = 1; n <= 20; ++n) {
    const auto id = Reserve(Part(n, std::nullopt));
    ASSERT_OK(id);
    EXPECT_THAT(CommitOne(*id), StatusIs(StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr(TestKey(n).Hex()), HasSubstr("byte 0"),
                                               HasSubstr(std::to_string(whole_) + " bytes"))));
    EXPECT_EQ(Match({TestKey(n)}, false).matched_blocks, 0u);
  }
  EXPECT_EQ(engine_->GetStats().reserved_bytes, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
}

TEST_F(UnwrittenTest, APartWithAGapIsRefusedAlthoughItsBytesWouldVerify) {
  LeaveBytesOfAnotherTenant();
  // Every block lies where one of the other tenant's lay, so that a gap is filled by its bytes. The
  // writer knows the header of the block, and guesses the rest.
  for (const auto& [begin, end] :
       {std::pair<size_t, size_t>{0, 1}, {whole_ - 1, whole_}, {5000, 9000}, {64, whole_}}) {
    uint32_t refused = 0;
    for (uint64_t n = 1; n <= 20; ++n) {
      const Status status = StorePieces(n, {{0, begin}, {end, whole_}});
      refused += status.code() == StatusCode::kFailedPrecondition;
      EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition,
                                   HasSubstr("byte " + std::to_string(begin))));
    }
    EXPECT_EQ(refused, 20u);
  }
  EXPECT_EQ(Match(TestKeys(1, 20), false).matched_blocks, 0u);
}

TEST_F(UnwrittenTest, PiecesInAnyOrderMakeAPart) {
  EXPECT_OK(StorePieces(1, {{5000, whole_}, {0, 100}, {100, 5000}}));
  EXPECT_OK(StorePieces(2, {{50, 200}, {0, 100}, {150, whole_}, {60, 70}}));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  EXPECT_EQ(ServeAndVerify(2, 2), 1u);
}

TEST_F(UnwrittenTest, PiecesWithoutOrderAreRefusedBeyondABound) {
  const auto id = Reserve(Part(1, std::nullopt));
  ASSERT_OK(id);
  for (size_t i = 0; i < WrittenRanges::kMaxRanges; ++i) {
    ASSERT_OK(Write(*id, 1, 10 * i, 10 * i + 5));
  }
  EXPECT_THAT(Write(*id, 1, whole_ - 5, whole_),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("'offset'"), HasSubstr(std::to_string(whole_ - 5)),
                             HasSubstr(std::to_string(WrittenRanges::kMaxRanges)))));
  ASSERT_OK(Write(*id, 1, 5, whole_));
  EXPECT_OK(CommitOne(*id));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

// Somebody who was faster makes a whole write unnecessary: that is not an error of the writer.
TEST_F(UnwrittenTest, ALoserHearsThatTheBlockIsHere) {
  const auto id = Reserve(Part(1, std::nullopt));
  ASSERT_OK(id);
  ASSERT_OK(Store(1, std::nullopt));
  EXPECT_THAT(CommitOne(*id), StatusIs(StatusCode::kAlreadyExists, HasSubstr("here")));
}

// In place the node cannot see what was written. The memory never held a byte of another tenant,
// and a commit without a header is refused.
TEST_F(UnwrittenTest, InPlaceAPartThatNobodyWroteIsNoBlock) {
  ASSERT_OK(host_->AddOwner(spec_.tenant));
  LeaveBytesOfAnotherTenant();
  const auto reserve = [&](uint64_t n) {
    const ReservePartRequest part = Part(n, std::nullopt);
    return *(*engine_->in_place()->ReserveInPlace(session_, ns_, {&part, 1}))[0];
  };
  const auto bytes_of = [&](const PlacedReservation& placed) {
    return host_->Map({placed.extent, static_cast<uint32_t>(whole_)});
  };
  // Fresh: nothing of the other tenant is there.
  for (uint64_t n = 1; n <= 20; ++n) {
    const auto placed = reserve(n);
    for (const std::byte byte : bytes_of(placed)) ASSERT_EQ(byte, std::byte{0});
    const auto bytes = Bytes(n);
    std::memcpy(bytes_of(placed).data(), bytes.data(), bytes.size());
    ASSERT_OK(CommitOne(placed.id));
  }
  ASSERT_OK(engine_->BumpEpoch(ns_));
  // Bytes that this tenant wrote there before are there still, but no block comes of them by
  // themselves.
  for (uint64_t n = 1; n <= 20; ++n) EXPECT_FALSE(CommitOne(reserve(n).id).ok());
  EXPECT_EQ(Match(TestKeys(1, 20), false).matched_blocks, 0u);
}

// Says that every block is there, and brings no byte.
class EmptySource final : public BlockSource {
 public:
  explicit EmptySource(SourceBlock block) : block_(std::move(block)) {}
  void Locate(const Digest&, std::span<const BlockKey> keys, TimePoint, LocateDone done) override {
    done(Located{{{static_cast<uint32_t>(keys.size()), 1, 0}}});
  }
  void Read(const Digest&, const BlockKey&, TimePoint, BlockSink* sink, ReadDone done) override {
    if (const auto room = sink->Begin(block_); !room.ok()) return done(room.status());
    done(sink->Finish());
  }

 private:
  const SourceBlock block_;
};

TEST_F(UnwrittenTest, ASourceThatBringsNothingShowsNothing) {
  engine_.reset();
  SourceBlock block;
  block.parts.push_back({Whole(), static_cast<uint32_t>(whole_)});
  EmptySource source(block);
  Timers timers(&clock_);
  Options options = options_;
  options.source = &source;
  options.timers = &timers;
  StartWithoutDevice(options);
  NamespaceSpec other = spec_;
  other.tenant = "other";
  theirs_ = engine_->OpenNamespace(other, false)->fingerprint;
  LeaveBytesOfAnotherTenant();
  MatchResult match = Match({TestKey(1)});
  ASSERT_NE(match.further, nullptr);
  std::optional<MatchResult> found;
  match.further->Find(TimePoint::max(), [&](Result<MatchResult> result) {
    ASSERT_OK(result);
    found = *std::move(result);
  });
  ASSERT_TRUE(found && found->lease);
  const Fetched fetched = Fetch(*found->lease);
  EXPECT_TRUE(fetched.slices.empty());
  EXPECT_EQ(fetched.failures.count(0), 1u);
  engine_->CloseSession(session_);
  engine_.reset();
}

}  // namespace
}  // namespace cairn::cache::testing
