#include "tools/cairn/process/child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class ChildTest : public testing::Test {
 protected:
  ChildTest() : log_(testing::TempDir() + "/child_test." + std::to_string(getpid()) + ".log") {
    std::filesystem::remove(log_);
  }
  ~ChildTest() override { std::filesystem::remove(log_); }

  Result<std::unique_ptr<Child>> Shell(const std::string& script) {
    return Child::Start({.name = "script", .argv = {"/bin/sh", "-c", script}, .log_path = log_});
  }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }

  const std::string log_;
};

TEST_F(ChildTest, ReadyLineGivesItsFields) {
  auto child =
      Shell("echo starting; echo ready grpc=127.0.0.1:1234 admin=127.0.0.1:5; exec sleep 1000");
  ASSERT_TRUE(child.ok()) << child.status();
  const auto fields = (*child)->WaitReady(seconds(120));
  ASSERT_TRUE(fields.ok()) << fields.status();
  EXPECT_EQ(fields->at("grpc"), "127.0.0.1:1234");
  EXPECT_EQ(fields->at("admin"), "127.0.0.1:5");
  EXPECT_TRUE((*child)->Running());
}

TEST_F(ChildTest, ChildThatEndsAtStartIsReportedWithItsLog) {
  auto child = Shell("echo no such model >&2; exit 3");
  ASSERT_TRUE(child.ok()) << child.status();
  const auto fields = (*child)->WaitReady(seconds(120));
  EXPECT_EQ(fields.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(fields.status()), HasSubstr("exit code 3"));
  EXPECT_THAT(Message(fields.status()), HasSubstr("no such model"));
}

TEST_F(ChildTest, ChildThatIsNeverReadyIsADeadline) {
  auto child = Shell("exec sleep 1000");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ((*child)->WaitReady(milliseconds(50)).status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(ChildTest, MissingProgramIsNotFound) {
  const auto child =
      Child::Start({.name = "x", .argv = {"/nonexistent/program"}, .log_path = log_});
  EXPECT_EQ(child.status().code(), StatusCode::kNotFound);
}

TEST_F(ChildTest, DestructorLeavesNoProcess) {
  pid_t pid = 0;
  {
    auto child = Shell("trap '' TERM; echo ready x=1; while :; do sleep 1; done");
    ASSERT_TRUE(child.ok()) << child.status();
    ASSERT_TRUE((*child)->WaitReady(seconds(120)).ok());
    pid = (*child)->pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ChildTest, StopAsksFirst) {
  auto child = Shell("trap 'exit 7' TERM; echo ready x=1; while :; do sleep 0.01; done");
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE((*child)->WaitReady(seconds(120)).ok());
  const int status = (*child)->Stop(seconds(120));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST_F(ChildTest, StopKillsWhatDoesNotListen) {
  auto child = Shell("trap '' TERM; echo ready x=1; while :; do sleep 1; done");
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE((*child)->WaitReady(seconds(120)).ok());
  const int status = (*child)->Stop(milliseconds(50));
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F(ChildTest, OutputAfterTheReadyLineNeverBlocksTheChild) {
  // More than a pipe holds.
  auto child = Shell("echo ready x=1; head -c 300000 /dev/zero; echo; echo ready x=2 >&2");
  ASSERT_TRUE(child.ok()) << child.status();
  const int status = (*child)->Stop(seconds(120));
  EXPECT_TRUE(WIFEXITED(status) || WIFSIGNALED(status));
}

// A parent that is killed cannot tidy up: the kernel must.
TEST_F(ChildTest, DiesWithItsParent) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    auto child = Shell("echo ready x=1; exec sleep 1000");
    const pid_t pid = child.ok() && (*child)->WaitReady(seconds(120)).ok() ? (*child)->pid()
                                                                           : static_cast<pid_t>(-1);
    if (write(pipe_fds[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    pause();
    _exit(0);
  }
  pid_t grandchild = -1;
  ASSERT_EQ(read(pipe_fds[0], &grandchild, sizeof(grandchild)),
            static_cast<ssize_t>(sizeof(grandchild)));
  ASSERT_GT(grandchild, 0);
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, grandchild, 0));
  ASSERT_GE(pidfd, 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  pollfd gone{pidfd, POLLIN, 0};
  EXPECT_EQ(poll(&gone, 1, 120'000), 1) << "the grandchild survived its parent";
  close(pidfd);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(ReadyLineTest, OtherLinesAreNotReady) {
  EXPECT_FALSE(ParseReadyLine("").ok());
  EXPECT_FALSE(ParseReadyLine("almost ready grpc=1").ok());
  EXPECT_TRUE(ParseReadyLine("ready").ok());
  EXPECT_EQ(ParseReadyLine("ready a=b=c junk")->at("a"), "b=c");
}

TEST(CaptureTest, GivesOutputOrError) {
  EXPECT_EQ(*Capture({"echo", "hello"}), "hello");
  EXPECT_FALSE(Capture({"false"}).ok());
  EXPECT_FALSE(Capture({"no-such-program-at-all"}).ok());
  EXPECT_EQ(*Capture({"sh", "-c", "echo seen; echo dropped >&2"}), "seen");
}

TEST(RunToEndTest, SaysWhatTheCommandSaysOfItsFailure) {
  EXPECT_TRUE(RunToEnd({"true"}).ok());
  const Status failed = RunToEnd({"sh", "-c", "echo dropped; echo 'not so' >&2; exit 3"});
  EXPECT_EQ(failed.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(failed), "not so");
  EXPECT_EQ(RunToEnd({"no-such-program-at-all"}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(RunToEnd({"sh", "-c", "kill -9 $$"}).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cairn::cli
