#include "tools/cairn/launch/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "cairn/common/status.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

class LaunchDirectoryTest : public testing::Test {
 protected:
  LaunchDirectoryTest()
      : parent_(testing::TempDir() + "/launch_directory_test." + std::to_string(getpid())),
        path_(parent_ + "/up") {
    std::filesystem::remove_all(parent_);
    mkdir(parent_.c_str(), 0700);
  }
  ~LaunchDirectoryTest() override { std::filesystem::remove_all(parent_); }

  static LaunchState OneNode(bool made) {
    return {.boot_id = "b",
            .model = "m",
            .made_directory = made,
            .processes = {{.role = Role::kNode, .name = "node-1", .identity = {2, 3}}}};
  }

  const std::string parent_, path_;
};

TEST_F(LaunchDirectoryTest, StateComesBack) {
  const auto directory = LaunchDirectory::Open(path_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ((*directory)->ReadState().status().code(), StatusCode::kNotFound);
  ASSERT_TRUE((*directory)->WriteState(OneNode(true)).ok());
  const auto state = (*directory)->ReadState();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(*state, OneNode(true));
}

// The answer of Open in a process of its own.
Status OpenedByAnother(const std::string& path) {
  int answer[2];
  CAIRN_CHECK(pipe(answer) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const Status status = LaunchDirectory::Open(path).status();
    const std::string text = static_cast<char>(status.code()) + Message(status);
    _exit(write(answer[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(answer[1]);
  char text[1024] = {};
  const ssize_t length = read(answer[0], text, sizeof(text));
  close(answer[0]);
  int exit = 0;
  CAIRN_CHECK(length > 0 && waitpid(child, &exit, 0) == child && exit == 0);
  return Status(static_cast<StatusCode>(text[0]), std::string(text + 1, length - 1));
}

TEST_F(LaunchDirectoryTest, OneAtATime) {
  {
    const auto first = LaunchDirectory::Open(path_);
    ASSERT_TRUE(first.ok()) << first.status();
    const Status second = OpenedByAnother(path_);
    EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(second), HasSubstr(path_));
  }
  EXPECT_TRUE(OpenedByAnother(path_).ok());
}

// As `cairn up` is killed just when it starts a process.
TEST_F(LaunchDirectoryTest, AChildOfTheHolderHoldsNothing) {
  std::optional<std::unique_ptr<LaunchDirectory>> held;
  auto opened = LaunchDirectory::Open(path_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  held = *std::move(opened);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  held.reset();
  EXPECT_TRUE(OpenedByAnother(path_).ok());
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(LaunchDirectoryTest, RemoveLeavesNothingOfItsOwn) {
  {
    const auto directory = LaunchDirectory::Open(path_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    ASSERT_TRUE((*directory)->made());
    ASSERT_TRUE((*directory)->WriteState(OneNode(true)).ok());
    std::ofstream((*directory)->LogOf("node-1")) << "log";
    std::filesystem::create_directories((*directory)->DataOf("node-1"));
    EXPECT_TRUE((*directory)->HasData());
    ASSERT_TRUE((*directory)->Remove(/*made=*/true, /*keep_data=*/false).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(LaunchDirectoryTest, RemoveKeepsDataIfAsked) {
  const auto directory = LaunchDirectory::Open(path_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  std::filesystem::create_directories((*directory)->DataOf("node-1"));
  ASSERT_TRUE((*directory)->Remove(/*made=*/true, /*keep_data=*/true).ok());
  EXPECT_TRUE(std::filesystem::exists(path_ + "/data/node-1"));
}

TEST_F(LaunchDirectoryTest, RemoveTouchesNothingOfOthers) {
  mkdir(path_.c_str(), 0700);
  const auto directory = LaunchDirectory::Open(path_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_FALSE((*directory)->made());
  std::ofstream(path_ + "/thesis.txt") << "years of work";
  std::ofstream(path_ + "/thesis.log") << "years of work";
  ASSERT_TRUE((*directory)->Remove(/*made=*/true, /*keep_data=*/false).ok());
  EXPECT_TRUE(std::filesystem::exists(path_ + "/thesis.txt"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/thesis.log"));
}

TEST_F(LaunchDirectoryTest, ADirectoryThatOthersCanWriteToIsRefused) {
  mkdir(path_.c_str(), 0700);
  chmod(path_.c_str(), 0777);
  EXPECT_EQ(LaunchDirectory::Open(path_).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(path_ + "/.lock"));
}

TEST_F(LaunchDirectoryTest, AStateThatIsALinkOrAPipeOrOfOthersIsRefused) {
  mkdir(path_.c_str(), 0700);
  std::ofstream(parent_ + "/elsewhere") << LaunchStateText(OneNode(true));
  const std::string state = path_ + "/state.json";
  ASSERT_EQ(symlink((parent_ + "/elsewhere").c_str(), state.c_str()), 0);
  EXPECT_EQ(ReadLaunchState(path_).status().code(), StatusCode::kFailedPrecondition);
  std::filesystem::remove(state);
  ASSERT_EQ(mkfifo(state.c_str(), 0600), 0);
  EXPECT_EQ(ReadLaunchState(path_).status().code(), StatusCode::kFailedPrecondition);
  std::filesystem::remove(state);
  std::ofstream(state) << LaunchStateText(OneNode(true));
  chmod(state.c_str(), 0666);
  EXPECT_EQ(ReadLaunchState(path_).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(LaunchDirectoryTest, ABrokenStateNamesItsFile) {
  mkdir(path_.c_str(), 0700);
  std::ofstream(path_ + "/state.json") << "{}";
  chmod((path_ + "/state.json").c_str(), 0600);
  EXPECT_THAT(Message(ReadLaunchState(path_).status()), HasSubstr(path_ + "/state.json"));
}

}  // namespace
}  // namespace cairn::cli
