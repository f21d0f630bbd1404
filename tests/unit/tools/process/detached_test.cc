#include "tools/cairn/process/detached.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tools/cairn/process/log_tail.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class DetachedTest : public testing::Test {
 protected:
  DetachedTest() : log_(testing::TempDir() + "/detached_test." + std::to_string(getpid())) {
    std::filesystem::remove(log_);
  }
  ~DetachedTest() override {
    for (const DetachedProcess& process : started_) {
      process.handle.Signal(SIGKILL);
      std::vector<ProcessHandle> one;
      if (auto handle = ProcessHandle::Open(process.identity); handle.ok()) {
        one.push_back(*std::move(handle));
      }
      EXPECT_TRUE(WaitEnded(one, seconds(120)));
      process.handle.Reap();
    }
    std::filesystem::remove(log_);
  }

  Status Shell(const std::string& script) {
    auto started =
        StartDetached({.name = "script", .argv = {"/bin/sh", "-c", script}, .log_path = log_},
                      [](const ProcessIdentity&) { return OkStatus(); });
    if (!started.ok()) return started.status();
    started_.push_back(*std::move(started));
    return OkStatus();
  }
  auto WaitReady(milliseconds timeout = seconds(120)) {
    return WaitAllReady(started_, timeout, [this](size_t) { ++ready_; });
  }

  const std::string log_;
  std::vector<DetachedProcess> started_;
  int ready_ = 0;
};

TEST_F(DetachedTest, TheReadyLineGivesItsFields) {
  ASSERT_TRUE(Shell("echo starting; echo ready grpc=127.0.0.1:1 admin=127.0.0.1:2; "
                    "exec sleep 1000")
                  .ok());
  const auto ready = WaitReady();
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ((*ready)[0].at("grpc"), "127.0.0.1:1");
  EXPECT_EQ(ready_, 1);
}

TEST_F(DetachedTest, ItHasASessionOfItsOwn) {
  ASSERT_TRUE(Shell("echo ready a=1; exec sleep 1000").ok());
  ASSERT_TRUE(WaitReady().ok());
  EXPECT_EQ(getsid(started_[0].identity.pid), started_[0].identity.pid);
}

TEST_F(DetachedTest, OneThatEndsAtStartIsNamedWithItsLog) {
  ASSERT_TRUE(Shell("echo no such model >&2; exit 3").ok());
  const auto ready = WaitReady();
  EXPECT_EQ(ready.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(ready.status()), HasSubstr("script: ended at start (exit code 3)"));
  EXPECT_THAT(Message(ready.status()), HasSubstr("no such model"));
}

TEST_F(DetachedTest, OneThatIsNeverReadyIsADeadline) {
  ASSERT_TRUE(Shell("exec sleep 1000").ok());
  EXPECT_EQ(WaitReady(milliseconds(50)).status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(DetachedTest, NothingRunsThatCouldNotBeRecorded) {
  ProcessIdentity seen;
  const auto started =
      StartDetached({.name = "script", .argv = {"/bin/sh", "-c", "echo it ran"}, .log_path = log_},
                    [&](const ProcessIdentity& identity) {
                      seen = identity;
                      return Errorf(StatusCode::kInternal, "the disk is full");
                    });
  EXPECT_THAT(Message(started.status()), HasSubstr("the disk is full"));
  EXPECT_EQ(ProcessHandle::Open(seen).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LogTail(log_), "");
}

TEST_F(DetachedTest, AMissingProgramIsNotFound) {
  const auto started = StartDetached({.name = "x", .argv = {"/nonexistent"}, .log_path = log_},
                                     [](const ProcessIdentity&) { return OkStatus(); });
  EXPECT_EQ(started.status().code(), StatusCode::kNotFound);
}

TEST(ProcessIdentityTest, AnotherStartIsAnotherProcess) {
  const auto self = IdentityOf(getpid());
  ASSERT_TRUE(self.ok()) << self.status();
  EXPECT_TRUE(ProcessHandle::Open(*self).ok());
  // As if the pid had been given to this process after the recorded one had ended.
  ProcessIdentity before = *self;
  --before.start_ticks;
  EXPECT_EQ(ProcessHandle::Open(before).status().code(), StatusCode::kNotFound);
}

TEST(ProcessIdentityTest, WhatIsOnlyAnExitStatusHasEnded) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(IdentityOf(pid).status().code(), StatusCode::kNotFound);
  waitpid(pid, nullptr, 0);
}

TEST(ProcessIdentityTest, InitAndProcessGroupsCannotBeMeant) {
  for (const pid_t pid : {1, 0, -1}) {
    EXPECT_EQ(ProcessHandle::Open({pid, 0}).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cairn::cli
