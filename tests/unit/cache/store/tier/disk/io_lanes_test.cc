// Backends of which one can be made and several cannot: memory that may be locked, descriptors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

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
              depths_[options.name] = options.depth;
              if (made_[static_cast<size_t>(kind)]++ >= most_[static_cast<size_t>(kind)])
                return Errorf(StatusCode::kUnavailable, "Cannot allocate memory");
              return MakeThreadBackend(options);
            }};
  }
  static constexpr IoKind kAll[] = {IoKind::kUring, IoKind::kAio, IoKind::kThreads};
  int most_[3] = {100, 100, 100};
  int made_[3] = {0, 0, 0};
  std::map<std::string, size_t> depths_;  // By the name of the backend, of the last one.
  std::string reason_;
};

TEST_F(IoLanesTest, TheFirstKindThatGivesAllOfThem) {
  const auto lanes = MakeIoLanes(kAll, Options(), &reason_);
  ASSERT_OK(lanes);
  EXPECT_EQ(lanes->kind, IoKind::kUring);
  EXPECT_EQ(lanes->readers.size(), 4u);
  EXPECT_NE(lanes->ranges, nullptr);
  EXPECT_EQ(depths_["disk-write"], 8u);
  EXPECT_EQ(depths_["disk-read"], 2u);
  EXPECT_EQ(depths_["disk-ranges"], 64u) << "they are small";
  EXPECT_EQ(reason_, "");
}

TEST_F(IoLanesTest, RingsThatDoNotStartFallBack) {
  for (int most = 0; most < 6; ++most) {
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
  EXPECT_EQ(depths_["disk-ranges"], 8u);
}

TEST_F(IoLanesTest, AKindThatWasNamedDoesNotFallBack) {
  most_[0] = 3;
  EXPECT_THAT(MakeIoLanes(std::span(kAll, 1), Options(), &reason_).status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("Cannot allocate memory")));
}

}  // namespace
}  // namespace cairn::cache::disk
