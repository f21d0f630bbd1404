#include "tools/cairn/process/detached.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "common/lifecycle/descriptor.h"
#include "tools/cairn/process/child.h"
#include "tools/cairn/process/interrupt.h"
#include "tools/cairn/process/log_tail.h"

namespace cairn::cli {
namespace {

// In the child, after fork: only async-signal-safe calls, since other threads of the parent may
// hold locks.
[[noreturn]] void Become(char* const* argv, int gate_fd, int log_fd) {
  char go = 0;
  ssize_t n = 0;
  do {
    n = read(gate_fd, &go, 1);
  } while (n < 0 && errno == EINTR);
  if (n != 1) _exit(127);  // Nobody wrote down that we exist.
  setsid();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execv(argv[0], argv);
  _exit(127);
}

// The ready line in what a log has so far.
std::optional<std::map<std::string, std::string>> ReadyLineIn(const std::string& path) {
  std::ifstream log(path);
  for (std::string line; std::getline(log, line);) {
    if (log.eof()) break;  // Its end is not written yet.
    if (auto fields = ParseReadyLine(line); fields.ok()) return *std::move(fields);
  }
  return std::nullopt;
}

Status EndedAtStart(const DetachedProcess& process) {
  const int status = process.handle.Reap();
  return Errorf(StatusCode::kUnavailable, "{}: ended at start ({} {}). The end of {}:\n{}",
                process.name, WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), process.log_path,
                LogTail(process.log_path));
}

void Drain(int inotify_fd) {
  alignas(inotify_event) char events[4096];
  while (read(inotify_fd, events, sizeof(events)) > 0) {
  }
}

}  // namespace

Result<DetachedProcess> StartDetached(const DetachedOptions& options,
                                      const std::function<Status(const ProcessIdentity&)>& record) {
  if (options.argv.empty()) return InvalidArgument("{}: empty command line", options.name);
  if (access(options.argv[0].c_str(), X_OK) != 0) {
    return Errorf(StatusCode::kNotFound, "{}: no program at '{}'", options.name, options.argv[0]);
  }
  Descriptor log(open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  int gate[2];
  if (log.get() < 0 || pipe2(gate, O_CLOEXEC) != 0) {
    return Errorf(StatusCode::kInternal, "{}: cannot write the log '{}': {}", options.name,
                  options.log_path, std::strerror(errno));
  }
  Descriptor gate_out(gate[0]), gate_in(gate[1]);
  std::vector<char*> argv;
  for (const std::string& arg : options.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    close(gate_in.get());  // Else the pipe would not end with the parent.
    Become(argv.data(), gate_out.get(), log.get());
  }
  if (pid < 0) {
    return Errorf(StatusCode::kInternal, "{}: cannot start: {}", options.name,
                  std::strerror(errno));
  }
  const auto identity = IdentityOf(pid);
  auto handle = identity.ok() ? ProcessHandle::Open(*identity) : identity.status();
  const Status recorded = handle.ok() ? record(*identity) : handle.status();
  const char go = 1;
  if (!recorded.ok() || write(gate_in.get(), &go, 1) != 1) {
    gate_in.Reset();  // It ends by itself.
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return recorded.ok() ? Errorf(StatusCode::kInternal, "{}: cannot start", options.name)
                         : recorded;
  }
  return DetachedProcess{.name = options.name,
                         .identity = *identity,
                         .handle = *std::move(handle),
                         .log_path = options.log_path};
}

Result<std::vector<std::map<std::string, std::string>>> WaitAllReady(
    std::span<const DetachedProcess> processes, std::chrono::milliseconds timeout,
    const std::function<void(size_t)>& on_ready) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  const Descriptor changes(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  for (const DetachedProcess& process : processes) {
    if (inotify_add_watch(changes.get(), process.log_path.c_str(), IN_MODIFY) < 0) {
      return Errorf(StatusCode::kInternal, "{}: cannot watch '{}': {}", process.name,
                    process.log_path, std::strerror(errno));
    }
  }
  std::vector<std::optional<std::map<std::string, std::string>>> ready(processes.size());
  while (true) {
    Drain(changes.get());
    std::vector<pollfd> events = {{changes.get(), POLLIN, 0}, {InterruptFd(), POLLIN, 0}};
    for (const DetachedProcess& process : processes) {
      events.push_back({process.handle.fd(), POLLIN, 0});
    }
    size_t waiting = 0;
    for (size_t i = 0; i < processes.size(); ++i) {
      if (!ready[i] && (ready[i] = ReadyLineIn(processes[i].log_path))) on_ready(i);
      waiting += !ready[i];
    }
    if (poll(events.data(), events.size(), 0) > 0) {
      if (Interrupted()) return Errorf(StatusCode::kCancelled, "interrupted");
      for (size_t i = 0; i < processes.size(); ++i) {
        if (events[i + 2].revents != 0) return EndedAtStart(processes[i]);
      }
    }
    if (waiting == 0) break;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      const size_t i =
          static_cast<size_t>(std::find(ready.begin(), ready.end(), std::nullopt) - ready.begin());
      return Errorf(StatusCode::kDeadlineExceeded, "{}: not ready after {} ms. The end of {}:\n{}",
                    processes[i].name, timeout.count(), processes[i].log_path,
                    LogTail(processes[i].log_path));
    }
    poll(events.data(), events.size(), static_cast<int>(left.count()));
  }
  std::vector<std::map<std::string, std::string>> fields;
  for (auto& line : ready) fields.push_back(*std::move(line));
  return fields;
}

}  // namespace cairn::cli
