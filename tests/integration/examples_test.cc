// The programs of examples/cpp do what their first lines say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/status/matchers.h"
#include "tests/support/process.h"

namespace cairn {
namespace {

using cairn::testing::Binary;
using cairn::testing::CacheNode;
using cairn::testing::Process;
using ::testing::HasSubstr;

// Runs an example until it ends well, and returns what it printed.
std::string RunExample(const std::string& name, const std::vector<std::string>& arguments) {
  const auto build = std::filesystem::path(Binary("")).parent_path().parent_path();
  std::vector<std::string> argv = {(build / "examples" / name).string()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto example = Process::Start({.argv = argv});
  EXPECT_OK(example);
  if (!example.ok()) return "";
  const auto exit = (*example)->WaitExit(std::chrono::seconds(120));
  EXPECT_OK(exit);
  EXPECT_TRUE(exit.ok() && exit->exited && exit->code == 0) << (*example)->err();
  return (*example)->out();
}

TEST(ExamplesTest, GetAndPushFindsOnTheSecondRunWhatTheFirstStored) {
  auto node = CacheNode::Start({});
  ASSERT_OK(node);
  EXPECT_EQ(RunExample("get_and_push", {(*node)->address()}),
            "the cache had 0 of 3 blocks\nnow it has 3 of 3, all bytes equal\n");
  EXPECT_EQ(RunExample("get_and_push", {(*node)->address()}),
            "the cache had 3 of 3 blocks\nnow it has 3 of 3, all bytes equal\n");
}

// It could still change what it wrote in place, so that is copied before it is verified.
TEST(ExamplesTest, WithoutCopiesWritesInPlaceAndReadsACopyOfThat) {
  auto node = CacheNode::Start({});
  ASSERT_OK(node);
  EXPECT_EQ(RunExample("without_copies", {(*node)->address()}),
            "4 of 4 blocks are right, 0 of them lent\n");
}

TEST(ExamplesTest, WithoutCopiesWorksOverTheNetwork) {
  auto node = CacheNode::Start({"--local.socket", "off"});
  ASSERT_OK(node);
  EXPECT_EQ(RunExample("without_copies", {(*node)->address()}),
            "4 of 4 blocks are right, 0 of them lent\n");
}

TEST(ExamplesTest, WatchEventsPrintsTheBlocksOfTheNode) {
  auto node = CacheNode::Start({});
  ASSERT_OK(node);
  RunExample("get_and_push", {(*node)->address()});
  const std::string printed = RunExample("watch_events", {(*node)->address()});
  EXPECT_THAT(printed, HasSubstr(" stored\n"));
  EXPECT_THAT(printed, HasSubstr(" end of the snapshot\n"));
}

TEST(ExamplesTest, WithoutANodeNeedsNone) {
  EXPECT_THAT(RunExample("without_a_node", {}), HasSubstr("the node is back: 1 blocks"));
}

}  // namespace
}  // namespace cairn
