#include "common/net/unix_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/status/matchers.h"

namespace cairn::net {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class UnixPathTest : public ::testing::Test {
 protected:
  ~UnixPathTest() override { std::filesystem::remove(path_); }

  // A socket that is bound to the path.
  int Bind(int type) {
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    path_.copy(at.sun_path, path_.size());
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    return fd;
  }

  const std::string path_ = ::testing::TempDir() + "/unix_path_" + std::to_string(getpid()) +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(UnixPathTest, APathThatIsNotThereIsFree) { EXPECT_OK(FreeUnixPath(path_)); }

TEST_F(UnixPathTest, TheSocketOfAProcessThatWasKilledIsRemoved) {
  const int fd = Bind(SOCK_STREAM);
  listen(fd, 1);
  close(fd);
  ASSERT_TRUE(std::filesystem::exists(path_));
  EXPECT_OK(FreeUnixPath(path_));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixPathTest, AListenerKeepsItsPathWhateverItsType) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const int fd = Bind(type);
    listen(fd, 1);
    EXPECT_THAT(FreeUnixPath(path_),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("another process listens")));
    EXPECT_TRUE(std::filesystem::exists(path_));
    close(fd);
    std::filesystem::remove(path_);
  }
}

TEST_F(UnixPathTest, AListenerWithAFullQueueKeepsItsPath) {
  const int fd = Bind(SOCK_STREAM);
  listen(fd, 0);
  // Each look is a connection that nobody accepts.
  for (int look = 0; look < 4; ++look) EXPECT_FALSE(FreeUnixPath(path_).ok());
  EXPECT_TRUE(std::filesystem::exists(path_));
  close(fd);
}

TEST_F(UnixPathTest, AFileThatIsNoSocketStays) {
  std::ofstream(path_) << "text";
  EXPECT_THAT(FreeUnixPath(path_), StatusIs(StatusCode::kFailedPrecondition, HasSubstr(path_)));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace cairn::net
