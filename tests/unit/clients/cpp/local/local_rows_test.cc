// Rows out of the memory of a node that follows a script.
#include "clients/cpp/src/local/local_rows.h"

#include <map>

#include "clients/cpp/src/local/local_push.h"
#include "clients/cpp/src/local/local_session.h"
#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/clients/cpp/local/local_node.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client::local {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::seconds;
using testing::Chain;
using testing::LocalNode;
using testing::SliceData;
using testing::SmallSpec;

constexpr uint32_t kLayer = 1;
constexpr size_t kRow = 16, kTokens = 16, kHeads = 6;  // The sizes of SmallSpec.

TimePoint In(Duration d) { return std::chrono::steady_clock::now() + d; }

class LocalRowsTest : public ::testing::Test {
 protected:
  struct Sink final : RowSink {
    Status OnRows(size_t group, const RowsInfo&, std::span<const std::byte> rows) override {
      got[group].assign(rows.begin(), rows.end());
      return OkStatus();
    }
    void OnRowsFailed(size_t group, MissReason reason) override { failed[group] = reason; }
    std::map<size_t, std::vector<std::byte>> got;
    std::map<size_t, MissReason> failed;
  };

  void Open(LocalNode::Script script, bool sealed) {
    script.frozen = sealed;
    node_ = std::make_unique<LocalNode>(std::move(script));
    if (sealed) {
      for (const PartToPush& part : chain_.parts) node_->Keep(part.key, part.rect, part.bytes);
    }
    auto session = LocalSession::Open({.socket = node_->path(),
                                       .token = std::string(16, 't'),
                                       .tenant = "default",
                                       .client = "test",
                                       .node_epoch = 5},
                                      &SteadyClock::Get(), In(seconds(60)));
    ASSERT_OK(session);
    if (!sealed) {
      const PushReport report =
          PushParts(*session, Fingerprint(spec_), chain_.parts, In(seconds(60)));
      ASSERT_OK(report.status);
    }
    auto matched = (*session)->Match(Fingerprint(spec_), chain_.keys, {}, In(seconds(60)));
    ASSERT_OK(matched);
    pin_ = matched->pin;
  }
  RowReport Read(Sink& sink, Duration deadline = seconds(10)) {
    const FetchOptions options = {.progress = deadline, .deadline = deadline};
    return pin_->rows().Read(*pin_, 8, {layout_, kLayer, groups_}, sink, options, In(deadline));
  }
  std::vector<std::byte> Expected(const RowGroup& group) const {
    const auto slice = SliceData(spec_, chain_.keys[group.block], kLayer, spec_.layout.WholeRect());
    std::vector<std::byte> rows;
    for (size_t plane = 0; plane < 2; ++plane) {
      for (size_t t = 0; t < kTokens; ++t) {
        if ((group.mask[0] >> t & 1) == 0) continue;
        const auto at =
            static_cast<ptrdiff_t>(((plane * kHeads + group.head) * kTokens + t) * kRow);
        rows.insert(rows.end(), slice.begin() + at, slice.begin() + at + kRow);
      }
    }
    return rows;
  }
  void ExpectRight(const Sink& sink) {
    for (const auto& [group, rows] : sink.got) EXPECT_EQ(rows, Expected(groups_[group])) << group;
  }
  // Where a row of a plane lies in the part of a block.
  static uint64_t At(size_t plane, size_t head, size_t token) {
    const uint64_t slice = 2 * kHeads * kTokens * kRow;
    return format::HeaderBytes(4) + kLayer * slice +
           ((plane * kHeads + head) * kTokens + token) * kRow;
  }

  static constexpr uint64_t kOne = 0b100, kSome = 0b1010'0000'0001'0110, kAll = 0xffff;
  const NamespaceSpec spec_ = SmallSpec();
  const RowLayout layout_ = *RowLayout::Of(spec_);
  const Chain chain_{spec_, 8};
  const std::vector<RowGroup> groups_ = {
      {0, 0, {&kSome, 1}}, {0, 5, {&kOne, 1}}, {3, 2, {&kAll, 1}}, {7, 1, {&kOne, 1}}};
  std::unique_ptr<LocalNode> node_;
  std::shared_ptr<LeasePin> pin_;
};

