#include "tools/cairn/process/programs.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace cairn::cli {
namespace {

constexpr int kCannotRun = 127;  // As shells say it.

struct EndedProgram {
  int exit_code = kCannotRun;  // Also after a signal.
  std::string text;            // The output of one stream, without the newline at the end.
};

// `stream`: STDOUT_FILENO or STDERR_FILENO. The other one is dropped.
EndedProgram ReadStream(const std::vector<std::string>& argv, int stream) {
  EndedProgram ended;
  int fds[2];
  if (argv.empty() || pipe2(fds, O_CLOEXEC) != 0) return ended;
  std::vector<char*> args;
  args.reserve(argv.size() + 1);
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const int null_fd = open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      dup2(fd == stream ? fds[1] : null_fd, fd);
    }
    execvp(args[0], args.data());
    _exit(kCannotRun);
  }
  close(fds[1]);
  char buffer[1024];
  while (pid > 0) {
    const ssize_t n = read(fds[0], buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    ended.text.append(buffer, static_cast<size_t>(n));
  }
  close(fds[0]);
  int wait_status = -1;
  if (pid > 0) {
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
  }
  if (pid > 0 && WIFEXITED(wait_status)) ended.exit_code = WEXITSTATUS(wait_status);
  while (!ended.text.empty() && ended.text.back() == '\n') ended.text.pop_back();
  return ended;
}

Status CannotRun(const std::vector<std::string>& argv) {
  const std::string program = argv.empty() ? "" : argv[0];
  // After `make demo` alone there is no router.
  if (program.starts_with('/') && access(program.c_str(), X_OK) != 0) {
    return Errorf(StatusCode::kUnavailable, "'{}' is not there: `make build` makes it", program);
  }
  return Errorf(StatusCode::kUnavailable, "'{}' failed", program);
}

}  // namespace

std::string ProgramDirectory() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n <= 0) return ".";
  const std::string_view whole(path, static_cast<size_t>(n));
  const size_t slash = whole.rfind('/');
  return slash == whole.npos ? "." : std::string(whole.substr(0, slash));
}

std::string SiblingProgram(const std::string& name) { return ProgramDirectory() + "/" + name; }

Result<std::string> Capture(const std::vector<std::string>& argv) {
  EndedProgram ended = ReadStream(argv, STDOUT_FILENO);
  if (ended.exit_code != 0) return CannotRun(argv);
  return std::move(ended.text);
}

Status RunToEnd(const std::vector<std::string>& argv) {
  const EndedProgram ended = ReadStream(argv, STDERR_FILENO);
  if (ended.exit_code == 0) return OkStatus();
  if (ended.exit_code == kCannotRun) return CannotRun(argv);
  return InvalidArgument("{}", ended.text);
}

}  // namespace cairn::cli
