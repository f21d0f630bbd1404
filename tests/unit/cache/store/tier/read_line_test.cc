#include "services/cache/store/tier/read_line.h"

#include <gtest/gtest.h>

#include "common/status/matchers.h"
#include "services/cache/store/tier/testing/fake_tier.h"

namespace cairn::cache {
namespace {

class ReadLineTest : public ::testing::Test {
 protected:
  // Parts of one block, each of `kBytes` bytes. Their ends are counted in `ends_`, in their order.
  void Read(size_t block, size_t count) {
    std::vector<ReadLine::Part> parts;
    for (size_t i = 0; i < count; ++i) {
      const Extent extent = *tier_.Reserve(kBytes);
      tier_.Write(extent, "", source_, [](const Status& status) { EXPECT_OK(status); });
      parts.push_back({extent, destination_});
    }
    wanted_ += count;
    reads_.push_back({block, std::move(parts)});
  }
  void Start() {
    tier_.HoldCallbacks();
    for (auto& [block, parts] : reads_) {
      line_.Read(&tier_, std::move(parts), [this, block](size_t part, const Status& status) {
        EXPECT_OK(status);
        ends_.emplace_back(block, part);
      });
    }
  }

  static constexpr size_t kBytes = 64;
  testing::FakeTier tier_{{.capacity_bytes = 64 << 20}};
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> destination_ = std::vector<std::byte>(kBytes);
  std::vector<std::pair<size_t, std::vector<ReadLine::Part>>> reads_;
  std::vector<std::pair<size_t, size_t>> ends_;
  size_t wanted_ = 0;
  ReadLine line_;
};

TEST_F(ReadLineTest, ABoundedNumberIsAtTheTier) {
  for (size_t block = 0; block < 4; ++block) Read(block, 1024);
  Start();
  while (tier_.RunOneHeld()) {
  }
  EXPECT_EQ(ends_.size(), wanted_);
  EXPECT_LE(tier_.most_reads_held(), ReadLine::kAtOnce);
  EXPECT_GT(tier_.most_reads_held(), 1u);
}

TEST_F(ReadLineTest, BlocksTakeTurns) {
  Read(0, 1024);
  Read(1, 1);
  Start();
  while (tier_.RunOneHeld()) {
  }
  ASSERT_EQ(ends_.size(), wanted_);
  const auto small = std::find(ends_.begin(), ends_.end(), std::pair<size_t, size_t>(1, 0));
  EXPECT_LE(small - ends_.begin(), static_cast<ptrdiff_t>(ReadLine::kAtOnce));
}

TEST_F(ReadLineTest, EachPartEndsOnceWithItsNumber) {
  Read(0, 700);
  Start();
  tier_.HoldCallbacks(false);
  while (tier_.RunOneHeld()) {
  }
  ASSERT_EQ(ends_.size(), 700u);
  std::sort(ends_.begin(), ends_.end());
  for (size_t i = 0; i < ends_.size(); ++i) EXPECT_EQ(ends_[i].second, i);
}

TEST_F(ReadLineTest, ATierThatDestroysItsCallbacksEndsTheirParts) {
  Read(0, 3);
  tier_.HoldCallbacks();
  std::vector<StatusCode> codes;
  line_.Read(&tier_, std::move(reads_[0].second),
             [&codes](size_t, const Status& status) { codes.push_back(status.code()); });
  tier_.Crash();
  EXPECT_EQ(codes, std::vector(3, StatusCode::kCancelled));
}

// A tier that answers within the call: the line calls itself no deeper for more parts.
TEST_F(ReadLineTest, ATierMayAnswerAtOnce) {
  Read(0, 100'000);
  for (auto& [block, parts] : reads_) {
    line_.Read(&tier_, std::move(parts), [this](size_t part, const Status& status) {
      EXPECT_OK(status);
      ends_.emplace_back(0, part);
    });
  }
  EXPECT_EQ(ends_.size(), wanted_);
}

}  // namespace
}  // namespace cairn::cache
