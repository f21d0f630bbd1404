#include "tools/cairn/process/programs.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace cairn::cli {

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
  int fds[2];
  if (argv.empty() || pipe2(fds, O_CLOEXEC) != 0) {
    return Errorf(StatusCode::kUnavailable, "cannot run a command");
  }
  std::vector<char*> args;
  args.reserve(argv.size() + 1);
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const int null_fd = open("/dev/null", O_RDWR);
    dup2(null_fd, STDIN_FILENO);
    dup2(null_fd, STDERR_FILENO);
    dup2(fds[1], STDOUT_FILENO);
    execvp(args[0], args.data());
    _exit(127);
  }
  close(fds[1]);
  std::string text;
  char buffer[1024];
  while (pid > 0) {
    const ssize_t n = read(fds[0], buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  close(fds[0]);
  int wait_status = -1;
  if (pid > 0) {
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
  }
  if (pid < 0 || !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
    return Errorf(StatusCode::kUnavailable, "'{}' failed", argv[0]);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace cairn::cli
