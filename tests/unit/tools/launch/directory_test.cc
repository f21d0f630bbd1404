#include "tools/cairn/launch/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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

TEST_F(LaunchDirectoryTest, OneAtATime) {
  const auto first = LaunchDirectory::Open(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = LaunchDirectory::Open(path_);
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(second.status()), HasSubstr(path_));
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