TEST_F(LocalRowsTest, RowsAreRightInSealedAndInLentSegments) {
  for (const bool sealed : {true, false}) {
    Open({}, sealed);
    for (int round = 0; round < 3; ++round) {
      Sink sink;
      const RowReport report = Read(sink);
      ASSERT_OK(report.status);
      EXPECT_EQ(sink.got.size(), groups_.size());
      EXPECT_TRUE(sink.failed.empty() && report.rest.empty());
      EXPECT_EQ(report.counts.rows, 5u + 1 + 16 + 1);
      ExpectRight(sink);
    }
    pin_.reset();
  }
}

TEST_F(LocalRowsTest, AWriterThatChangesRowsLaterIsFound) {
  Open({}, /*sealed=*/false);
  Sink first;
  ASSERT_OK(Read(first).status);
  // The byte of another head: not among the copied ones. Then the byte of a row next to the wanted
  // one, which is.
  node_->Damage(chain_.keys[7], At(0, 2, 2));
  node_->Damage(chain_.keys[3], At(1, 2, 9));
  node_->Damage(chain_.keys[0], At(1, 5, 14));
  Sink second;
  const RowReport report = Read(second);
  ASSERT_OK(report.status);
  ExpectRight(second);
  EXPECT_EQ(second.failed.at(2), MissReason::kCorrupt);
  EXPECT_EQ(second.failed.at(1), MissReason::kCorrupt);
  EXPECT_TRUE(second.got.contains(3));
  EXPECT_EQ(report.counts.corrupt_rows, 2u);
  EXPECT_TRUE(node_->WaitFor([](const auto& c) { return c.reports == 2; }));
}

TEST_F(LocalRowsTest, ADamagedSliceOrHeaderGivesNoRows) {
  for (const bool sealed : {true, false}) {
    Open({}, sealed);
    node_->Damage(chain_.keys[0], At(0, 3, 3));  // Another row of the slice.
    node_->Damage(chain_.keys[3], 20);           // The header.
    Sink sink;
    ASSERT_OK(Read(sink).status);
    ExpectRight(sink);
    EXPECT_EQ(sink.failed, (std::map<size_t, MissReason>{{0, MissReason::kCorrupt},
                                                         {1, MissReason::kCorrupt},
                                                         {2, MissReason::kCorrupt}}));
    EXPECT_TRUE(node_->WaitFor([](const auto& c) { return c.reports == 2; }));
    pin_.reset();
  }
}

TEST_F(LocalRowsTest, PendingBlocksAreAskedForAgain) {
  Open({.pending = 3}, /*sealed=*/true);
  Sink sink;
  ASSERT_OK(Read(sink).status);
  EXPECT_EQ(sink.got.size(), groups_.size());
  ExpectRight(sink);
}

TEST_F(LocalRowsTest, BlocksThatStayPendingCostTheDeadline) {
  Open({.pending = 1 << 30}, /*sealed=*/true);
  Sink sink;
  const RowReport report = Read(sink, std::chrono::milliseconds(60));
  EXPECT_THAT(report.status, StatusIs(StatusCode::kDeadlineExceeded, ::testing::_));
  EXPECT_EQ(report.rest.size(), groups_.size());
  EXPECT_TRUE(sink.got.empty() && sink.failed.empty());
}

TEST_F(LocalRowsTest, BlocksElsewhereAreLeftToGrpc) {
  Open({.elsewhere = true}, /*sealed=*/true);
  Sink sink;
  const RowReport report = Read(sink);
  ASSERT_OK(report.status);
  EXPECT_EQ(report.rest, (std::vector<size_t>{0, 1, 2, 3}));
  EXPECT_TRUE(sink.got.empty() && sink.failed.empty());
}

TEST_F(LocalRowsTest, AfterTheSessionHasEndedNothingIsGivenOut) {
  Open({}, /*sealed=*/true);
  Sink first;
  ASSERT_OK(Read(first).status);
  node_->HangUp();
  // The end is seen when the socket is looked at.
  const TimePoint until = In(seconds(60));
  while (pin_->session()->Alive() && std::chrono::steady_clock::now() < until) {
  }
  Sink sink;
  const RowReport report = Read(sink);
  EXPECT_THAT(report.status, StatusIs(StatusCode::kUnavailable, ::testing::_));
  EXPECT_TRUE(sink.got.empty());
  EXPECT_EQ(report.rest.size(), groups_.size());
}

}  // namespace
}  // namespace cairn::client::local
