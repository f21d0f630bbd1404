// The first steps of a program. Each test runs it in a process of its own.

#include "common/service/process_start.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

namespace cairn::service {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::Not;

bool IsNull(int fd) {
  struct stat there {};
  struct stat null {};
  return fstat(fd, &there) == 0 && stat("/dev/null", &null) == 0 && there.st_rdev == null.st_rdev;
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(ProcessStartTest, ClosedStandardDescriptorsAreOpenedFirst) {
  EXPECT_EXIT(
      {
        for (int fd = 0; fd <= 2; ++fd) close(fd);
        InitProcess("prog");
        _exit(IsNull(0) && IsNull(1) && IsNull(2) && open("/dev/null", O_RDONLY) > 2 ? 0 : 7);
      },
      ExitedWithCode(0), "");
}

TEST(ProcessStartTest, OpenStandardDescriptorsStayWhatTheyAre) {
  EXPECT_EXIT(
      {
        int ends[2];
        if (pipe(ends) != 0) _exit(8);
        dup2(ends[1], 1);
        InitProcess("prog");
        _exit(IsNull(1) ? 7 : 0);
      },
      ExitedWithCode(0), "");
}

TEST(ProcessStartTest, InheritedDescriptorsAreClosed) {
  EXPECT_EXIT(
      {
        const int inherited = open("/dev/null", O_RDONLY);
        const int named = open("/dev/null", O_RDONLY);
        const int in_variable = open("/dev/null", O_RDONLY);
        const int opened_since = open("/dev/null", O_RDONLY | O_CLOEXEC);
        setenv("CAIRN_TLS_CERTIFICATE", ("/proc/self/fd/" + std::to_string(in_variable)).c_str(),
               1);
        CloseInherited({"--config", "/dev/fd/" + std::to_string(named)});
        _exit(!IsOpen(inherited) && IsOpen(named) && IsOpen(in_variable) && IsOpen(opened_since) &&
                      IsOpen(2)
                  ? 0
                  : 7);
      },
      ExitedWithCode(0), "");
}

TEST(ProcessStartTest, ARefusedThreadIsALine) {
  EXPECT_EXIT(
      {
        InitProcess("prog");
        try {
          throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
        } catch (...) {
          std::terminate();
        }
      },
      ExitedWithCode(1), "^prog: cannot start a thread: .*; raise the limit of threads [^\n]*\n$");
}

TEST(ProcessStartTest, RefusedMemoryIsALine) {
  EXPECT_EXIT(
      {
        InitProcess("prog");
        try {
          throw std::bad_alloc();
        } catch (...) {
          std::terminate();
        }
      },
      ExitedWithCode(1), "^prog: out of memory: [^\n]*\n$");
}

TEST(ProcessStartTest, OwnMistakesStillAbort) {
  EXPECT_EXIT(
      {
        InitProcess("prog");
        std::terminate();
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

TEST(ProcessStartTest, AFileThatMayNotGrowIsAnErrorOfTheWrite) {
  EXPECT_EXIT(
      {
        InitProcess("prog");
        rlimit none{};
        setrlimit(RLIMIT_FSIZE, &none);
        FILE* const file = tmpfile();
        const bool written = write(fileno(file), "x", 1) == 1;
        _exit(!written && errno == EFBIG ? 0 : 7);
      },
      ExitedWithCode(0), "");
}

TEST(ProcessStartTest, TooFewThreadsAreRefusedWithTheLimit) {
  EXPECT_TRUE(CheckThreads(4).ok());
  EXPECT_EXIT(
      {
        rlimit some{};
        some.rlim_cur = some.rlim_max = 64 << 20;
        setrlimit(RLIMIT_AS, &some);  // Less than there is: no stack can be mapped.
        const Status status = CheckThreads(64);
        std::fprintf(stderr, "%s", std::string(status.message()).c_str());
        _exit(status.code() == StatusCode::kResourceExhausted ? 0 : 7);
      },
      ExitedWithCode(0), "threads: got [0-9]+, expected at least 64: .*ulimit -v: 65536");
}

TEST(ProcessStartTest, AnErrorThatALimitCausedNamesTheLimit) {
  EXPECT_EQ(AdviceFor("host arena: File too large", {.file_bytes = 4 << 20}),
            "; raise the limit of the size of files (ulimit -f: 4096)");
  EXPECT_THAT(AdviceFor("cannot map: Cannot allocate memory", {.address_bytes = 1 << 20}),
              HasSubstr("ulimit -v: 1024"));
  EXPECT_EQ(AdviceFor("host arena: File too large", {}), "");
  EXPECT_EQ(AdviceFor("the port is taken", {.address_bytes = 1, .file_bytes = 1}), "");
}

TEST(ProcessStartTest, AdviceNamesTheLimitsThatAreSet) {
  EXPECT_EQ(ThreadAdvice({.user_threads = 8}),
            "raise the limit of threads (ulimit -u: 8, pids.max: none)");
  EXPECT_THAT(ThreadAdvice({.group_tasks = 16, .address_bytes = 512 << 20}),
              AllOf(HasSubstr("pids.max: 16"), HasSubstr("ulimit -v: 524288")));
  EXPECT_THAT(MemoryAdvice({}), Not(HasSubstr("ulimit")));
}

TEST(ProcessStartTest, OutputThatCannotBeWrittenIsAnError) {
  EXPECT_TRUE(FlushOutput().ok());
  EXPECT_EXIT(
      {
        dup2(open("/dev/full", O_WRONLY), 1);
        std::puts("a line");
        const Status status = FlushOutput();
        std::fprintf(stderr, "%s", std::string(status.message()).c_str());
        _exit(status.ok() ? 7 : 0);
      },
      ExitedWithCode(0), "cannot write all to standard output");
}

}  // namespace
}  // namespace cairn::service
