#include "tools/cairn/launch/lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tools/cairn/launch/directory.h"

namespace cairn::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kNothingListens[] = "nothing listens at 127.0.0.1:7400, and ";

// A directory of `cairn up`, in which this process stands for all that run.
class LookupTest : public ::testing::Test {
 protected:
  LookupTest() {
    char path[] = "/tmp/cairn-lookup-XXXXXX";
    root_ = mkdtemp(path);
    directory_ = root_ + "/up";
  }
  ~LookupTest() override { std::filesystem::remove_all(root_); }

  LaunchedProcess Process(Role role, const std::string& name, const std::string& grpc) const {
    return {.role = role, .name = name, .identity = *IdentityOf(getpid()), .grpc = grpc};
  }
  void Write(const std::vector<LaunchedProcess>& processes) {
    const auto directory = LaunchDirectory::Open(directory_);
    ASSERT_TRUE(directory.ok()) << directory.status();
    const Status written = (*directory)
                               ->WriteState({.boot_id = BootId(),
                                             .model = "/m.gguf",
                                             .made_directory = true,
                                             .processes = processes});
    ASSERT_TRUE(written.ok()) << written;
  }
  // As `cairn up --nodes 2` leaves it.
  void WriteTwoNodes() {
    Write({Process(Role::kNode, "node-1", "127.0.0.1:1"),
           Process(Role::kNode, "node-2", "127.0.0.1:2"),
           Process(Role::kWorker, "prefill-1", "127.0.0.1:3"),
           Process(Role::kWorker, "worker-1", "127.0.0.1:4"),
           Process(Role::kRouter, "router", "127.0.0.1:5")});
  }
  Result<DefaultTarget> Find(Seek seek) const {
    return FindDefault(seek, {.listens = [this](const std::string&) { return listens_; },
                              .directory = [this] { return Result<std::string>(directory_); }});
  }

  std::string root_, directory_;
  bool listens_ = false;
};

TEST_F(LookupTest, ANodeAtTheDefaultAddressIsUsedAsEver) {
  listens_ = true;
  for (const Seek seek : {Seek::kNode, Seek::kOnlyNode, Seek::kNodes}) {
    const auto target = Find(seek);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(target->address, kDefaultNode);
    EXPECT_EQ(target->note, "");
  }
  EXPECT_EQ(Find(Seek::kWorker)->address, "");
  EXPECT_EQ(Find(Seek::kWorker)->note, "");
}

TEST_F(LookupTest, ANodeThatIsUsedInsteadOfWhatUpStartedIsNamed) {
  WriteTwoNodes();
  listens_ = true;
  for (const Seek seek : {Seek::kNode, Seek::kOnlyNode, Seek::kNodes}) {
    const auto target = Find(seek);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(target->address, kDefaultNode);
    EXPECT_EQ(target->note,
              "uses the node at 127.0.0.1:7400, and not what `cairn up` started in " + directory_);
  }
  EXPECT_EQ(Find(Seek::kWorker)->address, "");
  EXPECT_THAT(Find(Seek::kWorker)->note,
              AllOf(HasSubstr("computes in this process"), HasSubstr("--worker")));
}

TEST_F(LookupTest, ANodeOfUpAtTheDefaultAddressIsNoSurprise) {
  Write({Process(Role::kNode, "node-1", kDefaultNode)});
  listens_ = true;
  EXPECT_EQ(Find(Seek::kNode)->note, "");
}

TEST_F(LookupTest, OtherwiseWhatUpStartedIsUsedAndSaid) {
  WriteTwoNodes();
  const auto node = Find(Seek::kNode);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->address, "127.0.0.1:1");
  EXPECT_EQ(node->note, "uses what `cairn up` started in " + directory_ + ": 127.0.0.1:1");
  EXPECT_EQ(Find(Seek::kNodes)->address, "127.0.0.1:1,127.0.0.1:2");
  const auto worker = Find(Seek::kWorker);
  EXPECT_EQ(worker->address, "127.0.0.1:4") << "the other one answers nobody";
  EXPECT_EQ(worker->model, "/m.gguf");
}

TEST_F(LookupTest, NoNodeIsChosenForACommandThatChangesIt) {
  WriteTwoNodes();
  EXPECT_THAT(Message(Find(Seek::kOnlyNode).status()),
              AllOf(HasSubstr("node-1 at 127.0.0.1:1, node-2 at 127.0.0.1:2"),
                    HasSubstr("name one with --cache")));
  Write({Process(Role::kNode, "node-1", "127.0.0.1:1")});
  EXPECT_EQ(Find(Seek::kOnlyNode)->address, "127.0.0.1:1");
}

TEST_F(LookupTest, WhatHasEndedIsPassedOver) {
  LaunchedProcess gone = Process(Role::kNode, "node-1", "127.0.0.1:1");
  ++gone.identity.start_ticks;  // Its pid is another process now.
  Write({gone, Process(Role::kNode, "node-2", "127.0.0.1:2")});
  EXPECT_EQ(Find(Seek::kNode)->address, "127.0.0.1:2");
  Write({gone});
  EXPECT_THAT(Message(Find(Seek::kNode).status()),
              AllOf(HasSubstr(kNothingListens),
                    HasSubstr("what `cairn up` started in " + directory_ + " has ended: node-1"),
                    HasSubstr("`cairn down` removes")));
}

TEST_F(LookupTest, NeitherIsAnErrorThatSaysHowToStart) {
  EXPECT_THAT(Message(Find(Seek::kNode).status()),
              AllOf(HasSubstr(kNothingListens),
                    HasSubstr("`cairn up` has started nothing in " + directory_),
                    HasSubstr("start one with `cairn up`")));
  EXPECT_FALSE(std::filesystem::exists(directory_)) << "looking leaves nothing";
  const auto nowhere = FindDefault(
      Seek::kNode,
      {.listens = [](const std::string&) { return false; },
       .directory = [] { return Result<std::string>(Errorf(StatusCode::kInternal, "none")); }});
  EXPECT_THAT(Message(nowhere.status()), HasSubstr("`cairn up` has started nothing; start one"));
}

TEST_F(LookupTest, OneThatOnlyStartsAndOneWithoutNodesAreSaid) {
  Write({Process(Role::kNode, "node-1", "")});
  EXPECT_EQ(Find(Seek::kNode).status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(Find(Seek::kNode).status()), HasSubstr("is still starting node-1"));
  Write({Process(Role::kRouter, "router", "127.0.0.1:3")});
  EXPECT_THAT(Message(Find(Seek::kNode).status()), HasSubstr("`cairn up` started no node in"));
}

TEST_F(LookupTest, AStateThatCannotBeReadIsNotTakenForNone) {
  WriteTwoNodes();
  std::ofstream(directory_ + "/state.json") << "{}";
  EXPECT_THAT(Message(Find(Seek::kNode).status()),
              AllOf(HasSubstr("nothing listens at 127.0.0.1:7400"), HasSubstr("state.json")));
}

}  // namespace
}  // namespace cairn::cli
