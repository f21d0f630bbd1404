#include "tools/cairn/process/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <thread>

#include "common/concurrency/mutex.h"
#include "tools/cairn/process/log_tail.h"

namespace cairn::cli {
namespace {

int ExitSignalOrCode(int wait_status) {
  return WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace

Result<std::map<std::string, std::string>> ParseReadyLine(std::string_view line) {
  std::istringstream words{std::string(line)};
  std::string word;
  if (!(words >> word) || word != "ready") {
    return Errorf(StatusCode::kNotFound, "not a ready line: '{}'", line);
  }
  std::map<std::string, std::string> fields;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals != word.npos) fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return fields;
}

// Copies the child's stdout to its log until it ends, so that the child never blocks on a full
// pipe, and picks the ready line out.
class Child::Output {
 public:
  Output(int read_fd, int log_fd)
      : read_fd_(read_fd), log_fd_(log_fd), thread_([this] { Pump(); }) {}
  // REQUIRES: the child is gone, so that the pipe ends.
  ~Output() {
    thread_.join();
    close(read_fd_);
    close(log_fd_);
  }

  // The ready line's fields; nullopt when the output ended or the time is over.
  std::optional<std::map<std::string, std::string>> WaitReady(std::chrono::milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return ready_.has_value() || ended_;
    });
    return ready_;
  }

  bool ended() {
    MutexLock lock(mu_);
    return ended_;
  }

 private:
  void Pump() {
    std::string line;
    char buffer[4096];
    while (true) {
      const ssize_t n = read(read_fd_, buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      // A log that cannot be written is no reason to stop reading.
      [[maybe_unused]] const ssize_t written = write(log_fd_, buffer, static_cast<size_t>(n));
      for (ssize_t i = 0; i < n; ++i) {
        if (buffer[i] != '\n') {
          if (line.size() < kMaxLine) line.push_back(buffer[i]);
          continue;
        }
        if (auto fields = ParseReadyLine(line); fields.ok()) {
          MutexLock lock(mu_);
          ready_ = *std::move(fields);
          changed_.NotifyAll();
        }
        line.clear();
      }
    }
    MutexLock lock(mu_);
    ended_ = true;
    changed_.NotifyAll();
  }

  static constexpr size_t kMaxLine = 4096;
  const int read_fd_;
  const int log_fd_;
  Mutex mu_;
  CondVar changed_;
  // Guarded by mu_.
  std::optional<std::map<std::string, std::string>> ready_;
  bool ended_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

Child::Child(Options options, pid_t pid, int pidfd, std::unique_ptr<Output> output)
    : options_(std::move(options)), pid_(pid), pidfd_(pidfd), output_(std::move(output)) {}

Child::~Child() {
  Kill();
  output_.reset();
  close(pidfd_);
}

Result<std::unique_ptr<Child>> Child::Start(const Options& options) {
  if (options.argv.empty()) return InvalidArgument("{}: empty command line", options.name);
  if (access(options.argv[0].c_str(), X_OK) != 0) {
    return Errorf(StatusCode::kNotFound, "{}: no program at '{}'", options.name, options.argv[0]);
  }
  const int log_fd =
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return Errorf(StatusCode::kInternal, "{}: cannot write the log '{}': {}", options.name,
                  options.log_path, std::strerror(errno));
  }
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    close(log_fd);
    return Errorf(StatusCode::kInternal, "{}: pipe: {}", options.name, std::strerror(errno));
  }
  std::vector<char*> argv;
  for (const std::string& arg : options.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls from here: other threads of the parent may hold locks.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // The parent died before prctl: no signal would come.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
    dup2(pipe_fds[1], STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(pipe_fds[1]);
  const int pidfd = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
  if (pidfd < 0) {
    const int error = errno;
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    close(pipe_fds[0]);
    close(log_fd);
    return Errorf(StatusCode::kInternal, "{}: cannot start: {}", options.name,
                  std::strerror(error));
  }
  return std::unique_ptr<Child>(
      new Child(options, pid, pidfd, std::make_unique<Output>(pipe_fds[0], log_fd)));
}

Result<std::map<std::string, std::string>> Child::WaitReady(std::chrono::milliseconds timeout) {
  if (auto fields = output_->WaitReady(timeout)) return *std::move(fields);
  // The pipe ends a moment before the process can be reaped.
  if (!output_->ended() || !WaitExit(std::chrono::seconds(2))) {
    return Errorf(StatusCode::kDeadlineExceeded, "{}: not ready after {} ms. The end of {}:\n{}",
                  options_.name, timeout.count(), options_.log_path, LogTail(options_.log_path));
  }
  return Errorf(StatusCode::kUnavailable, "{}: ended at start ({} {}). The end of {}:\n{}",
                options_.name, WIFSIGNALED(wait_status_) ? "signal" : "exit code",
                ExitSignalOrCode(wait_status_), options_.log_path, LogTail(options_.log_path));
}

bool Child::Running() {
  if (reaped_) return false;
  const pid_t done = waitpid(pid_, &wait_status_, WNOHANG);
  reaped_ = done == pid_;
  return !reaped_;
}

void Child::Reap() {
  while (!reaped_) {
    const pid_t done = waitpid(pid_, &wait_status_, 0);
    reaped_ = done == pid_ || (done < 0 && errno == ECHILD);
  }
}

void Child::Kill() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  Reap();
}

bool Child::WaitExit(std::chrono::milliseconds timeout) {
  if (reaped_) return true;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd gone{pidfd_, POLLIN, 0};
    const int n = poll(&gone, 1, left.count() > 0 ? static_cast<int>(left.count()) : 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    break;
  }
  Reap();
  return true;
}

int Child::Stop(std::chrono::milliseconds timeout) {
  if (reaped_) return wait_status_;
  kill(pid_, SIGTERM);
  if (!WaitExit(timeout)) Kill();
  return wait_status_;
}

}  // namespace cairn::cli
