// Backends of which one can be made and several cannot: memory that may be locked, descriptors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"
#include "services/cache/store/tier/disk/io_backend.h"

namespace cairn::cache::disk {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class IoLanesTest : public ::testing::Test {
 protected:
  IoLanesOptions Options() {
    return {.depth = 8,
            .readers = 4,
            .make = [this](IoKind kind,
                           const IoBackendOptions& options) -> Result<std::unique_ptr<IoBackend>> {
              if (made_[static_cast<size_t>(kind)]++ >= most_[static_cast<size_t>(kind)])
                return Errorf(StatusCode::kUnavailable, "Cannot allocate memory");
              return MakeThreadBackend(options);
            }};
  }
  static constexpr IoKind kAll[] = {IoKind::kUring, IoKind::kAio, IoKind::kThreads};
  int most_[3] = {100, 100, 100};
  int made_[3] = {0, 0, 0};
  std::string reason_;
};

TEST_F(IoLanesTest, TheFirstKindThatGivesAllOfThem) {
  const auto lanes = MakeIoLanes(kAll, Options(), &reason_);
  ASSERT_OK(lanes);
  EXPECT_EQ(lanes->kind, IoKind::kUring);
  EXPECT_EQ(lanes->readers.size(), 4u);
  EXPECT_EQ(reason_, "");
}

TEST_F(IoLanesTest, RingsThatDoNotStartFallBack) {
  for (int most = 0; most < 5; ++most) {
    SCOPED_TRACE(most);
    most_[0] = most;
    made_[0] = 0;
    reason_.clear();
    const auto lanes = MakeIoLanes(kAll, Options(), &reason_);
    ASSERT_OK(lanes);
    EXPECT_EQ(lanes->kind, IoKind::kAio);
    EXPECT_THAT(reason_, HasSubstr("io_uring: Cannot allocate memory"));
  }
  most_[1] = 0;
  const auto lanes = MakeIoLanes(kAll, Options(), &reason_);
  ASSERT_OK(lanes);
  EXPECT_EQ(lanes->kind, IoKind::kThreads);
}

TEST_F(IoLanesTest, AKindThatWasNamedDoesNotFallBack) {
  most_[0] = 3;
  EXPECT_THAT(MakeIoLanes(std::span(kAll, 1), Options(), &reason_).status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("Cannot allocate memory")));
}

}  // namespace
}  // namespace cairn::cache::disk
